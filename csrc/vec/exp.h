// The exponential function in the words of the vocabulary: the same operations, hence the same bits, on every level.
#pragma once

namespace pelton::PELTON_LEVEL {
namespace {

// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln 2 / 2, and e^r = 1 + r + r^2 * P(r). P has degree 4 (weighted
// minimax fit of the relative error, 3.1e-9 before rounding of the coefficients). ln 2 is split in two so that n * high
// is exact. Measured over [-87, 88.7]: relative error below 8.3e-8, 1.4 units
// in the last place at most. Below -104 the result is 0,
// denormal results are rounded once more, above 88.73 it is infinity, and NaN stays NaN.
PELTON_INLINE F32 f32_exp(F32 x) {
  x = min(f32_set(89.0f), max(f32_set(-104.0f), x));
  const I32 n = i32_from_f32(mul(x, f32_set(0x1.715476p+0f)));
  const F32 n_float = f32_from_i32(n);
  F32 r = fma(n_float, f32_set(-0x1.62e4p-1f), x);
  r = fma(n_float, f32_set(-0x1.7f7d1cp-20f), r);
  F32 p = f32_set(0x1.6a2352p-10f);
  p = fma(p, r, f32_set(0x1.123a6cp-7f));
  p = fma(p, r, f32_set(0x1.5558f4p-5f));
  p = fma(p, r, f32_set(0x1.55549p-3f));
  p = fma(p, r, f32_set(0x1.fffffcp-2f));
  const F32 e_r = add(fma(mul(r, r), p, r), f32_set(1.0f));
  // 2^n in two factors, since n reaches -150 and 128.
  const I32 half = i32_shr(n, 1);
  const I32 bias = i32_set(127);
  const F32 first = f32_from_bits(i32_shl(add(half, bias), 23));
  const F32 second = f32_from_bits(i32_shl(add(sub(n, half), bias), 23));
  return mul(mul(e_r, first), second);
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
