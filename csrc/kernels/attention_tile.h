// The two products of attention on a register tile: queries x keys and probabilities x values.
//
// Both are the same loop: acc[row][vector] = fma(a[row][k], b[k][vector], acc[row][vector]) for k in order, with a
// broadcast and b loaded and widened once for all rows of the tile. Each lane of each row is one chain of its own, so
// a row's bits do not depend on the tile it is in.
//
// Tile: per step of k, R broadcasts and V loads feed R * V multiply-adds. R * V accumulators, V operands and a
// broadcast must fit the registers, R * V must cover latency x throughput of the fma (4 x 2), and a large R pays for
// widening (two instructions per bf16 vector, on the ports of the fma on some machines: 12 rows make that 1/6 of the
// work).
//   avx512   32 registers of 16 lanes: 12 x 2 = 24 accumulators + 2 + 1
//   avx2     16 registers of 8 lanes, F32 is two: 6 x 1 = 12 + 2 + 1
//   neon     32 registers of 4 lanes, F32 is four: 6 x 1 = 24 + 4 + 1
//   generic  16 registers of 4 lanes (x86-64 baseline), F32 is four: 2 x 1 = 8 + 4 + 1
// Fewer rows take more vectors at a time, up to 4: with one row, 4 chains are what head_dim 64 has.
#pragma once

#include "../attention_plan.h"
#include "../vec/vec.h"
#include "kv_block.h"

namespace pelton::PELTON_LEVEL {
namespace {

#if defined(PELTON_LEVEL_avx512) || defined(PELTON_LEVEL_avx512vnni)
constexpr int kAccumulators = 24;
constexpr int kQueryRows = 12;
#elif defined(PELTON_LEVEL_generic)
constexpr int kAccumulators = 2;
constexpr int kQueryRows = 2;
#else
constexpr int kAccumulators = 6;
constexpr int kQueryRows = 6;
#endif

constexpr int tile_vectors(int rows) { return kAccumulators >= 4 * rows ? 4 : kAccumulators >= 2 * rows ? 2 : 1; }

// Tiles exist for 12, 8, 6, 4, 3, 2, 1 rows; other counts take the next larger one. What it finds in the rows behind is
// computed and never read: the caller keeps zeros there, since denormal leftovers would be slow.
constexpr int smaller_tile(int rows) { return rows == 12 ? 8 : rows == 8 ? 6 : rows == 6 ? 4 : rows - 1; }
constexpr int tile_rows(int rows) {
  int tile = kQueryRows;
  while (tile > 1 && rows <= smaller_tile(tile)) tile = smaller_tile(tile);
  return tile;
}

// Every row that attention works on (a query, a row of scores, a state) has this many floats: 256 of them, and a line
// more at the front of a state (kStateValues) which also keeps rows from falling on the same sets of a cache.
constexpr int kRowFloats = 256 + 16;
static_assert(kSplitTokens <= kRowFloats && kStateValues + kMaxHeadDim <= kRowFloats, "a row holds each of them");

// scores[row][v * 16 + lane] = sum over d of query[row][d] * keys[v][d][lane], one block of 16 tokens per vector.
template <class Element, int R, int V>
inline void score_tile(const float* query, int64_t head_dim, const uint8_t* const* keys, float* scores) {
  const typename Element::Type* key[V];
  F32 acc[R][V];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) key[v] = reinterpret_cast<const typename Element::Type*>(keys[v]);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = f32_zero();
  }
  for (int64_t d = 0; d < head_dim; ++d) {
    F32 b[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) b[v] = Element::load(key[v] + d * kBlockTokens);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const F32 a = f32_set(query[r * kRowFloats + d]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) f32_store(scores + r * kRowFloats + v * 16, acc[r][v]);
  }
}

// out[row][v * 16 + lane] += sum over t of probabilities[row][t] * value[t][v * 16 + lane], t in [first, end) counted
// from the split's start. out: from `column` on. kTail: fewer than 16 columns are left. The lanes behind them read the
// next token, and are never used; only the block's end must not be passed.
template <class Element, int R, int V, bool kTail>
inline void value_tile(const float* probabilities, int first, int end, const uint8_t* const* values, int64_t column,
                       int64_t head_dim, float* out) {
  F32 acc[R][V];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) acc[r][v] = f32_load(out + r * kRowFloats + v * 16);
  }
  for (int t = first; t < end;) {
    const auto* block = reinterpret_cast<const typename Element::Type*>(values[t / kBlockTokens]) + column;
    const int block_end = (t / kBlockTokens + 1) * kBlockTokens;
    const int stop = block_end < end ? block_end : end;
    const auto* value = block + (t % kBlockTokens) * head_dim;
    const auto* last_whole = block + kBlockTokens * head_dim - column - 16;
    for (; t < stop; ++t, value += head_dim) {
      F32 b[V];
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) {
        b[v] =
            kTail && value > last_whole ? load_some<Element>(value, head_dim - column) : Element::load(value + v * 16);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const F32 a = f32_set(probabilities[r * kRowFloats + t]);
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) acc[r][v] = fma(a, b[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) f32_store(out + r * kRowFloats + v * 16, acc[r][v]);
  }
}

// Scores of `rows` queries (at most kQueryRows) against whole blocks.
template <class Element, int R = kQueryRows>
inline void score_blocks(int rows, const float* query, int64_t head_dim, const uint8_t* const* keys, int num_blocks,
                         float* scores) {
  if constexpr (R > 1) {
    constexpr int kSmaller = smaller_tile(R);
    if (rows <= kSmaller) return score_blocks<Element, kSmaller>(rows, query, head_dim, keys, num_blocks, scores);
  }
  constexpr int V = tile_vectors(R);
  int block = 0;
  for (; block + V <= num_blocks; block += V) {
    score_tile<Element, R, V>(query, head_dim, keys + block, scores + block * kBlockTokens);
  }
  if constexpr (V > 1) {
    for (; block < num_blocks; ++block) {
      score_tile<Element, R, 1>(query, head_dim, keys + block, scores + block * kBlockTokens);
    }
  }
}

// Adds the tokens [first, end) of a split to the weighted values of `rows` queries (at most kQueryRows).
template <class Element, int R = kQueryRows>
inline void add_values(int rows, const float* probabilities, int first, int end, const uint8_t* const* values,
                       int64_t head_dim, float* out) {
  if (first >= end) return;
  if constexpr (R > 1) {
    constexpr int kSmaller = smaller_tile(R);
    if (rows <= kSmaller) return add_values<Element, kSmaller>(rows, probabilities, first, end, values, head_dim, out);
  }
  constexpr int V = tile_vectors(R);
  int64_t column = 0;
  for (; column + 16 * V <= head_dim; column += 16 * V) {
    value_tile<Element, R, V, false>(probabilities, first, end, values, column, head_dim, out + column);
  }
  if constexpr (V > 1) {
    for (; column + 16 <= head_dim; column += 16) {
      value_tile<Element, R, 1, false>(probabilities, first, end, values, column, head_dim, out + column);
    }
  }
  if (column < head_dim) {
    value_tile<Element, R, 1, true>(probabilities, first, end, values, column, head_dim, out + column);
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
