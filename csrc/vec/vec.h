// The vector vocabulary: the only words in which kernels speak to an instruction set.
//
// Every level offers the same types, 16 lanes wide whatever the registers are (one zmm, two ymm, four NEON q, or a
// plain array), so that a kernel is written once and gives one order of operations, hence one result, on all levels:
//
//   F32   16 x float             I32   16 x int32            U8   64 x uint8 (16 lanes x 4 consecutive K)
//
//   F32   f32_load(const float*)  f32_store(float*, F32)  f32_set(float)  f32_zero()
//         f32_load_partial(const float*, int n)  f32_store_partial(float*, F32, int n)
//                                                0 <= n <= 16; lanes >= n read as 0 and are not written
//         f32_load_f16(const uint16_t*)  f32_store_f16(uint16_t*, F32)      round to nearest even
//         f32_load_bf16(const uint16_t*) f32_store_bf16(uint16_t*, F32)     round to nearest even, NaN stays NaN
//         f32_load_bf16_pairs(const uint16_t*, F32& even, F32& odd)         lane i: elements 2i and 2i + 1
//         add sub mul div abs     fma(a, b, c) = a*b + c with one rounding on every level
//         max(a, b) = a > b ? a : b   min(a, b) = a < b ? a : b             a NaN in either gives b
//         f32_from_i32(I32)   i32_from_f32(F32)                             half to even; out of range: any value
//         f32_from_bits(I32)  bits_from_f32(F32)
//         f32_load_quads(const float*, ... 4 of them)                       lanes 4i to 4i + 3: four of pointer i
//         f32_spread(Float4 x)                                              lane i: x[i / 4]
//         f32_reduce_add(F32)  f32_reduce_max(F32)                          fixed tree: lanes 8, then 4, 2, 1 apart
//         f32_exp(F32)                                                      see exp.h
//   I32   i32_load(const int32_t*)  i32_store(int32_t*, I32)  i32_set(int32_t)  i32_zero()
//         add sub i32_and   i32_andnot(mask, a) = ~mask & a
//         max min   i32_shl(I32, int)  i32_shr(I32, int) (arithmetic)
//         i32_equal(I32 a, I32 b)                                           uint32_t, bit i: lanes i are equal
//         i32_quad_maxima(I32 x0, x1, x2, x3)                               lane 4j + i: the largest of quad j of xi
//         i32_swap_quads<kDistance>(I32)                                    quad j: what quad j ^ kDistance was
//         i32_first_quad(I32)                                               Int4, lanes 0 to 3
//         i32_store_sums(int32_t* p, I32 a, I32 b)                          p[0], p[1]: sums of lanes of 16 bits
//         i32_load_i8(const int8_t*)  i32_load_u8(const uint8_t*)           16 bytes, widened
//         i32_store_bytes(int8_t*, I32, I32)                                32 lanes; any byte where one needs more
//   Float4, Int4   four lanes with the compiler's operators, the same on every level
//   U8    u8_load(const uint8_t*)  u8_store(uint8_t*, U8)  u8_set(uint8_t)
//         u8_or(U8, U8)  u8_sub(U8, U8) (wraps)
//         u8_bits<kShift, kMask>(U8)    per byte (x >> kShift) & kMask, or x << -kShift; the mask keeps only bits that
//                                       come from the same byte
//         prefetch(const void*)                                             into all caches, a hint
//   int16 widen_32(int16_t* out, const int8_t* low)                         32 numbers
//         widen_32(int16_t* out, const int8_t* low, const int8_t* high)     low + 128 * high
//
//   Dot<kBits, kWide>  an accumulator of exact products of codes of kBits bits with activations, for 16 lanes and 4 K
//   at a time. Narrow: activations are int8 in [-127, 127]. Wide: int16 in [-16319, 16319]. Each level says
//        kUseWide<kBits, kExact>    whether it prefers the wide form for codes of kBits bits (kExact: 15-bit
//        activations) Dot::kCodeBytes            bytes of the level's expanded form of one U8 vector of codes (64 or
//        128) Dot::kQuadBytes            bytes of four activations (4 or 8) Dot::kSigned               expanded codes
//        are q - zero; otherwise they are the file's unsigned codes, and the
//                                   caller subtracts zero * (sum of activations)
//        static void expand(uint8_t* out, U8 codes)      from bytes: signed or unsigned as kSigned says
//        using Codes; static Codes load(const uint8_t*)  one expanded vector
//        void add<kQuad, kNumQuads>(Codes, const void* quad)   called once for each kQuad = 0 .. kNumQuads - 1 in order
//        I32 sum()
//        kAccumulates, void start(I32)      products are added to a sum at no cost: it begins with this one
//        static I32 quad_times_128(Codes, const void* quad)    128 times the products of four activations
//   Levels without a dot-product instruction keep 16-bit partial sums as long as they can't overflow.
//
// Each level's file ends with the tile sizes that its registers allow (kTileRows, kTilePanels), derived in a comment.
// Everything lives in an anonymous namespace within the level's: no symbol may be shared between levels.
#pragma once

#if !defined(PELTON_LEVEL)
#error "vec.h is for kernel files, which are compiled per level"
#endif

#include <cstdint>

#define PELTON_LEVEL_IS_generic 0
#define PELTON_LEVEL_IS_avx2 1
#define PELTON_LEVEL_IS_avx512 2
#define PELTON_LEVEL_IS_avx512vnni 2
#define PELTON_LEVEL_IS_neon 3
#define PELTON_LEVEL_IS_dotprod 3
#define PELTON_VEC_FILE2(level) PELTON_LEVEL_IS_##level
#define PELTON_VEC_FILE(level) PELTON_VEC_FILE2(level)

#if PELTON_VEC_FILE(PELTON_LEVEL) == 0
#define PELTON_INLINE inline  // arrays gain little from it, and the compiler takes minutes over loops in one piece
#define PELTON_INLINE_LAMBDA
#else
#define PELTON_INLINE inline __attribute__((always_inline))
#define PELTON_INLINE_LAMBDA __attribute__((always_inline))  // after a lambda's parameters
#endif

namespace pelton::PELTON_LEVEL {
namespace {
using Float4 = float __attribute__((vector_size(16)));
using Int4 = int32_t __attribute__((vector_size(16)));
}  // namespace
}  // namespace pelton::PELTON_LEVEL

#if PELTON_VEC_FILE(PELTON_LEVEL) == 0
#include "generic.h"
#elif PELTON_VEC_FILE(PELTON_LEVEL) == 1
#include "avx2.h"
#elif PELTON_VEC_FILE(PELTON_LEVEL) == 2
#include "avx512.h"
#else
#include "neon.h"
#endif

#include "exp.h"
