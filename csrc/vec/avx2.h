// The vocabulary on AVX2 with FMA and F16C: two ymm registers per vector.
#pragma once

#include <immintrin.h>

namespace pelton::PELTON_LEVEL {
namespace {

struct F32 {
  __m256 a, b;  // lanes 0-7, lanes 8-15
};
struct I32 {
  __m256i a, b;
};
struct U8 {
  __m256i a, b;
};

PELTON_INLINE __m256i load_256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
PELTON_INLINE void store_256(void* p, __m256i a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
PELTON_INLINE __m128i load_128(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PELTON_INLINE __m128i load_64(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

// All ones in lanes below n, counted from lane `first`.
PELTON_INLINE __m256i lanes_below(int n, int first) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane);
}

PELTON_INLINE F32 f32_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PELTON_INLINE void f32_store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
PELTON_INLINE F32 f32_set(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
PELTON_INLINE F32 f32_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PELTON_INLINE F32 f32_load_partial(const float* p, int n) {
  return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
PELTON_INLINE void f32_store_partial(float* p, F32 x, int n) {
  _mm256_maskstore_ps(p, lanes_below(n, 0), x.a);
  _mm256_maskstore_ps(p + 8, lanes_below(n, 8), x.b);
}
PELTON_INLINE F32 f32_load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 8))};
}
PELTON_INLINE void f32_store_f16(uint16_t* p, F32 x) {
  const __m128i low = _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m128i high = _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  store_256(p, _mm256_set_m128i(high, low));
}
PELTON_INLINE __m256 bf16_to_f32(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}
PELTON_INLINE F32 f32_load_bf16(const uint16_t* p) { return {bf16_to_f32(load_128(p)), bf16_to_f32(load_128(p + 8))}; }
PELTON_INLINE __m256i bf16_bits(__m256 x) {  // the rounded upper halves, in 32-bit lanes
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
PELTON_INLINE void f32_store_bf16(uint16_t* p, F32 x) {
  const __m256i packed = _mm256_packus_epi32(bf16_bits(x.a), bf16_bits(x.b));  // interleaves 128-bit halves
  store_256(p, _mm256_permute4x64_epi64(packed, 0xd8));
}
PELTON_INLINE void f32_load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
  const __m256i a = load_256(p), b = load_256(p + 16);
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  even = {_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))};
  odd = {_mm256_castsi256_ps(_mm256_and_si256(a, upper)), _mm256_castsi256_ps(_mm256_and_si256(b, upper))};
}

PELTON_INLINE F32 add(F32 x, F32 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
PELTON_INLINE F32 sub(F32 x, F32 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
PELTON_INLINE F32 mul(F32 x, F32 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PELTON_INLINE F32 div(F32 x, F32 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
PELTON_INLINE F32 max(F32 x, F32 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
PELTON_INLINE F32 min(F32 x, F32 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
PELTON_INLINE F32 abs(F32 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
PELTON_INLINE F32 fma(F32 x, F32 y, F32 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }

PELTON_INLINE F32 f32_from_i32(I32 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
PELTON_INLINE I32 i32_from_f32(F32 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
PELTON_INLINE F32 f32_from_bits(I32 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
PELTON_INLINE I32 bits_from_f32(F32 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
PELTON_INLINE __m256 load_quads(const float* low, const float* high) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
PELTON_INLINE F32 f32_load_quads(const float* q0, const float* q1, const float* q2, const float* q3) {
  return {load_quads(q0, q1), load_quads(q2, q3)};
}
PELTON_INLINE F32 f32_spread(Float4 x) {
  const __m256 both = _mm256_castps128_ps256(x);
  return {_mm256_permutevar8x32_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)),
          _mm256_permutevar8x32_ps(both, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3))};
}
PELTON_INLINE float f32_reduce_add(F32 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PELTON_INLINE float f32_reduce_max(F32 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

PELTON_INLINE I32 i32_load(const int32_t* p) { return {load_256(p), load_256(p + 8)}; }
PELTON_INLINE void i32_store(int32_t* p, I32 x) {
  store_256(p, x.a);
  store_256(p + 8, x.b);
}
PELTON_INLINE I32 i32_set(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
PELTON_INLINE I32 i32_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PELTON_INLINE I32 add(I32 x, I32 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
PELTON_INLINE I32 sub(I32 x, I32 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
PELTON_INLINE I32 i32_and(I32 x, I32 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
PELTON_INLINE I32 i32_andnot(I32 mask, I32 x) {
  return {_mm256_andnot_si256(mask.a, x.a), _mm256_andnot_si256(mask.b, x.b)};
}
PELTON_INLINE I32 i32_shl(I32 x, int n) { return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
PELTON_INLINE I32 i32_shr(I32 x, int n) { return {_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n)}; }
PELTON_INLINE I32 max(I32 x, I32 y) { return {_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)}; }
PELTON_INLINE I32 min(I32 x, I32 y) { return {_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)}; }
PELTON_INLINE uint32_t i32_equal(I32 x, I32 y) {
  const int low = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.a, y.a)));
  const int high = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(x.b, y.b)));
  return static_cast<uint32_t>(low | high << 8);
}
PELTON_INLINE __m256i pair_maxima(__m256i x, __m256i y) {  // per quad: two of x, then two of y
  const __m256 a = _mm256_castsi256_ps(x), b = _mm256_castsi256_ps(y);
  return _mm256_max_epi32(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                          _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
}
PELTON_INLINE I32 i32_quad_maxima(I32 x0, I32 x1, I32 x2, I32 x3) {
  return {pair_maxima(pair_maxima(x0.a, x1.a), pair_maxima(x2.a, x3.a)),
          pair_maxima(pair_maxima(x0.b, x1.b), pair_maxima(x2.b, x3.b))};
}
template <int kDistance>
PELTON_INLINE I32 i32_swap_quads(I32 x) {
  if constexpr (kDistance == 2) return {x.b, x.a};
  return {_mm256_permute2x128_si256(x.a, x.a, 1), _mm256_permute2x128_si256(x.b, x.b, 1)};
}
PELTON_INLINE Int4 i32_first_quad(I32 x) { return reinterpret_cast<Int4>(_mm256_castsi256_si128(x.a)); }
PELTON_INLINE void i32_store_sums(int32_t* p, I32 x, I32 y) {
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i pairs = _mm256_hadd_epi32(_mm256_madd_epi16(_mm256_packs_epi32(x.a, x.b), one),
                                          _mm256_madd_epi16(_mm256_packs_epi32(y.a, y.b), one));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_hadd_epi32(four, four));
}
PELTON_INLINE I32 i32_load_i8(const int8_t* p) {
  return {_mm256_cvtepi8_epi32(load_64(p)), _mm256_cvtepi8_epi32(load_64(p + 8))};
}
PELTON_INLINE I32 i32_load_u8(const uint8_t* p) {
  return {_mm256_cvtepu8_epi32(load_64(p)), _mm256_cvtepu8_epi32(load_64(p + 8))};
}
PELTON_INLINE void i32_store_bytes(int8_t* p, I32 x, I32 y) {
  // Per 128-bit half: quads of x.a, x.b, y.a, y.b.
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(x.a, x.b), _mm256_packs_epi32(y.a, y.b));
  store_256(p, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

PELTON_INLINE U8 u8_load(const uint8_t* p) { return {load_256(p), load_256(p + 32)}; }
PELTON_INLINE void u8_store(uint8_t* p, U8 x) {
  store_256(p, x.a);
  store_256(p + 32, x.b);
}
PELTON_INLINE U8 u8_set(uint8_t value) {
  return {_mm256_set1_epi8(static_cast<char>(value)), _mm256_set1_epi8(static_cast<char>(value))};
}
PELTON_INLINE U8 u8_or(U8 x, U8 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
PELTON_INLINE U8 u8_sub(U8 x, U8 y) { return {_mm256_sub_epi8(x.a, y.a), _mm256_sub_epi8(x.b, y.b)}; }
template <int kShift, uint8_t kMask>
PELTON_INLINE __m256i byte_bits(__m256i x) {
  if constexpr (kShift > 0) x = _mm256_srli_epi16(x, kShift);
  if constexpr (kShift < 0) x = _mm256_slli_epi16(x, -kShift);
  return _mm256_and_si256(x, _mm256_set1_epi8(static_cast<char>(kMask)));
}
template <int kShift, uint8_t kMask>
PELTON_INLINE U8 u8_bits(U8 x) {
  return {byte_bits<kShift, kMask>(x.a), byte_bits<kShift, kMask>(x.b)};
}

PELTON_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

PELTON_INLINE void widen_32(int16_t* out, const int8_t* low) {
  store_256(out, _mm256_cvtepi8_epi16(load_128(low)));
  store_256(out + 16, _mm256_cvtepi8_epi16(load_128(low + 16)));
}
PELTON_INLINE void widen_32(int16_t* out, const int8_t* low, const int8_t* high) {
#pragma GCC unroll 2
  for (int i = 0; i < 32; i += 16) {
    const __m256i upper = _mm256_slli_epi16(_mm256_cvtepi8_epi16(load_128(high + i)), 7);
    store_256(out + i, _mm256_add_epi16(_mm256_cvtepi8_epi16(load_128(low + i)), upper));
  }
}

// vpmaddubsw leaves sums of two products in 16 bits. Sums of kDepth of them fit in 16 bits when
// kDepth * 2 * 127 * (2^kBits - 1) <= 32767: 8 quads for up to 4 bits (30480), 4 for 5 bits (31496), 2 for 6 (32004).
// 8-bit codes don't fit at all, and for 15-bit activations one vpmaddwd per half vector beats two passes with
// vpmaddubsw.
template <int kBits, bool kExact>
inline constexpr bool kUseWide = kBits > 6 || kExact;

PELTON_INLINE __m256i broadcast_quad(const void* quad) {
  int32_t four;
  __builtin_memcpy(&four, quad, sizeof(four));
  return _mm256_set1_epi32(four);
}

// Integer sums may be taken in any order, and the compiler likes to form all products of a tile first and to spill
// them.
PELTON_INLINE void keep_order(__m256i& sum) { __asm__("" : "+x"(sum)); }

template <int kBits, bool kWide>
struct Dot;

template <int kBits>
struct Dot<kBits, false> {
  static constexpr int kCodeBytes = 64;
  static constexpr int kQuadBytes = 4;
  static constexpr bool kSigned = false;
  static constexpr int kDepth = kBits <= 4 ? 8 : kBits == 5 ? 4 : 2;
  using Codes = U8;
  I32 partial = i32_zero();
  I32 total = i32_zero();

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) { u8_store(out, codes); }
  static PELTON_INLINE Codes load(const uint8_t* p) { return u8_load(p); }
  template <int kQuad, int kNumQuads>
  static PELTON_INLINE void add_half(__m256i& partial, __m256i& total, __m256i codes, __m256i quad) {
    static_assert(kBits <= 6, "products of wider codes saturate");
    const __m256i products = _mm256_maddubs_epi16(codes, quad);
    partial = kQuad % kDepth == 0 ? products : _mm256_add_epi16(partial, products);
    keep_order(partial);
    if constexpr (kQuad % kDepth == kDepth - 1 || kQuad == kNumQuads - 1) {
      const __m256i pairs = _mm256_madd_epi16(partial, _mm256_set1_epi16(1));
      total = kQuad < kDepth ? pairs : _mm256_add_epi32(total, pairs);
    }
  }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    const __m256i x = broadcast_quad(quad);
    add_half<kQuad, kNumQuads>(partial.a, total.a, codes.a, x);
    add_half<kQuad, kNumQuads>(partial.b, total.b, codes.b, x);
  }
  static constexpr bool kAccumulates = false;
  PELTON_INLINE I32 sum() const { return total; }
  static PELTON_INLINE I32 quad_times_128(Codes codes, const void* quad) {
    const __m256i x = broadcast_quad(quad), factor = _mm256_set1_epi16(128);
    return {_mm256_madd_epi16(_mm256_maddubs_epi16(codes.a, x), factor),
            _mm256_madd_epi16(_mm256_maddubs_epi16(codes.b, x), factor)};
  }
};

// 16-bit codes times 16-bit activations: four lanes to a register, with the sums of K pairs 0 and 1 side by side.
template <int kBits>
struct Dot<kBits, true> {
  static constexpr int kCodeBytes = 128;
  static constexpr int kQuadBytes = 8;
  static constexpr bool kSigned = true;
  struct Codes {
    __m256i fours[4];
  };
  __m256i fours[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};

  // Lanes 0, 1, 4, 5 and 2, 3, 6, 7, since a horizontal addition works in 128 bits.
  static PELTON_INLINE void expand_half(uint8_t* out, __m256i codes) {
    const __m256i ordered = _mm256_permute4x64_epi64(codes, 0xd8);
    store_256(out, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(ordered)));
    store_256(out + 32, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(ordered, 1)));
  }
  static PELTON_INLINE void expand(uint8_t* out, U8 codes) {
    expand_half(out, codes.a);
    expand_half(out + 64, codes.b);
  }
  static PELTON_INLINE Codes load(const uint8_t* p) {
    return {{load_256(p), load_256(p + 32), load_256(p + 64), load_256(p + 96)}};
  }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    const __m256i x = _mm256_broadcastq_epi64(load_64(quad));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m256i products = _mm256_madd_epi16(codes.fours[i], x);
      fours[i] = kQuad == 0 ? products : _mm256_add_epi32(fours[i], products);
      keep_order(fours[i]);
    }
  }
  static constexpr bool kAccumulates = false;
  PELTON_INLINE I32 sum() const {
    return {_mm256_hadd_epi32(fours[0], fours[1]), _mm256_hadd_epi32(fours[2], fours[3])};
  }
};

// 16 registers of half a vector: per (row, panel) two integer and two float accumulators, per panel two of codes, one
// broadcast activation and one product: 2 * 1 * 4 + 2 + 2 = 12.
inline constexpr int kTileRows = 2;
inline constexpr int kTilePanels = 1;
// Of float products: 3 * 2 * 2 accumulators, three broadcast activations, one register of weights: 16.
inline constexpr int kFloatTileRows = 3;
inline constexpr int kFloatTilePanels = 2;

}  // namespace
}  // namespace pelton::PELTON_LEVEL
