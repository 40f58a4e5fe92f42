// Products of float32 rows with f32, f16 and bf16 weights.
//
//   per row and output lane: acc = fma(x[k], w[k], acc), k = 0, 1, 2, ... in one chain
//
// Latency is covered by rows and panels: 2 panels of one row are 2 chains, 8 cycles for the 256 bytes (f32) or 128
// bytes (f16, bf16) of weights of 2 K, which is more than one core reads from memory. A full tile of 8 rows and 2
// panels has 16 chains, the latency of 4 cycles times 2 operations a cycle twice over.
#pragma once

#include "linear_integer.h"

namespace pelton::PELTON_LEVEL {
namespace {

inline constexpr int kFloatChunk = 64;  // K values of a strip: 4 KiB per panel
inline constexpr int kFloatTileRows = 2 * kTileRows;
static_assert(kFloatChunk * kLanes * sizeof(float) * kStripPanels <= kStripBytes, "strips fit their memory");

// A chunk of a panel as float32, [count][16]: where it lies, or expanded into `strip`.
template <Format kFormat>
PELTON_INLINE const float* expand_floats(const uint8_t* panel, int64_t first, int count, float* strip) {
  if constexpr (kFormat == Format::kF32) {
    return reinterpret_cast<const float*>(panel) + first * kLanes;
  } else {
    const uint16_t* source = reinterpret_cast<const uint16_t*>(panel) + first * kLanes;
    if constexpr (kFormat == Format::kF16) {
      for (int k = 0; k < count; ++k) f32_store(strip + k * kLanes, f32_load_f16(source + k * kLanes));
    } else {
      for (int k = 0; k < count; k += 2) {  // an odd count's last pair is there, with a zero
        F32 even, odd;
        f32_load_bf16_pairs(source + k * kLanes, even, odd);
        f32_store(strip + k * kLanes, even);
        f32_store(strip + (k + 1) * kLanes, odd);
      }
    }
    return strip;
  }
}

template <int kRows>
void float_tile(const ProductCall& call, const float* const* strips, int64_t first, int count, int row,
                float* acc_memory) {
  constexpr int kPanels = kStripPanels;
  F32 acc[kRows][kPanels];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = reinterpret_cast<const float*>(call.x + (row + r) * call.x_row_bytes) + first;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) acc[r][p] = f32_load(acc_memory + r * kStripColumns + p * kLanes);
  }
  for (int k = 0; k < count; ++k) {
    F32 w[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) w[p] = f32_load(strips[p] + k * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 value = f32_set(x[r][k]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = fma(value, w[p], acc[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) f32_store(acc_memory + r * kStripColumns + p * kLanes, acc[r][p]);
  }
}

template <Format kFormat>
void float_product(const ProductCall& call) {
  float* memory = reinterpret_cast<float*>(call.strips);
  std::memset(call.acc, 0, sizeof(float) * kStripColumns * static_cast<size_t>(call.rows));
  for (int64_t first = 0; first < call.k; first += kFloatChunk) {
    const int count = static_cast<int>(call.k - first < kFloatChunk ? call.k - first : kFloatChunk);
    const float* strips[kStripPanels];
    for (int p = 0; p < kStripPanels; ++p) {
      const int panel = p < call.num_panels ? p : 0;  // as in integer_product
      strips[p] = expand_floats<kFormat>(call.panels + panel * call.panel_bytes, first, count,
                                         memory + p * kFloatChunk * kLanes);
    }
    int row = 0;
    for (; row + kFloatTileRows <= call.rows; row += kFloatTileRows) {
      float_tile<kFloatTileRows>(call, strips, first, count, row, call.acc + row * kStripColumns);
    }
    for (; row < call.rows; ++row) float_tile<1>(call, strips, first, count, row, call.acc + row * kStripColumns);
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
