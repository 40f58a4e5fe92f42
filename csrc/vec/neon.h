// The vocabulary on AArch64 NEON: four q registers per vector; with SDOT where the compiler's flags have it.
#pragma once

#include <arm_neon.h>

namespace pelton::PELTON_LEVEL {
namespace {

struct F32 {
  float32x4_t v[4];
};
struct I32 {
  int32x4_t v[4];
};
struct U8 {
  uint8x16_t v[4];
};

#define PELTON_PARTS(type, expression)                                         \
  type out;                                                                    \
  _Pragma("GCC unroll 4") for (int i = 0; i < 4; ++i) out.v[i] = (expression); \
  return out

PELTON_INLINE F32 f32_load(const float* p) { PELTON_PARTS(F32, vld1q_f32(p + 4 * i)); }
PELTON_INLINE void f32_store(float* p, F32 a) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
PELTON_INLINE F32 f32_set(float value) { PELTON_PARTS(F32, vdupq_n_f32(value)); }
PELTON_INLINE F32 f32_zero() { return f32_set(0.0f); }
PELTON_INLINE F32 f32_load_partial(const float* p, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; ++i) lanes[i] = p[i];
  return f32_load(lanes);
}
PELTON_INLINE void f32_store_partial(float* p, F32 a, int n) {
  float lanes[16];
  f32_store(lanes, a);
  for (int i = 0; i < n; ++i) p[i] = lanes[i];
}
PELTON_INLINE F32 f32_load_f16(const uint16_t* p) {
  PELTON_PARTS(F32, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
PELTON_INLINE void f32_store_f16(uint16_t* p, F32 a) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i])));
}
PELTON_INLINE F32 f32_load_bf16(const uint16_t* p) {
  PELTON_PARTS(F32, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
PELTON_INLINE void f32_store_bf16(uint16_t* p, F32 a) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t bits = vreinterpretq_u32_f32(a.v[i]);
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
    const uint32x4_t number = vceqq_f32(a.v[i], a.v[i]);
    vst1_u16(p + 4 * i, vshrn_n_u32(vbslq_u32(number, rounded, quiet), 16));
  }
}
PELTON_INLINE void f32_load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    even.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
    odd.v[i] = vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000u)));
  }
}

PELTON_INLINE F32 add(F32 a, F32 b) { PELTON_PARTS(F32, vaddq_f32(a.v[i], b.v[i])); }
PELTON_INLINE F32 sub(F32 a, F32 b) { PELTON_PARTS(F32, vsubq_f32(a.v[i], b.v[i])); }
PELTON_INLINE F32 mul(F32 a, F32 b) { PELTON_PARTS(F32, vmulq_f32(a.v[i], b.v[i])); }
PELTON_INLINE F32 div(F32 a, F32 b) { PELTON_PARTS(F32, vdivq_f32(a.v[i], b.v[i])); }
// Not vmaxq: it would return NaN where the vocabulary wants b.
PELTON_INLINE float32x4_t max_or_second(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
PELTON_INLINE F32 max(F32 a, F32 b) { PELTON_PARTS(F32, max_or_second(a.v[i], b.v[i])); }
PELTON_INLINE F32 min(F32 a, F32 b) { PELTON_PARTS(F32, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i])); }
PELTON_INLINE F32 abs(F32 a) { PELTON_PARTS(F32, vabsq_f32(a.v[i])); }
PELTON_INLINE F32 fma(F32 a, F32 b, F32 c) { PELTON_PARTS(F32, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }

PELTON_INLINE F32 f32_from_i32(I32 a) { PELTON_PARTS(F32, vcvtq_f32_s32(a.v[i])); }
PELTON_INLINE I32 i32_from_f32(F32 a) { PELTON_PARTS(I32, vcvtnq_s32_f32(a.v[i])); }
PELTON_INLINE F32 f32_from_bits(I32 a) { PELTON_PARTS(F32, vreinterpretq_f32_s32(a.v[i])); }
PELTON_INLINE I32 bits_from_f32(F32 a) { PELTON_PARTS(I32, vreinterpretq_s32_f32(a.v[i])); }
PELTON_INLINE F32 f32_load_quads(const float* q0, const float* q1, const float* q2, const float* q3) {
  return {{vld1q_f32(q0), vld1q_f32(q1), vld1q_f32(q2), vld1q_f32(q3)}};
}
PELTON_INLINE F32 f32_spread(Float4 x) { PELTON_PARTS(F32, vdupq_n_f32(x[i])); }
PELTON_INLINE float f32_reduce_add(F32 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
PELTON_INLINE float f32_reduce_max(F32 a) {
  const float32x4_t four = max_or_second(max_or_second(a.v[0], a.v[2]), max_or_second(a.v[1], a.v[3]));
  const float32x4_t two = max_or_second(four, vextq_f32(four, four, 2));
  const float low = vgetq_lane_f32(two, 0), high = vgetq_lane_f32(two, 1);
  return low > high ? low : high;
}

PELTON_INLINE I32 i32_load(const int32_t* p) { PELTON_PARTS(I32, vld1q_s32(p + 4 * i)); }
PELTON_INLINE void i32_store(int32_t* p, I32 a) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.v[i]);
}
PELTON_INLINE I32 i32_set(int32_t value) { PELTON_PARTS(I32, vdupq_n_s32(value)); }
PELTON_INLINE I32 i32_zero() { return i32_set(0); }
PELTON_INLINE I32 add(I32 a, I32 b) { PELTON_PARTS(I32, vaddq_s32(a.v[i], b.v[i])); }
PELTON_INLINE I32 sub(I32 a, I32 b) { PELTON_PARTS(I32, vsubq_s32(a.v[i], b.v[i])); }
PELTON_INLINE I32 i32_and(I32 a, I32 b) { PELTON_PARTS(I32, vandq_s32(a.v[i], b.v[i])); }
PELTON_INLINE I32 i32_andnot(I32 mask, I32 a) { PELTON_PARTS(I32, vbicq_s32(a.v[i], mask.v[i])); }
PELTON_INLINE I32 i32_shl(I32 a, int n) { PELTON_PARTS(I32, vshlq_s32(a.v[i], vdupq_n_s32(n))); }
PELTON_INLINE I32 i32_shr(I32 a, int n) { PELTON_PARTS(I32, vshlq_s32(a.v[i], vdupq_n_s32(-n))); }
PELTON_INLINE I32 max(I32 a, I32 b) { PELTON_PARTS(I32, vmaxq_s32(a.v[i], b.v[i])); }
PELTON_INLINE I32 min(I32 a, I32 b) { PELTON_PARTS(I32, vminq_s32(a.v[i], b.v[i])); }
PELTON_INLINE uint32_t i32_equal(I32 a, I32 b) {
  const uint32_t one_bit[4] = {1, 2, 4, 8};
  uint32_t bits = 0;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) bits |= vaddvq_u32(vandq_u32(vceqq_s32(a.v[i], b.v[i]), vld1q_u32(one_bit))) << (4 * i);
  return bits;
}
PELTON_INLINE I32 i32_quad_maxima(I32 x0, I32 x1, I32 x2, I32 x3) {
  PELTON_PARTS(I32, vpmaxq_s32(vpmaxq_s32(x0.v[i], x1.v[i]), vpmaxq_s32(x2.v[i], x3.v[i])));
}
template <int kDistance>
PELTON_INLINE I32 i32_swap_quads(I32 a) {
  return {{a.v[kDistance], a.v[1 ^ kDistance], a.v[2 ^ kDistance], a.v[3 ^ kDistance]}};
}
PELTON_INLINE Int4 i32_first_quad(I32 a) { return a.v[0]; }
PELTON_INLINE void i32_store_sums(int32_t* p, I32 a, I32 b) {
  p[0] = vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
  p[1] = vaddvq_s32(vaddq_s32(vaddq_s32(b.v[0], b.v[1]), vaddq_s32(b.v[2], b.v[3])));
}
PELTON_INLINE I32 i32_load_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}};
}
PELTON_INLINE I32 i32_load_u8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
  const auto widen = [](uint16x4_t half) { return vreinterpretq_s32_u32(vmovl_u16(half)); };
  return {{widen(vget_low_u16(low)), widen(vget_high_u16(low)), widen(vget_low_u16(high)), widen(vget_high_u16(high))}};
}
PELTON_INLINE void i32_store_bytes(int8_t* p, I32 a, I32 b) {
  const auto narrow = [](const I32& x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    return vcombine_s8(vmovn_s16(low), vmovn_s16(high));
  };
  vst1q_s8(p, narrow(a));
  vst1q_s8(p + 16, narrow(b));
}

PELTON_INLINE U8 u8_load(const uint8_t* p) { PELTON_PARTS(U8, vld1q_u8(p + 16 * i)); }
PELTON_INLINE void u8_store(uint8_t* p, U8 a) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, a.v[i]);
}
PELTON_INLINE U8 u8_set(uint8_t value) { PELTON_PARTS(U8, vdupq_n_u8(value)); }
PELTON_INLINE U8 u8_or(U8 a, U8 b) { PELTON_PARTS(U8, vorrq_u8(a.v[i], b.v[i])); }
PELTON_INLINE U8 u8_sub(U8 a, U8 b) { PELTON_PARTS(U8, vsubq_u8(a.v[i], b.v[i])); }
template <int kShift, uint8_t kMask>
PELTON_INLINE U8 u8_bits(U8 a) {
  PELTON_PARTS(U8, vandq_u8(vshlq_u8(a.v[i], vdupq_n_s8(-kShift)), vdupq_n_u8(kMask)));
}
#undef PELTON_PARTS

PELTON_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

PELTON_INLINE void widen_32(int16_t* out, const int8_t* low) {
#pragma GCC unroll 4
  for (int i = 0; i < 32; i += 8) vst1q_s16(out + i, vmovl_s8(vld1_s8(low + i)));
}
PELTON_INLINE void widen_32(int16_t* out, const int8_t* low, const int8_t* high) {
#pragma GCC unroll 4
  for (int i = 0; i < 32; i += 8) {
    vst1q_s16(out + i, vaddw_s8(vshlq_n_s16(vmovl_s8(vld1_s8(high + i)), 7), vld1_s8(low + i)));
  }
}

template <int kBits, bool kExact>
inline constexpr bool kUseWide = false;

PELTON_INLINE int32_t load_quad(const void* quad) {
  int32_t four;
  __builtin_memcpy(&four, quad, sizeof(four));
  return four;
}

template <int kBits, bool kWide>
struct Dot {
  static constexpr int kCodeBytes = 64;
  static constexpr int kQuadBytes = 4;
  static constexpr bool kSigned = true;
  using Codes = U8;

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) { u8_store(out, codes); }
  static PELTON_INLINE Codes load(const uint8_t* p) { return u8_load(p); }

#if defined(__ARM_FEATURE_DOTPROD)
  I32 total = i32_zero();

  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load_quad(quad)));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) total.v[i] = vdotq_s32(total.v[i], vreinterpretq_s8_u8(codes.v[i]), x);
  }
  static constexpr bool kAccumulates = true;
  PELTON_INLINE void start(I32 sum) { total = sum; }
  PELTON_INLINE I32 sum() const { return total; }
#else
  // Products are 16 bits wide (128 * 127 at most); two sums per lane until the end.
  int32x4_t pairs[8] = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0),
                        vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(0)};

  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(load_quad(quad)));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const int8x16_t c = vreinterpretq_s8_u8(codes.v[i]);
      pairs[2 * i] = vpadalq_s16(pairs[2 * i], vmull_s8(vget_low_s8(c), vget_low_s8(x)));
      pairs[2 * i + 1] = vpadalq_s16(pairs[2 * i + 1], vmull_high_s8(c, x));
    }
  }
  static constexpr bool kAccumulates = false;
  PELTON_INLINE I32 sum() const {
    return {{vpaddq_s32(pairs[0], pairs[1]), vpaddq_s32(pairs[2], pairs[3]), vpaddq_s32(pairs[4], pairs[5]),
             vpaddq_s32(pairs[6], pairs[7])}};
  }
#endif
  static PELTON_INLINE I32 quad_times_128(Codes codes, const void* quad) {
    Dot dot;
    dot.add<0, 1>(codes, quad);
    return i32_shl(dot.sum(), 7);
  }
};

// 32 registers of a quarter of a vector: per (row, panel) four integer (eight without SDOT) and four float
// accumulators, per panel four of codes, one broadcast activation.
#if defined(__ARM_FEATURE_DOTPROD)
inline constexpr int kTileRows = 3;  // 3 * 8 + 4 + 1 = 29
#else
inline constexpr int kTileRows = 2;  // 2 * 12 + 4 + 1 = 29
#endif
inline constexpr int kTilePanels = 1;
// Of float products: 5 * 1 * 4 accumulators, four registers of weights, one broadcast activation: 25.
inline constexpr int kFloatTileRows = 5;
inline constexpr int kFloatTilePanels = 1;

}  // namespace
}  // namespace pelton::PELTON_LEVEL
