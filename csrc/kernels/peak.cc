// Kernels `peak.integer` and `peak.float`: products as a level can make them at best, for comparison with those that
// are needed. Nothing uses them but measurements.
//
// They are the inner loops of linear_integer.h (4-bit codes, 8-bit activations, without outliers and scales) and of
// linear_float.h, over a tile whose inputs stay in L1.
//
//   peak.integer  P0 out int32 [S1][16], P1 codes [kTilePanels][8 groups][8 quads][64], P2 x int8 [8 rows][256],
//   peak.float    P0 out float [S1][16], P1 weights [kFloatTilePanels][64 K][16],       P2 x float [8 rows][64],
//                 P3 products of a piece, int64 [1]; S0 turns, S1 pieces.
//
// Out is what the tile's first row and panel sum up to: the same on every level, whatever its tile.
#include "../kernel_table.h"
#include "linear_float.h"
#include "linear_integer.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int kGroups = 8, kFloatK = 64;

int64_t pieces(const Node& node, const Step&) { return node.size[1]; }

void run_integer(const Node& node, const Step&, int64_t piece, Scratch& scratch) {
  using DotType = Dot<4, false>;
  const auto* codes = static_cast<const uint8_t*>(node.pointer[1]);
  const auto* x = static_cast<const int8_t*>(node.pointer[2]);
  I32 totals[kTileRows][kTilePanels];
  for (auto& row : totals) {
    for (I32& total : row) total = i32_zero();
  }
  for (int64_t turn = 0; turn < node.size[0] * kGroups; ++turn) {
    const int64_t g = turn % kGroups;
    DotType dots[kTileRows][kTilePanels];
    unroll<kQuads>([&](auto index) PELTON_INLINE_LAMBDA {
      constexpr int kQuad = decltype(index)::value;
      typename DotType::Codes loaded[kTilePanels];
#pragma GCC unroll 8
      for (int p = 0; p < kTilePanels; ++p) {
        loaded[p] = DotType::load(codes + ((p * kGroups + g) * kQuads + kQuad) * kVectorBytes);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < kTilePanels; ++p) {
          dots[r][p].template add<kQuad, kQuads>(loaded[p], x + (r * kGroups + g) * kGroup + 4 * kQuad);
        }
      }
    });
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kTilePanels; ++p) totals[r][p] = add(totals[r][p], dots[r][p].sum());
    }
  }
  std::memcpy(scratch.data, totals, sizeof(totals));  // so that no sum is left out
  i32_store(static_cast<int32_t*>(node.pointer[0]) + piece * kLanes, totals[0][0]);
  if (piece == 0)
    *static_cast<int64_t*>(node.pointer[3]) = node.size[0] * kTileRows * kTilePanels * kLanes * kGroups * kGroup;
}

void run_float(const Node& node, const Step&, int64_t piece, Scratch& scratch) {
  float* acc = reinterpret_cast<float*>(scratch.data);
  std::memset(acc, 0, sizeof(float) * kFloatTileRows * kStripColumns);
  ProductCall call{};
  call.x = static_cast<const uint8_t*>(node.pointer[2]);
  call.x_row_bytes = kFloatK * sizeof(float);
  const float* strips[kFloatTilePanels];
  for (int p = 0; p < kFloatTilePanels; ++p) {
    strips[p] = static_cast<const float*>(node.pointer[1]) + p * kFloatK * kLanes;
  }
  for (int64_t turn = 0; turn < node.size[0]; ++turn) {
    float_tile<kFloatTileRows, kFloatTilePanels>(call, strips, 0, kFloatK, 0, acc);
  }
  f32_store(static_cast<float*>(node.pointer[0]) + piece * kLanes, f32_load(acc));
  if (piece == 0)
    *static_cast<int64_t*>(node.pointer[3]) = node.size[0] * kFloatTileRows * kFloatTilePanels * kLanes * kFloatK;
}

const KernelEntry kEntries[] = {{"peak.float", run_float, pieces}, {"peak.integer", run_integer, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(peak, pelton::PELTON_LEVEL::kEntries)
