// The activations of gated feed-forward layers, in the words of the vocabulary.
#pragma once

#include "../vec/vec.h"

namespace pelton {

inline constexpr int kActivationSilu = 0;
inline constexpr int kActivationGeluTanh = 1;

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

PELTON_INLINE F32 activate(int activation, F32 x) { return activation == kActivationSilu ? silu(x) : gelu_tanh(x); }

}  // namespace
}  // namespace PELTON_LEVEL
}  // namespace pelton
