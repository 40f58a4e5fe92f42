// Quantised activations: what a linear product of an integer format reads, and how rows of floats become it.
//
// A row of K values is K / 32 blocks. In a block, value = scale * q and q = lo + 128 * hi, lo in [-127, 127].
//   outlier  the aligned quad that holds the largest magnitude (the first such quad) has 15-bit q: lo in [-64, 63],
//            hi in [-127, 127]. The other 28 values have hi = 0. scale = max(max|the 28| / 127, max|quad| / 16319).
//   exact    all 32 values are of 15 bits. scale = max|x| / 16319.      (16319 = 127 * 128 + 63)
// q = x * (1 / scale), rounded half to even. A group whose scale is below the smallest normal float counts as zeros
// (scale 0). A group with a NaN or an infinity has scale NaN and q = 0, so that every product of its row is NaN.
// All of it depends on the row alone, and has the same bits on every level.
#pragma once

#include <cstring>

#include "../formats.h"
#include "../vec/vec.h"

namespace pelton {

inline constexpr int kModeNone = 0;  // rows of float32
inline constexpr int kModeOutlier = 1;
inline constexpr int kModeExact = 2;

// What the float side of a product needs of a group.
struct GroupFacts {
  float scale;
  float scaled_sum;     // scale * sum
  int32_t sum;          // of the 32 q
  int32_t half_sum[2];  // of q[0..16), q[16..32)
};

struct OutlierBlock {
  int8_t lo[32];
  int8_t hi[4];
  int32_t hi_quad;        // 0 .. 7
  int32_t hi_first_half;  // -1 if hi_quad is in the first 16 values, else 0: a mask
  GroupFacts facts;
};
static_assert(sizeof(OutlierBlock) == 64, "one cache line");

struct ExactBlock {
  int8_t lo[32];
  int8_t hi[32];
  GroupFacts facts;
  uint8_t unused[44];
};
static_assert(sizeof(ExactBlock) == 128, "two cache lines");

namespace {

[[maybe_unused]] constexpr int64_t activation_block_bytes(int mode) {
  return mode == kModeExact ? sizeof(ExactBlock) : sizeof(OutlierBlock);
}
[[maybe_unused]] constexpr int64_t activation_row_bytes(int64_t columns, int mode) {
  return columns / kGroup * activation_block_bytes(mode);
}

}  // namespace

namespace PELTON_LEVEL {
namespace {

inline constexpr float kSmallestScale = 0x1p-126f;
inline constexpr float kMaxLow = 127.0f;
inline constexpr float kMaxWide = 16319.0f;

// Magnitudes of a group of 32.
struct GroupMagnitudes {
  F32 quads0, quads1;  // each lane: the largest magnitude of its quad
  F32 largest;         // of all quads, in every lane
  F32 second;          // of all quads but one that holds the largest
  bool finite;
};

PELTON_INLINE GroupMagnitudes group_magnitudes(F32 x0, F32 x1) {
  const F32 quads0 = f32_quad_max(abs(x0)), quads1 = f32_quad_max(abs(x1));
  // The two largest of 2, of 4, of all 8 quads: a tournament that also keeps the runner-up.
  F32 largest = max(quads0, quads1), second = min(quads0, quads1);
  const auto play = [&](F32 other_largest, F32 other_second) PELTON_INLINE_LAMBDA {
    second = max(min(largest, other_largest), max(second, other_second));
    largest = max(largest, other_largest);
  };
  play(f32_swap_quads<1>(largest), f32_swap_quads<1>(second));
  play(f32_swap_quads<2>(largest), f32_swap_quads<2>(second));
  const F32 zero = f32_zero();
  const F32 zero_or_nan = fma(x0, zero, mul(x1, zero));  // NaN where x is NaN or infinite
  return {quads0, quads1, largest, second, f32_equal(zero_or_nan, zero_or_nan) == 0xffffu};
}

// False if the group has no q: all zero, or not finite. Then `facts` is final, else it is facts.scale.
PELTON_INLINE bool usable_scale(float scale, bool finite, GroupFacts& facts) {
  std::memset(&facts, 0, sizeof(facts));
  if (!finite) {
    facts.scale = facts.scaled_sum = __builtin_nanf("");
    return false;
  }
  if (!(scale >= kSmallestScale)) return false;
  facts.scale = scale;
  return true;
}

PELTON_INLINE void store_sums(I32 q0, I32 q1, GroupFacts& facts) {
  facts.half_sum[0] = i32_reduce_add(q0);
  facts.half_sum[1] = i32_reduce_add(q1);
  facts.sum = facts.half_sum[0] + facts.half_sum[1];
  facts.scaled_sum = facts.scale * static_cast<float>(facts.sum);
}

// q >> 7 rounded so that q - 128 * upper(q) lies in [-64, 63].
PELTON_INLINE I32 upper_part(I32 q) { return i32_shr(add(q, i32_set(64)), 7); }

PELTON_INLINE void quantise_outlier(const float* x, OutlierBlock& block) {
  const F32 x0 = f32_load(x), x1 = f32_load(x + 16);
  const GroupMagnitudes m = group_magnitudes(x0, x1);
  const uint32_t holders = f32_equal(m.quads0, m.largest) | f32_equal(m.quads1, m.largest) << 16 | 1u << 31;
  const int quad = __builtin_ctz(holders) / 4;
  const float scale_low = f32_first(m.second) / kMaxLow, scale_wide = f32_first(m.largest) / kMaxWide;
  const float scale = scale_low > scale_wide ? scale_low : scale_wide;

  std::memset(block.hi, 0, sizeof(block.hi));
  block.hi_quad = quad;
  block.hi_first_half = quad < 4 ? -1 : 0;
  if (!usable_scale(scale, m.finite, block.facts)) {
    std::memset(block.lo, 0, sizeof(block.lo));
    return;
  }
  const F32 inverse = f32_set(1.0f / scale);
  const I32 q0 = i32_from_f32(mul(x0, inverse)), q1 = i32_from_f32(mul(x1, inverse));
  store_sums(q0, q1, block.facts);
  const uint32_t quad_lanes = 15u << 4 * quad;
  const auto upper_of_quad = [](I32 q, uint32_t lanes) PELTON_INLINE_LAMBDA {
    return bits_from_f32(f32_select(lanes, f32_from_bits(upper_part(q)), f32_zero()));
  };
  const I32 upper0 = upper_of_quad(q0, quad_lanes & 0xffffu), upper1 = upper_of_quad(q1, quad_lanes >> 16);
  i32_store_i8(block.lo, sub(q0, i32_shl(upper0, 7)));
  i32_store_i8(block.lo + 16, sub(q1, i32_shl(upper1, 7)));
  int8_t upper[32];
  i32_store_i8(upper, upper0);
  i32_store_i8(upper + 16, upper1);
  std::memcpy(block.hi, upper + 4 * quad, sizeof(block.hi));
}

PELTON_INLINE void quantise_exact(const float* x, ExactBlock& block) {
  const F32 x0 = f32_load(x), x1 = f32_load(x + 16);
  const GroupMagnitudes m = group_magnitudes(x0, x1);
  const float scale = f32_first(m.largest) / kMaxWide;
  std::memset(block.unused, 0, sizeof(block.unused));
  if (!usable_scale(scale, m.finite, block.facts)) {
    std::memset(block.lo, 0, sizeof(block.lo) + sizeof(block.hi));
    return;
  }
  const F32 inverse = f32_set(1.0f / scale);
  const I32 q0 = i32_from_f32(mul(x0, inverse)), q1 = i32_from_f32(mul(x1, inverse));
  store_sums(q0, q1, block.facts);
  const I32 upper0 = upper_part(q0), upper1 = upper_part(q1);
  i32_store_i8(block.hi, upper0);
  i32_store_i8(block.hi + 16, upper1);
  i32_store_i8(block.lo, sub(q0, i32_shl(upper0, 7)));
  i32_store_i8(block.lo + 16, sub(q1, i32_shl(upper1, 7)));
}

// x: `columns` floats, a multiple of 32. blocks: columns / 32 blocks of `mode` (kModeOutlier or kModeExact).
inline void quantise_row(const float* x, int64_t columns, int mode, uint8_t* blocks) {
  if (mode == kModeExact) {
    ExactBlock* out = reinterpret_cast<ExactBlock*>(blocks);
    for (int64_t k = 0; k < columns; k += kGroup) quantise_exact(x + k, *out++);
  } else {
    OutlierBlock* out = reinterpret_cast<OutlierBlock*>(blocks);
    for (int64_t k = 0; k < columns; k += kGroup) quantise_outlier(x + k, *out++);
  }
}

}  // namespace
}  // namespace PELTON_LEVEL
}  // namespace pelton
