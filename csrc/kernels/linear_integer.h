// Products of quantised activations with integer weight formats.
//
//   per row, output lane and group of 32 K (or half of it, where a scale covers 16):
//       n   = sum over K of code * q - zero * sum(q)                    exact, 32 bits; q = lo + 128 * hi
//       acc = fma(float(n) * x_scale, w_scale, acc)
//       acc = fma(w_min, x_scale * sum(q), acc)                         formats with a minimum
//
// in K order, whatever the number of rows and however they are cut. The one-row product is the tile of one row.
//
// Cost of a group for one (row, panel) at the 4-bit AVX-512BW tile, in operations of the two vector ports: 8
// vpmaddubsw, 7 vpaddw, 1 vpmaddwd; outlier quad 3; conversion and scaling 3; minimum 1; zero point 2. 23 to 25 for 512
// products, or 41 to 45 products a cycle. With VNNI: 9 vpdpbusd and 4 to 6 others.
// 8-bit codes without VNNI take the wide form: 16 vpmaddwd, 16 vpaddd, 3 others. Other exact ways are no shorter:
// vpmaddubsw of |code| and x with the code's sign wants a vpmaddwd and a vpaddd for every quad, since two sums of it
// overflow; two nibbles want every instruction of the narrow form twice.
#pragma once

#include "activation_blocks.h"
#include "linear_strip.h"

namespace pelton::PELTON_LEVEL {
namespace {

// A call of a product: `rows` rows times up to kStripPanels panels.
struct ProductCall {
  const uint8_t* panels;
  int num_panels;
  int64_t panel_bytes;
  int64_t k;
  int rows;
  const uint8_t* x;  // blocks, or floats for the float formats
  int64_t x_row_bytes;
  const int16_t* wide;  // [rows][k] q, where the strip's kWide asks for it
  float* acc;           // [rows][kStripColumns], written
  uint8_t* strips;      // kStripBytes, 64-byte aligned
};
using ProductFn = void (*)(const ProductCall&);

inline constexpr int64_t kStripBytes = 32 << 10;

// q = lo + 128 * hi as 16-bit numbers, for Dot's wide form.
inline void widen_row(const uint8_t* blocks, int64_t k, int mode, int16_t* out) {
  for (int64_t g = 0; g < k / kGroup; ++g, out += kGroup) {
    if (mode == kModeExact) {
      const ExactBlock& block = reinterpret_cast<const ExactBlock*>(blocks)[g];
      widen_32(out, block.lo, block.hi);
    } else {
      const OutlierBlock& block = reinterpret_cast<const OutlierBlock*>(blocks)[g];
      widen_32(out, block.lo);
      for (int i = 0; i < 4; ++i) out[4 * block.hi_quad + i] += static_cast<int16_t>(128 * block.hi[i]);
    }
  }
}

// Of a power of two; 0 of 0.
constexpr int log2_of(int value) { return value <= 1 ? 0 : 1 + log2_of(value / 2); }

// The activations of a group.
template <bool kExact>
struct BlockOf {
  using Type = OutlierBlock;
};
template <>
struct BlockOf<true> {
  using Type = ExactBlock;
};

// The integer part of one half (or whole) group, for all rows and panels of the tile: added to sums[r][p] if kAdd, else
// written there.
template <class StripType, int kHalf, bool kAdd, int kRows, int kPanels>
PELTON_INLINE void dot_products(const StripType* strips, int g,
                                const typename BlockOf<StripType::kExact>::Type* const* blocks,
                                const int16_t* const* wide, I32 (&sums)[kRows][kPanels]) {
  using DotType = typename StripType::DotType;
  constexpr int kNumQuads = kQuads / StripType::kHalves;
  constexpr bool kTwoPasses = StripType::kExact && !StripType::kWide;
  DotType low[kRows][kPanels];
  if constexpr (kAdd && DotType::kAccumulates) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) low[r][p].start(sums[r][p]);
    }
  }
  DotType high[kTwoPasses ? kRows : 1][kTwoPasses ? kPanels : 1];
  unroll<kNumQuads>([&](auto index) PELTON_INLINE_LAMBDA {
    constexpr int kQuad = decltype(index)::value;
    constexpr int kOffset = kHalf * kNumQuads + kQuad;
    typename DotType::Codes codes[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) codes[p] = DotType::load(strips[p].codes[g][kOffset]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const void* quad = blocks[r]->lo + 4 * kOffset;
      if constexpr (StripType::kWide) quad = wide[r] + g * kGroup + 4 * kOffset;
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        low[r][p].template add<kQuad, kNumQuads>(codes[p], quad);
        if constexpr (kTwoPasses) high[r][p].template add<kQuad, kNumQuads>(codes[p], blocks[r]->hi + 4 * kOffset);
      }
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      sums[r][p] = kAdd && !DotType::kAccumulates ? add(sums[r][p], low[r][p].sum()) : low[r][p].sum();
      if constexpr (kTwoPasses) sums[r][p] = add(sums[r][p], i32_shl(high[r][p].sum(), 7));
    }
  }
}

// 128 times the dot product of the outlier quads.
template <class StripType, int kRows, int kPanels>
PELTON_INLINE void outlier_products(const StripType* strips, int g, const OutlierBlock* const* blocks,
                                    I32 (&sums)[kRows][kPanels]) {
  using DotType = typename StripType::DotType;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      const uint8_t* codes = strips[p].codes[g][0] + blocks[r]->hi_quad * int64_t{DotType::kCodeBytes};
      sums[r][p] = DotType::quad_times_128(DotType::load(codes), blocks[r]->hi);
    }
  }
}

// One group's contribution to the row sums.
template <class StripType, int kRows, int kPanels>
PELTON_INLINE void add_group(const StripType* strips, int g,
                             const typename BlockOf<StripType::kExact>::Type* const* blocks, const int16_t* const* wide,
                             F32 (&acc)[kRows][kPanels]) {
  constexpr int kHalves = StripType::kHalves;
  constexpr bool kOutlier = !StripType::kExact && !StripType::kWide;
  // Where products add to what is there, the outlier's come first. Elsewhere they would hold registers meanwhile.
  constexpr bool kOutlierFirst = kOutlier && (kHalves == 2 || StripType::DotType::kAccumulates);
  I32 outlier[kRows][kPanels];
  if constexpr (kOutlierFirst) outlier_products(strips, g, blocks, outlier);
  unroll<kHalves>([&](auto index) PELTON_INLINE_LAMBDA {
    constexpr int kHalf = decltype(index)::value;
    I32 sums[kRows][kPanels];
    if constexpr (kOutlierFirst) {
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const I32 in_first = i32_set(blocks[r]->hi_first_half);
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          sums[r][p] = outlier[r][p];
          if constexpr (kHalves == 2) {
            sums[r][p] = kHalf == 0 ? i32_and(in_first, outlier[r][p]) : i32_andnot(in_first, outlier[r][p]);
          }
        }
      }
    }
    dot_products<StripType, kHalf, kOutlierFirst>(strips, g, blocks, wide, sums);
    if constexpr (kOutlier && !kOutlierFirst) outlier_products(strips, g, blocks, outlier);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const GroupFacts& facts = blocks[r]->facts;
      const F32 x_scale = f32_set(facts.scale);
      const I32 x_sum = i32_set(kHalves == 1 ? facts.sum : facts.half_sum[kHalf]);
      const F32 x_scaled_sum = kHalves == 1 ? f32_set(facts.scaled_sum) : mul(f32_from_i32(x_sum), x_scale);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        I32 n = sums[r][p];
        if constexpr (kOutlier && !kOutlierFirst) n = add(n, outlier[r][p]);
        if constexpr (StripType::kZero != 0) n = sub(n, i32_shl(x_sum, log2_of(StripType::kZero)));
        acc[r][p] = fma(mul(f32_from_i32(n), x_scale), f32_load(strips[p].scale[g][kHalf]), acc[r][p]);
        if constexpr (StripType::kHasMin) acc[r][p] = fma(f32_load(strips[p].min[g][kHalf]), x_scaled_sum, acc[r][p]);
      }
    }
  });
}

// Rows [row, row + kRows) times one chunk of kPanels panels, strips[0] on.
template <class StripType, int kRows, int kPanels>
void integer_tile(const ProductCall& call, const StripType* strips, int64_t first_group, int num_groups, int row,
                  float* acc_memory) {
  using Block = typename BlockOf<StripType::kExact>::Type;
  F32 acc[kRows][kPanels];
  const Block* blocks[kRows];
  const int16_t* wide[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    blocks[r] = reinterpret_cast<const Block*>(call.x + (row + r) * call.x_row_bytes) + first_group;
    if constexpr (StripType::kWide) wide[r] = call.wide + (row + r) * call.k + first_group * kGroup;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) acc[r][p] = f32_load(acc_memory + r * kStripColumns + p * kLanes);
  }
  for (int g = 0; g < num_groups; ++g) {
    add_group<StripType>(strips, g, blocks, wide, acc);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) ++blocks[r];
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) f32_store(acc_memory + r * kStripColumns + p * kLanes, acc[r][p]);
  }
}

// All rows times one chunk of kTilePanels panels, in tiles of kTileRows rows and of one.
template <class StripType>
void integer_rows(const ProductCall& call, const StripType* strips, int64_t first_group, int num_groups, float* acc) {
  int row = 0;
  for (; row + kTileRows <= call.rows; row += kTileRows) {
    integer_tile<StripType, kTileRows, kTilePanels>(call, strips, first_group, num_groups, row,
                                                    acc + row * kStripColumns);
  }
  for (; row < call.rows; ++row) {
    integer_tile<StripType, 1, kTilePanels>(call, strips, first_group, num_groups, row, acc + row * kStripColumns);
  }
}

template <class Layout, bool kExact>
void integer_product(const ProductCall& call) {
  using StripType = StripOf<Layout, kExact>;
  static_assert(sizeof(StripType) * kStripPanels <= kStripBytes, "strips fit their memory");
  StripType* strips = reinterpret_cast<StripType*>(call.strips);
  std::memset(call.acc, 0, sizeof(float) * kStripColumns * static_cast<size_t>(call.rows));
  const int64_t num_groups = call.k / kGroup;
  constexpr int64_t kChunkBytes = kChunkGroups / Layout::kUnitGroups * Layout::kUnitBytes;
  for (int64_t first = 0; first < num_groups; first += kChunkGroups) {
    const int count = static_cast<int>(num_groups - first < kChunkGroups ? num_groups - first : kChunkGroups);
    const bool last = first + kChunkGroups >= num_groups;
    const int64_t begin = first / Layout::kUnitGroups * Layout::kUnitBytes;
    const int64_t ahead = last ? kStripPanels * call.panel_bytes - begin : kChunkBytes;
    // A last panel without a neighbour takes the place of both: fewer kinds of tiles, and no weights that aren't there.
    for (int p = 0; p < kStripPanels; ++p) {
      const int panel = p < call.num_panels ? p : 0;
      expand_chunk<Layout>(call.panels + panel * call.panel_bytes, first, count, ahead, strips[p]);
    }
    for (int p = 0; p < kStripPanels; p += kTilePanels) {
      integer_rows(call, strips + p, first, count, call.acc + p * kLanes);
    }
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
