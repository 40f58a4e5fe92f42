// The vector vocabulary: the only words in which kernels speak to an instruction set.
//
// Every level offers the same types, 16 lanes wide whatever the registers are (one zmm, two ymm, four NEON q, or a
// plain array), so that a kernel is written once and gives one order of operations on all levels:
//
//   F32   16 x float             I32   16 x int32            U8   64 x uint8 (16 lanes x 4 consecutive K)
//
//   F32  f32_load(const float*) f32_store(float*, F32) f32_set(float) f32_zero()
//        f32_load_partial(const float*, int n) f32_store_partial(float*, F32, int n)    lanes >= n read as 0 / not written
//        f32_load_f16(const uint16_t*) f32_load_bf16(const uint16_t*) f32_store_bf16(uint16_t*, F32)  (round to nearest even)
//        f32_store_f16(uint16_t*, F32)
//        add sub mul div max min abs   fma(a, b, c) = a*b + c, one rounding on every level (generic: std fmaf)
//        f32_from_i32(I32)  i32_from_f32(F32) (round half to even)   f32_reduce_add / f32_reduce_max: a fixed tree over 16 lanes
//        f32_exp(F32)  the same polynomial on every level, error bound written beside it
//   I32  i32_load i32_store i32_set i32_zero add sub i32_shl(I32, int)
//   U8   u8_load(const uint8_t*) u8_and(U8, uint8_t) u8_shr(U8, int) (per byte) u8_or
//   Dot<Bits>  an accumulator of exact products of codes of `Bits` bits with signed bytes:
//        void add(U8 codes, int32_t quad)   lane += sum over its 4 bytes of code * quad's signed byte (quad broadcast to lanes)
//        I32  sum()
//        Levels without a dot-product instruction keep 16-bit partial sums as long as they can't overflow for `Bits`
//        bits and activations in [-127, 127].
//
// Each level's file ends with the tile sizes that its registers allow (kTileRows, kTilePanels), derived in a comment.
#pragma once

#if !defined(PELTON_LEVEL)
#error "vec.h is for kernel files, which are compiled per level"
#endif
