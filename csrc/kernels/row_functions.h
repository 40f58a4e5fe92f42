// What a fused kernel does to one vector of a row, shared with the kernels that do only that: both give the same bits.
#pragma once

#include "../kernel_table.h"
#include "../vec/vec.h"

namespace pelton::PELTON_LEVEL {
namespace {

inline int lanes_left(int64_t columns, int64_t column) {
  return static_cast<int>(columns - column < 16 ? columns - column : 16);
}

// Rows of a piece: enough that threads get about four pieces each, at most `max_rows`.
inline int64_t rows_per_piece(const Step& step, Dim dim, int64_t max_rows) {
  const int64_t rows = step.rows(dim) / (4 * step.num_threads);
  return rows < 1 ? 1 : rows > max_rows ? max_rows : rows;
}

// Sum of squares: chains of fma over vectors i, i + 4, i + 8, ... for i = 0 .. 3 (four to cover the latency), then
// (0 + 2) + (1 + 3), then the fixed tree over lanes.
inline float sum_of_squares(const float* x, int64_t columns) {
  F32 sums[4] = {f32_zero(), f32_zero(), f32_zero(), f32_zero()};
  int64_t column = 0;
  for (; column + 64 <= columns; column += 64) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F32 v = f32_load(x + column + 16 * i);
      sums[i] = fma(v, v, sums[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    if (column + 16 * i < columns) {
      const F32 v = f32_load_partial(x + column + 16 * i, lanes_left(columns, column + 16 * i));
      sums[i] = fma(v, v, sums[i]);
    }
  }
  return f32_reduce_add(add(add(sums[0], sums[2]), add(sums[1], sums[3])));
}

// out = (x * (1 / sqrt(mean(x^2) + eps))) * weight, each operation rounded. out may be x.
inline void rms_norm_vector(const float* x, const float* weight, int64_t columns, float eps, float* out) {
  const float mean = sum_of_squares(x, columns) / static_cast<float>(columns);
  const F32 inverse = f32_set(1.0f / __builtin_sqrtf(mean + eps));
  int64_t column = 0;
  for (; column + 16 <= columns; column += 16) {
    f32_store(out + column, mul(mul(f32_load(x + column), inverse), f32_load(weight + column)));
  }
  if (column < columns) {
    const int lanes = lanes_left(columns, column);
    const F32 v = f32_load_partial(x + column, lanes);
    const F32 w = f32_load_partial(weight + column, lanes);
    f32_store_partial(out + column, mul(mul(v, inverse), w), lanes);
  }
}

// Rotate-half: with h = dim / 2 and a = x[i], b = x[i + h] for i < h,
//     out[i] = a * cos[i] - b * sin[i]      out[i + h] = b * cos[i] + a * sin[i]
// the first product rounded, the second one fused with the sum. Dimensions from dim on are copied. out may be x.
// table: a row of rope_table, cos[h] then sin[h].
inline void rope_vector(const float* x, const float* table, int64_t dim, int64_t head_dim, float* out) {
  const int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const int lanes = lanes_left(half, i);
    const F32 a = f32_load_partial(x + i, lanes);
    const F32 b = f32_load_partial(x + half + i, lanes);
    const F32 cosine = f32_load_partial(table + i, lanes);
    const F32 sine = f32_load_partial(table + half + i, lanes);
    const F32 minus_b = sub(f32_zero(), b);
    f32_store_partial(out + i, fma(minus_b, sine, mul(a, cosine)), lanes);
    f32_store_partial(out + half + i, fma(a, sine, mul(b, cosine)), lanes);
  }
  if (out == x) return;
  for (int64_t d = dim; d < head_dim; d += 16) {
    const int lanes = lanes_left(head_dim, d);
    f32_store_partial(out + d, f32_load_partial(x + d, lanes), lanes);
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
