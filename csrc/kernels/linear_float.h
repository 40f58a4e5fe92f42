// Products of float32 rows with f32, f16 and bf16 weights.
//
//   per row and output lane: acc = fma(x[k], w[k], acc), k = 0, 1, 2, ... in one chain
//
// Many rows: a chunk of K is expanded to float32 once (`expand_floats`) and met by tiles of kFloatTileRows rows and
// kFloatTilePanels panels. With AVX-512, 8 rows and 2 panels are 16 chains, the latency of 4 cycles times 2 operations
// a cycle twice over; a K takes 2 loads of weights, 8 broadcasts and 16 fma, which bound it. With AVX2, 3 rows and 2
// panels are 12 chains in 12 of 16 registers; a K takes 3 broadcasts, 4 to 6 loads and 12 fma.
// One row (`float_row`): weights become float32 in registers. 2 panels are 2 chains, 8 cycles for the 256 bytes (f32)
// or 128 bytes (f16, bf16) of weights of 2 K, which is more than one core reads from memory.
#pragma once

#include "linear_integer.h"

namespace pelton::PELTON_LEVEL {
namespace {

inline constexpr int kFloatChunk = 64;  // K values of a strip: 4 KiB per panel
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

template <int kRows, int kPanels>
void float_tile(const ProductCall& call, const float* const* strips, int64_t first, int count, int row,
                float* acc_memory) {
  F32 acc[kRows][kPanels];
  const float* x[kRows];
  const float* w[kPanels];
#pragma GCC unroll 8
  for (int p = 0; p < kPanels; ++p) w[p] = strips[p];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    x[r] = reinterpret_cast<const float*>(call.x + (row + r) * call.x_row_bytes) + first;
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) acc[r][p] = f32_load(acc_memory + r * kStripColumns + p * kLanes);
  }
  const auto step = [&](int64_t k) PELTON_INLINE_LAMBDA {
    F32 weights[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) weights[p] = f32_load(w[p] + k * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F32 value = f32_set(x[r][k]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = fma(value, weights[p], acc[r][p]);
    }
  };
  int64_t k = 0;
  for (; k + 4 <= count; k += 4) {
    step(k), step(k + 1), step(k + 2), step(k + 3);
  }
  for (; k < count; ++k) step(k);
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) f32_store(acc_memory + r * kStripColumns + p * kLanes, acc[r][p]);
  }
}

// Rows from `row` on: tiles of kRows, what is left in tiles of half as many, and so on.
template <int kRows>
void float_rows(const ProductCall& call, const float* const* strips, int64_t first, int count, int row) {
  constexpr int kPanels = kRows == 1 ? kStripPanels : kFloatTilePanels;
  for (; row + kRows <= call.rows; row += kRows) {
    for (int p = 0; p < kStripPanels; p += kPanels) {
      float_tile<kRows, kPanels>(call, strips + p, first, count, row, call.acc + row * kStripColumns + p * kLanes);
    }
  }
  if constexpr (kRows > 1) float_rows<kRows / 2>(call, strips, first, count, row);
}

// Weights of K values k and k + 1 of a panel; k is even.
template <Format kFormat>
PELTON_INLINE void load_floats(const uint8_t* panel, int64_t k, F32& even, F32& odd) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel) + k * kLanes;
  if constexpr (kFormat == Format::kBf16) f32_load_bf16_pairs(halves, even, odd);
  if constexpr (kFormat == Format::kF16) even = f32_load_f16(halves), odd = f32_load_f16(halves + kLanes);
  if constexpr (kFormat == Format::kF32) {
    const float* floats = reinterpret_cast<const float*>(panel) + k * kLanes;
    even = f32_load(floats), odd = f32_load(floats + kLanes);
  }
}

template <Format kFormat>
void float_row(const ProductCall& call) {
  const uint8_t* panels[kStripPanels];
  F32 acc[kStripPanels];
  for (int p = 0; p < kStripPanels; ++p) {
    panels[p] = call.panels + (p < call.num_panels ? p : 0) * call.panel_bytes;  // as in integer_product
    acc[p] = f32_zero();
  }
  const float* x = reinterpret_cast<const float*>(call.x);
  for (int64_t k = 0; k + 1 < call.k; k += 2) {
    const F32 x0 = f32_set(x[k]), x1 = f32_set(x[k + 1]);
#pragma GCC unroll 8
    for (int p = 0; p < kStripPanels; ++p) {
      F32 even, odd;
      load_floats<kFormat>(panels[p], k, even, odd);
      acc[p] = fma(x1, odd, fma(x0, even, acc[p]));
    }
  }
  for (int p = 0; p < kStripPanels; ++p) {
    if (call.k % 2 != 0) {
      float last[2 * kLanes];  // the odd K, if there is room for it, is a zero
      const float* w = expand_floats<kFormat>(panels[p], call.k - 1, 1, last);
      acc[p] = fma(f32_set(x[call.k - 1]), f32_load(w), acc[p]);
    }
    f32_store(call.acc + p * kLanes, acc[p]);
  }
}

template <Format kFormat>
void float_product(const ProductCall& call) {
  if (call.rows == 1) return float_row<kFormat>(call);
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
    float_rows<kFloatTileRows>(call, strips, first, count, 0);
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
