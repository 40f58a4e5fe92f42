// The vocabulary as plain loops over arrays: right everywhere, vectorised as far as the compiler can.
#pragma once

#include <cmath>
#include <cstring>

#include "../half.h"

namespace pelton::PELTON_LEVEL {
namespace {

struct F32 {
  float v[16];
};
struct I32 {
  int32_t v[16];
};
struct U8 {
  uint8_t v[64];
};

#define PELTON_LANES(type, expression)                  \
  type out;                                             \
  for (int i = 0; i < 16; ++i) out.v[i] = (expression); \
  return out

PELTON_INLINE F32 f32_load(const float* p) { PELTON_LANES(F32, p[i]); }
PELTON_INLINE void f32_store(float* p, F32 a) { std::memcpy(p, a.v, sizeof(a.v)); }
PELTON_INLINE F32 f32_set(float value) { PELTON_LANES(F32, value); }
PELTON_INLINE F32 f32_zero() { return f32_set(0.0f); }
PELTON_INLINE F32 f32_load_partial(const float* p, int n) { PELTON_LANES(F32, i < n ? p[i] : 0.0f); }
PELTON_INLINE void f32_store_partial(float* p, F32 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}
PELTON_INLINE F32 f32_load_f16(const uint16_t* p) { PELTON_LANES(F32, float_from_f16(p[i])); }
PELTON_INLINE void f32_store_f16(uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = f16_from_float(a.v[i]);
}
PELTON_INLINE F32 f32_load_bf16(const uint16_t* p) { PELTON_LANES(F32, float_from_bf16(p[i])); }
PELTON_INLINE void f32_store_bf16(uint16_t* p, F32 a) {
  for (int i = 0; i < 16; ++i) p[i] = bf16_from_float(a.v[i]);
}
PELTON_INLINE void f32_load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
  for (int i = 0; i < 16; ++i) {
    even.v[i] = float_from_bf16(p[2 * i]);
    odd.v[i] = float_from_bf16(p[2 * i + 1]);
  }
}

PELTON_INLINE F32 add(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] + b.v[i]); }
PELTON_INLINE F32 sub(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] - b.v[i]); }
PELTON_INLINE F32 mul(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] * b.v[i]); }
PELTON_INLINE F32 div(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] / b.v[i]); }
PELTON_INLINE F32 max(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
PELTON_INLINE F32 min(F32 a, F32 b) { PELTON_LANES(F32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
PELTON_INLINE F32 abs(F32 a) { PELTON_LANES(F32, __builtin_fabsf(a.v[i])); }
PELTON_INLINE F32 fma(F32 a, F32 b, F32 c) { PELTON_LANES(F32, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }

PELTON_INLINE F32 f32_from_i32(I32 a) { PELTON_LANES(F32, static_cast<float>(a.v[i])); }
PELTON_INLINE I32 i32_from_f32(F32 a) {
  // Adding and subtracting 1.5 * 2^23 rounds half to even where the fraction can be seen at all.
  I32 out;
  for (int i = 0; i < 16; ++i) {
    const float x = a.v[i];
    const float rounded = __builtin_fabsf(x) < 0x1p22f ? (x + 0x1.8p23f) - 0x1.8p23f : x;
    out.v[i] = __builtin_fabsf(x) < 0x1p31f ? static_cast<int32_t>(rounded) : INT32_MIN;
  }
  return out;
}
PELTON_INLINE F32 f32_from_bits(I32 a) { PELTON_LANES(F32, float_from_bits(static_cast<uint32_t>(a.v[i]))); }
PELTON_INLINE I32 bits_from_f32(F32 a) { PELTON_LANES(I32, static_cast<int32_t>(float_bits(a.v[i]))); }

PELTON_INLINE F32 f32_load_quads(const float* q0, const float* q1, const float* q2, const float* q3) {
  const float* quads[4] = {q0, q1, q2, q3};
  PELTON_LANES(F32, quads[i / 4][i % 4]);
}
PELTON_INLINE F32 f32_spread(Float4 x) { PELTON_LANES(F32, x[i / 4]); }
PELTON_INLINE float f32_reduce_add(F32 a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  }
  return a.v[0];
}
PELTON_INLINE float f32_reduce_max(F32 a) {
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  }
  return a.v[0];
}

PELTON_INLINE I32 i32_load(const int32_t* p) { PELTON_LANES(I32, p[i]); }
PELTON_INLINE void i32_store(int32_t* p, I32 a) { std::memcpy(p, a.v, sizeof(a.v)); }
PELTON_INLINE I32 i32_set(int32_t value) { PELTON_LANES(I32, value); }
PELTON_INLINE I32 i32_zero() { return i32_set(0); }
PELTON_INLINE I32 add(I32 a, I32 b) { PELTON_LANES(I32, a.v[i] + b.v[i]); }
PELTON_INLINE I32 sub(I32 a, I32 b) { PELTON_LANES(I32, a.v[i] - b.v[i]); }
PELTON_INLINE I32 i32_and(I32 a, I32 b) { PELTON_LANES(I32, a.v[i] & b.v[i]); }
PELTON_INLINE I32 i32_andnot(I32 mask, I32 a) { PELTON_LANES(I32, ~mask.v[i] & a.v[i]); }
PELTON_INLINE I32 i32_shl(I32 a, int n) { PELTON_LANES(I32, static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n)); }
PELTON_INLINE I32 i32_shr(I32 a, int n) { PELTON_LANES(I32, a.v[i] >> n); }
PELTON_INLINE I32 max(I32 a, I32 b) { PELTON_LANES(I32, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
PELTON_INLINE I32 min(I32 a, I32 b) { PELTON_LANES(I32, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
PELTON_INLINE uint32_t i32_equal(I32 a, I32 b) {
  uint32_t bits = 0;
  for (int i = 0; i < 16; ++i) bits |= uint32_t{a.v[i] == b.v[i]} << i;
  return bits;
}
PELTON_INLINE I32 i32_quad_maxima(I32 x0, I32 x1, I32 x2, I32 x3) {
  const I32* x[4] = {&x0, &x1, &x2, &x3};
  PELTON_LANES(I32, [](const int32_t* q) {
    const int32_t even = q[0] > q[1] ? q[0] : q[1];
    const int32_t odd = q[2] > q[3] ? q[2] : q[3];
    return even > odd ? even : odd;
  }(x[i % 4]->v + (i & ~3)));
}
template <int kDistance>
PELTON_INLINE I32 i32_swap_quads(I32 a) {
  PELTON_LANES(I32, a.v[i ^ (4 * kDistance)]);
}
PELTON_INLINE Int4 i32_first_quad(I32 a) { return Int4{a.v[0], a.v[1], a.v[2], a.v[3]}; }
PELTON_INLINE void i32_store_sums(int32_t* p, I32 a, I32 b) {
  p[0] = p[1] = 0;
  for (int i = 0; i < 16; ++i) {
    p[0] += a.v[i];
    p[1] += b.v[i];
  }
}
PELTON_INLINE I32 i32_load_i8(const int8_t* p) { PELTON_LANES(I32, p[i]); }
PELTON_INLINE I32 i32_load_u8(const uint8_t* p) { PELTON_LANES(I32, p[i]); }
PELTON_INLINE void i32_store_bytes(int8_t* p, I32 a, I32 b) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(static_cast<uint8_t>(a.v[i]));
    p[i + 16] = static_cast<int8_t>(static_cast<uint8_t>(b.v[i]));
  }
}
#undef PELTON_LANES

#define PELTON_BYTES(expression)                                            \
  U8 out;                                                                   \
  for (int i = 0; i < 64; ++i) out.v[i] = static_cast<uint8_t>(expression); \
  return out

PELTON_INLINE U8 u8_load(const uint8_t* p) { PELTON_BYTES(p[i]); }
PELTON_INLINE void u8_store(uint8_t* p, U8 a) { std::memcpy(p, a.v, sizeof(a.v)); }
PELTON_INLINE U8 u8_set(uint8_t value) { PELTON_BYTES(value); }
PELTON_INLINE U8 u8_or(U8 a, U8 b) { PELTON_BYTES(a.v[i] | b.v[i]); }
PELTON_INLINE U8 u8_sub(U8 a, U8 b) { PELTON_BYTES(a.v[i] - b.v[i]); }
template <int kShift, uint8_t kMask>
PELTON_INLINE U8 u8_bits(U8 a) {
  PELTON_BYTES((kShift >= 0 ? a.v[i] >> (kShift & 7) : a.v[i] << (-kShift & 7)) & kMask);
}
#undef PELTON_BYTES

PELTON_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

PELTON_INLINE void widen_32(int16_t* out, const int8_t* low) {
  for (int i = 0; i < 32; ++i) out[i] = low[i];
}
PELTON_INLINE void widen_32(int16_t* out, const int8_t* low, const int8_t* high) {
  for (int i = 0; i < 32; ++i) out[i] = static_cast<int16_t>(low[i] + 128 * high[i]);
}

template <int kBits, bool kExact>
inline constexpr bool kUseWide = false;

// One function for all products: as straight line code in each of them it would fill half a megabyte.
[[maybe_unused]] __attribute__((noinline)) void add_dot_products(I32& total, const U8& codes, const void* quad) {
  int8_t x[4];
  std::memcpy(x, quad, sizeof(x));
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 4; ++k) total.v[i] += static_cast<int8_t>(codes.v[4 * i + k]) * x[k];
  }
}

template <int kBits, bool kWide>
struct Dot {
  static constexpr int kCodeBytes = 64;
  static constexpr int kQuadBytes = 4;
  static constexpr bool kSigned = true;
  using Codes = U8;
  I32 total = i32_zero();

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) { u8_store(out, codes); }
  static PELTON_INLINE Codes load(const uint8_t* p) { return u8_load(p); }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(const Codes& codes, const void* quad) {
    add_dot_products(total, codes, quad);
  }
  static constexpr bool kAccumulates = true;
  PELTON_INLINE void start(const I32& sum) { total = sum; }
  PELTON_INLINE I32 sum() const { return total; }
  static PELTON_INLINE I32 quad_times_128(const Codes& codes, const void* quad) {
    Dot dot;
    dot.add<0, 1>(codes, quad);
    return i32_shl(dot.total, 7);
  }
};

// Arrays live in memory anyway: the smallest tile.
inline constexpr int kTileRows = 1;
inline constexpr int kTilePanels = 1;
inline constexpr int kFloatTileRows = 1;
inline constexpr int kFloatTilePanels = 1;

}  // namespace
}  // namespace pelton::PELTON_LEVEL
