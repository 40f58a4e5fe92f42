// The activations of gates, in the words of the vocabulary.
#pragma once

#include "../vec/vec.h"

namespace pelton {

inline constexpr int kActivationSilu = 0;
inline constexpr int kActivationGeluTanh = 1;
inline constexpr int kActivationSigmoid = 2;

namespace PELTON_LEVEL {
namespace {

// x / (1 + e^-x). For x = -inf the quotient is -inf / inf, NaN, as anything that meets an infinity is in this engine.
PELTON_INLINE F32 silu(F32 x) {
  const F32 one = f32_set(1.0f);
  return div(x, add(one, f32_exp(sub(f32_zero(), x))));
}

// x / 2 * (1 + tanh(t)) with t = sqrt(2 / pi) * (x + 0.044715 x^3), written as x / (1 + e^-2t), which loses no digits
// where tanh(t) is near -1.
PELTON_INLINE F32 gelu_tanh(F32 x) {
  const F32 one = f32_set(1.0f);
  const F32 cubic = fma(mul(x, x), f32_set(0.044715f), one);               // 1 + 0.044715 x^2
  const F32 minus_2t = mul(mul(x, f32_set(-1.5957691216057308f)), cubic);  // -2 sqrt(2 / pi)
  return div(x, add(one, f32_exp(minus_2t)));
}

PELTON_INLINE F32 sigmoid(F32 x) {
  const F32 one = f32_set(1.0f);
  return div(one, add(one, f32_exp(sub(f32_zero(), x))));
}

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x| in (0, 1], and log(1 + u) = 2 artanh(s) with s = u / (2 + u),
// at most 1/3: the series to s^13 leaves s^14 / 15, 1.4e-8 of the result.
PELTON_INLINE F32 softplus(F32 x) {
  const F32 u = f32_exp(sub(f32_zero(), abs(x)));
  const F32 s = div(u, add(f32_set(2.0f), u));
  const F32 square = mul(s, s);
  F32 p = f32_set(2.0f / 13.0f);
  p = fma(p, square, f32_set(2.0f / 11.0f));
  p = fma(p, square, f32_set(2.0f / 9.0f));
  p = fma(p, square, f32_set(2.0f / 7.0f));
  p = fma(p, square, f32_set(2.0f / 5.0f));
  p = fma(p, square, f32_set(2.0f / 3.0f));
  p = fma(p, square, f32_set(2.0f));
  return fma(p, s, max(x, f32_zero()));
}

PELTON_INLINE F32 activate(int activation, F32 x) {
  if (activation == kActivationSigmoid) return sigmoid(x);
  return activation == kActivationSilu ? silu(x) : gelu_tanh(x);
}

}  // namespace
}  // namespace PELTON_LEVEL
}  // namespace pelton
