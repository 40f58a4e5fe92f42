// The vocabulary on AVX-512 (F, BW, DQ, VL), one zmm register per vector; with VNNI where the compiler's flags have it.
#pragma once

// GCC 12 takes its own _mm512_undefined_ps() for a mistake.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace pelton::PELTON_LEVEL {
namespace {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct U8 {
  __m512i v;
};

PELTON_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1); }

PELTON_INLINE F32 f32_load(const float* p) { return {_mm512_loadu_ps(p)}; }
PELTON_INLINE void f32_store(float* p, F32 a) { _mm512_storeu_ps(p, a.v); }
PELTON_INLINE F32 f32_set(float value) { return {_mm512_set1_ps(value)}; }
PELTON_INLINE F32 f32_zero() { return {_mm512_setzero_ps()}; }
PELTON_INLINE F32 f32_load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
PELTON_INLINE void f32_store_partial(float* p, F32 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
PELTON_INLINE __m256i load_16_halves(const uint16_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
PELTON_INLINE F32 f32_load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(load_16_halves(p))}; }
PELTON_INLINE void f32_store_f16(uint16_t* p, F32 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PELTON_INLINE F32 f32_load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_16_halves(p)), 16))};
}
PELTON_INLINE void f32_store_bf16(uint16_t* p, F32 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm512_mask_cvtepi32_storeu_epi16(p, 0xffff, _mm512_srli_epi32(rounded, 16));
}
PELTON_INLINE void f32_load_bf16_pairs(const uint16_t* p, F32& even, F32& odd) {
  const __m512i pairs = _mm512_loadu_si512(p);
  even.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  odd.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

PELTON_INLINE F32 add(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
PELTON_INLINE F32 sub(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
PELTON_INLINE F32 mul(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
PELTON_INLINE F32 div(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
PELTON_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
PELTON_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
PELTON_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
PELTON_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }

PELTON_INLINE F32 f32_from_i32(I32 a) { return {_mm512_cvtepi32_ps(a.v)}; }
PELTON_INLINE I32 i32_from_f32(F32 a) { return {_mm512_cvtps_epi32(a.v)}; }
PELTON_INLINE F32 f32_from_bits(I32 a) { return {_mm512_castsi512_ps(a.v)}; }
PELTON_INLINE I32 bits_from_f32(F32 a) { return {_mm512_castps_si512(a.v)}; }
PELTON_INLINE F32 f32_load_quads(const float* q0, const float* q1, const float* q2, const float* q3) {
  __m512 quads = _mm512_castps128_ps512(_mm_loadu_ps(q0));
  quads = _mm512_insertf32x4(quads, _mm_loadu_ps(q1), 1);
  quads = _mm512_insertf32x4(quads, _mm_loadu_ps(q2), 2);
  return {_mm512_insertf32x4(quads, _mm_loadu_ps(q3), 3)};
}
PELTON_INLINE F32 f32_spread(Float4 x) {
  const __m512i source = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return {_mm512_permutexvar_ps(source, _mm512_castps128_ps512(x))};
}
PELTON_INLINE float f32_reduce_add(F32 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
PELTON_INLINE float f32_reduce_max(F32 a) {
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

PELTON_INLINE I32 i32_load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
PELTON_INLINE void i32_store(int32_t* p, I32 a) { _mm512_storeu_si512(p, a.v); }
PELTON_INLINE I32 i32_set(int32_t value) { return {_mm512_set1_epi32(value)}; }
PELTON_INLINE I32 i32_zero() { return {_mm512_setzero_si512()}; }
PELTON_INLINE I32 add(I32 a, I32 b) { return {_mm512_add_epi32(a.v, b.v)}; }
PELTON_INLINE I32 sub(I32 a, I32 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
PELTON_INLINE I32 i32_and(I32 a, I32 b) { return {_mm512_and_si512(a.v, b.v)}; }
PELTON_INLINE I32 i32_andnot(I32 mask, I32 a) { return {_mm512_andnot_si512(mask.v, a.v)}; }
PELTON_INLINE I32 i32_shl(I32 a, int n) { return {_mm512_slli_epi32(a.v, static_cast<unsigned>(n))}; }
PELTON_INLINE I32 i32_shr(I32 a, int n) { return {_mm512_srai_epi32(a.v, static_cast<unsigned>(n))}; }
PELTON_INLINE I32 max(I32 a, I32 b) { return {_mm512_max_epi32(a.v, b.v)}; }
PELTON_INLINE I32 min(I32 a, I32 b) { return {_mm512_min_epi32(a.v, b.v)}; }
PELTON_INLINE uint32_t i32_equal(I32 a, I32 b) { return _mm512_cmpeq_epi32_mask(a.v, b.v); }
PELTON_INLINE __m512i pair_maxima(__m512i x, __m512i y) {  // per quad: two of x, then two of y
  const __m512 a = _mm512_castsi512_ps(x), b = _mm512_castsi512_ps(y);
  return _mm512_max_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)),
                          _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}
PELTON_INLINE I32 i32_quad_maxima(I32 x0, I32 x1, I32 x2, I32 x3) {
  return {pair_maxima(pair_maxima(x0.v, x1.v), pair_maxima(x2.v, x3.v))};
}
template <int kDistance>
PELTON_INLINE I32 i32_swap_quads(I32 a) {
  return {_mm512_shuffle_i32x4(a.v, a.v, kDistance == 1 ? 0xb1 : 0x4e)};
}
PELTON_INLINE Int4 i32_first_quad(I32 a) { return reinterpret_cast<Int4>(_mm512_castsi512_si128(a.v)); }
PELTON_INLINE void i32_store_sums(int32_t* p, I32 a, I32 b) {
  // Per 128-bit quarter: two sums of a, two of b.
  const __m512i pairs = _mm512_madd_epi16(_mm512_packs_epi32(a.v, b.v), _mm512_set1_epi16(1));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(pairs), _mm512_extracti64x4_epi64(pairs, 1));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_hadd_epi32(four, four));
}
PELTON_INLINE __m128i load_16_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
PELTON_INLINE I32 i32_load_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(load_16_bytes(p))}; }
PELTON_INLINE I32 i32_load_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(load_16_bytes(p))}; }
PELTON_INLINE void i32_store_bytes(int8_t* p, I32 a, I32 b) {
  const __m512i words = _mm512_packs_epi32(a.v, b.v);      // per 128-bit quarter: a quad of a, one of b
  const __m512i bytes = _mm512_packs_epi16(words, words);  // likewise, twice
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, bytes)));
}

PELTON_INLINE U8 u8_load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PELTON_INLINE void u8_store(uint8_t* p, U8 a) { _mm512_storeu_si512(p, a.v); }
PELTON_INLINE U8 u8_set(uint8_t value) { return {_mm512_set1_epi8(static_cast<char>(value))}; }
PELTON_INLINE U8 u8_or(U8 a, U8 b) { return {_mm512_or_si512(a.v, b.v)}; }
PELTON_INLINE U8 u8_sub(U8 a, U8 b) { return {_mm512_sub_epi8(a.v, b.v)}; }
template <int kShift, uint8_t kMask>
PELTON_INLINE U8 u8_bits(U8 a) {
  __m512i shifted = a.v;
  if constexpr (kShift > 0) shifted = _mm512_srli_epi16(a.v, kShift);
  if constexpr (kShift < 0) shifted = _mm512_slli_epi16(a.v, -kShift);
  return {_mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(kMask)))};
}

PELTON_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

PELTON_INLINE __m512i words_from_bytes(const int8_t* p) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
PELTON_INLINE void widen_32(int16_t* out, const int8_t* low) { _mm512_storeu_si512(out, words_from_bytes(low)); }
PELTON_INLINE void widen_32(int16_t* out, const int8_t* low, const int8_t* high) {
  const __m512i upper = _mm512_slli_epi16(words_from_bytes(high), 7);
  _mm512_storeu_si512(out, _mm512_add_epi16(words_from_bytes(low), upper));
}

template <int kBits, bool kWide>
struct Dot;

PELTON_INLINE __m512i broadcast_quad(const void* quad) {
  int32_t four;
  __builtin_memcpy(&four, quad, sizeof(four));
  return _mm512_set1_epi32(four);
}

// Integer sums may be taken in any order, and the compiler likes to form all products of a tile first and to spill
// them.
PELTON_INLINE void keep_order(__m512i& sum) { __asm__("" : "+v"(sum)); }

#if defined(__AVX512VNNI__)

// vpdpbusd: unsigned codes times signed activations, exact in 32 bits for any number of bits up to 8.
template <int kBits, bool kExact>
inline constexpr bool kUseWide = false;

template <int kBits>
struct Dot<kBits, false> {
  static constexpr int kCodeBytes = 64;
  static constexpr int kQuadBytes = 4;
  static constexpr bool kSigned = false;
  using Codes = __m512i;
  __m512i total = _mm512_setzero_si512();

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) { u8_store(out, codes); }
  static PELTON_INLINE Codes load(const uint8_t* p) { return _mm512_load_si512(p); }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    total = _mm512_dpbusd_epi32(total, codes, broadcast_quad(quad));
  }
  static constexpr bool kAccumulates = true;
  PELTON_INLINE void start(I32 sum) { total = sum.v; }
  PELTON_INLINE I32 sum() const { return {total}; }
  static PELTON_INLINE I32 quad_times_128(Codes codes, const void* quad) {
    return {_mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, broadcast_quad(quad)), 7)};
  }
};

#else

// Without VNNI, vpmaddubsw leaves sums of two products in 16 bits. Sums of kDepth of them fit in 16 bits when
// kDepth * 2 * 127 * (2^kBits - 1) <= 32767: 8 quads for up to 4 bits (30480), 4 for 5 bits (31496), 2 for 6 (32004).
// 8-bit codes don't fit at all, and for 15-bit activations one vpmaddwd per half vector beats two passes with
// vpmaddubsw.
template <int kBits, bool kExact>
inline constexpr bool kUseWide = kBits > 6 || kExact;

template <int kBits>
struct Dot<kBits, false> {
  static constexpr int kCodeBytes = 64;
  static constexpr int kQuadBytes = 4;
  static constexpr bool kSigned = false;
  static constexpr int kDepth = kBits <= 4 ? 8 : kBits == 5 ? 4 : 2;
  using Codes = __m512i;
  __m512i partial = _mm512_setzero_si512();
  __m512i total = _mm512_setzero_si512();

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) { u8_store(out, codes); }
  static PELTON_INLINE Codes load(const uint8_t* p) { return _mm512_load_si512(p); }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    static_assert(kBits <= 6, "products of wider codes saturate");
    const __m512i products = _mm512_maddubs_epi16(codes, broadcast_quad(quad));
    partial = kQuad % kDepth == 0 ? products : _mm512_add_epi16(partial, products);
    keep_order(partial);
    if constexpr (kQuad % kDepth == kDepth - 1 || kQuad == kNumQuads - 1) {
      const __m512i pairs = _mm512_madd_epi16(partial, _mm512_set1_epi16(1));
      total = kQuad < kDepth ? pairs : _mm512_add_epi32(total, pairs);
    }
  }
  static constexpr bool kAccumulates = false;
  PELTON_INLINE I32 sum() const { return {total}; }
  static PELTON_INLINE I32 quad_times_128(Codes codes, const void* quad) {
    return {_mm512_madd_epi16(_mm512_maddubs_epi16(codes, broadcast_quad(quad)), _mm512_set1_epi16(128))};
  }
};

#endif

// 16-bit codes times 16-bit activations; K pair 0 of all lanes, then K pair 1.
template <int kBits>
struct Dot<kBits, true> {
  static constexpr int kCodeBytes = 128;
  static constexpr int kQuadBytes = 8;
  static constexpr bool kSigned = true;
  struct Codes {
    __m512i pair0, pair1;
  };
  __m512i total = _mm512_setzero_si512();

  static PELTON_INLINE void expand(uint8_t* out, U8 codes) {
    const __m512i low = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(codes.v));         // lanes 0-7: pair0, pair1, ...
    const __m512i high = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(codes.v, 1));  // lanes 8-15
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    _mm512_store_si512(out, _mm512_permutex2var_epi32(low, even, high));
    _mm512_store_si512(out + 64, _mm512_permutex2var_epi32(low, odd, high));
  }
  static PELTON_INLINE Codes load(const uint8_t* p) { return {_mm512_load_si512(p), _mm512_load_si512(p + 64)}; }
  template <int kQuad, int kNumQuads>
  PELTON_INLINE void add(Codes codes, const void* quad) {
    const char* pairs = static_cast<const char*>(quad);
    total = _mm512_add_epi32(total, _mm512_madd_epi16(codes.pair0, broadcast_quad(pairs)));
    total = _mm512_add_epi32(total, _mm512_madd_epi16(codes.pair1, broadcast_quad(pairs + 4)));
    keep_order(total);
  }
  static constexpr bool kAccumulates = false;
  PELTON_INLINE I32 sum() const { return {total}; }
};

// 32 registers. A tile keeps per (row, panel) one integer and one float accumulator, per panel one vector of codes, and
// one broadcast activation: 4 * 2 * 2 + 2 + 1 = 19, which leaves room for constants and for the products in flight;
// 8 independent chains cover the latency of 4-5 cycles at two operations a cycle.
inline constexpr int kTileRows = 4;
inline constexpr int kTilePanels = 2;
// Of float products: 8 * 2 accumulators, two registers of weights, one broadcast activation: 19.
inline constexpr int kFloatTileRows = 8;
inline constexpr int kFloatTilePanels = 2;

}  // namespace
}  // namespace pelton::PELTON_LEVEL
