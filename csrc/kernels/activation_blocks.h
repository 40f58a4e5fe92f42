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

// Groups that are quantised together: one lane of a quad each, so that the search for largest values and the divisions
// are done once for four.
inline constexpr int kGroupsAtOnce = 4;

// Magnitudes of four groups, as bits of floats: those of numbers are ordered like the numbers, and below those of
// infinities and NaNs.
struct GroupMagnitudes {
  I32 quads[2];  // lane 4j + i: the largest of group i's quad j, of its quad 4 + j
  I32 largest;   // lane 4j + i: of all quads of group i
  I32 second;    // likewise, of all quads but one that holds the largest
};

PELTON_INLINE GroupMagnitudes group_magnitudes(const float* const (&x)[kGroupsAtOnce]) {
  GroupMagnitudes m;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    const auto magnitudes = [&](int i) PELTON_INLINE_LAMBDA { return bits_from_f32(abs(f32_load(x[i] + 16 * half))); };
    m.quads[half] = i32_quad_maxima(magnitudes(0), magnitudes(1), magnitudes(2), magnitudes(3));
  }
  // The two largest of 2, of 4, of all 8 quads: a tournament that also keeps the runner-up.
  m.largest = max(m.quads[0], m.quads[1]), m.second = min(m.quads[0], m.quads[1]);
  const auto play = [&](I32 other_largest, I32 other_second) PELTON_INLINE_LAMBDA {
    m.second = max(min(m.largest, other_largest), max(m.second, other_second));
    m.largest = max(m.largest, other_largest);
  };
  play(i32_swap_quads<1>(m.largest), i32_swap_quads<1>(m.second));
  play(i32_swap_quads<2>(m.largest), i32_swap_quads<2>(m.second));
  return m;
}

// Of four groups. A group without q, all zero or not finite, has inverse 0; the latter has scale NaN.
struct GroupScales {
  Float4 scale, inverse;
  Int4 finite;  // all ones or zero
};

PELTON_INLINE GroupScales group_scales(Float4 scale, Int4 largest_bits) {
  const Int4 finite = largest_bits < Int4{} + 0x7f800000;
  const Int4 usable = finite & (scale >= Float4{} + kSmallestScale);
  const Float4 nan = Float4{} + __builtin_nanf("");
  return {finite ? (usable ? scale : Float4{}) : nan, usable ? 1.0f / scale : Float4{}, finite};
}

// q0, q1: numbers of 15 bits.
PELTON_INLINE void store_facts(float scale, I32 q0, I32 q1, GroupFacts& facts) {
  i32_store_sums(facts.half_sum, q0, q1);
  facts.sum = facts.half_sum[0] + facts.half_sum[1];
  facts.scale = scale;
  facts.scaled_sum = scale * static_cast<float>(facts.sum);
}

template <class Block>
PELTON_INLINE void store_not_finite(Block& block) {
  std::memset(&block, 0, sizeof(block));
  block.facts.scale = block.facts.scaled_sum = __builtin_nanf("");
}

// q >> 7 rounded so that q - 128 * upper(q) lies in [-64, 63].
PELTON_INLINE I32 upper_part(I32 q) { return i32_shr(add(q, i32_set(64)), 7); }

// Groups x[0], x[1], ... x[count - 1]; the pointers behind them repeat one of these. Block i is at blocks + i * stride.
PELTON_INLINE void quantise_outlier(const float* const (&x)[kGroupsAtOnce], int count, uint8_t* blocks,
                                    int64_t stride) {
  const GroupMagnitudes m = group_magnitudes(x);
  const Int4 largest_bits = i32_first_quad(m.largest);
  const Float4 low = reinterpret_cast<Float4>(i32_first_quad(m.second)) / kMaxLow;
  const Float4 wide = reinterpret_cast<Float4>(largest_bits) / kMaxWide;
  const GroupScales scales = group_scales(low > wide ? low : wide, largest_bits);
  const uint32_t holders = i32_equal(m.quads[0], m.largest) | i32_equal(m.quads[1], m.largest) << 16;
  int quads[kGroupsAtOnce];
#pragma GCC unroll 4
  for (int i = 0; i < kGroupsAtOnce; ++i) quads[i] = __builtin_ctz((holders >> i & 0x11111111u) | 1u << 31) / 4;

  // The outlier quads of all four groups are one vector.
  const F32 outliers =
      f32_load_quads(x[0] + 4 * quads[0], x[1] + 4 * quads[1], x[2] + 4 * quads[2], x[3] + 4 * quads[3]);
  const I32 q = i32_from_f32(mul(outliers, f32_spread(scales.inverse)));
  const I32 upper = upper_part(q);
  int8_t parts[2][16];
  i32_store_bytes(parts[0], sub(q, i32_shl(upper, 7)), upper);
  for (int i = 0; i < count; ++i, blocks += stride) {
    OutlierBlock& block = *reinterpret_cast<OutlierBlock*>(blocks);
    if (scales.finite[i] == 0) {
      store_not_finite(block);
      continue;
    }
    const F32 inverse = f32_set(scales.inverse[i]);
    const I32 q0 = i32_from_f32(mul(f32_load(x[i]), inverse)), q1 = i32_from_f32(mul(f32_load(x[i] + 16), inverse));
    i32_store_bytes(block.lo, q0, q1);
    std::memcpy(block.lo + 4 * quads[i], parts[0] + 4 * i, 4);
    std::memcpy(block.hi, parts[1] + 4 * i, 4);
    block.hi_quad = quads[i];
    block.hi_first_half = quads[i] < 4 ? -1 : 0;
    store_facts(scales.scale[i], q0, q1, block.facts);
  }
}

PELTON_INLINE void quantise_exact(const float* const (&x)[kGroupsAtOnce], int count, uint8_t* blocks, int64_t stride) {
  const Int4 largest_bits = i32_first_quad(group_magnitudes(x).largest);
  const GroupScales scales = group_scales(reinterpret_cast<Float4>(largest_bits) / kMaxWide, largest_bits);
  for (int i = 0; i < count; ++i, blocks += stride) {
    ExactBlock& block = *reinterpret_cast<ExactBlock*>(blocks);
    if (scales.finite[i] == 0) {
      store_not_finite(block);
      continue;
    }
    const F32 inverse = f32_set(scales.inverse[i]);
    const I32 q0 = i32_from_f32(mul(f32_load(x[i]), inverse)), q1 = i32_from_f32(mul(f32_load(x[i] + 16), inverse));
    const I32 upper0 = upper_part(q0), upper1 = upper_part(q1);
    i32_store_bytes(block.hi, upper0, upper1);
    i32_store_bytes(block.lo, sub(q0, i32_shl(upper0, 7)), sub(q1, i32_shl(upper1, 7)));
    std::memset(block.unused, 0, sizeof(block.unused));
    store_facts(scales.scale[i], q0, q1, block.facts);
  }
}

// `count` groups of 32 floats, x_stride apart, become blocks of `mode` (kModeOutlier or kModeExact), `stride` bytes
// apart.
inline void quantise_groups(const float* x, int64_t x_stride, int64_t count, int mode, uint8_t* blocks,
                            int64_t stride) {
  for (int64_t first = 0; first < count; first += kGroupsAtOnce) {
    const int here = static_cast<int>(count - first < kGroupsAtOnce ? count - first : kGroupsAtOnce);
    const float* groups[kGroupsAtOnce];
#pragma GCC unroll 4
    for (int i = 0; i < kGroupsAtOnce; ++i) groups[i] = x + (first + (i < here ? i : 0)) * x_stride;
    if (mode == kModeExact) {
      quantise_exact(groups, here, blocks + first * stride, stride);
    } else {
      quantise_outlier(groups, here, blocks + first * stride, stride);
    }
  }
}

// x: `columns` floats, a multiple of 32. blocks: columns / 32 blocks of `mode`.
inline void quantise_row(const float* x, int64_t columns, int mode, uint8_t* blocks) {
  quantise_groups(x, kGroup, columns / kGroup, mode, blocks, activation_block_bytes(mode));
}

}  // namespace
}  // namespace PELTON_LEVEL
}  // namespace pelton
