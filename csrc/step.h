// What the engine tells the kernels about one step: which rows belong to whom, and where their KV cache lives.
// Knows nothing of Python, of models, or of any instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pelton {

// Tokens in one block of the KV cache, in every group. One block of one layer's keys is a whole number of vectors.
inline constexpr int kBlockTokens = 16;

// Rows for which the head, log-softmax and sampling run at a time. No more logits than this ever exist.
inline constexpr int kHeadRows = 32;

// Block tables hold byte offsets from the pool's base in units of 64 bytes, so 32 bits address 256 GiB.
inline constexpr int kOffsetUnit = 64;
inline constexpr uint32_t kNoBlock = 0xffffffffu;  // a window layer gave this block back; it is never read

// One sequence's part of a step: rows [first_row, first_row + num_rows) hold its tokens at
// positions [context, context + num_rows).
struct SequenceRows {
  int32_t first_row;
  int32_t num_rows;
  int32_t context;  // tokens in the cache before this step
  int32_t slot;
  // tables[group][b]: where the block with tokens [b * 16, b * 16 + 16) starts, in units of 64 bytes.
  const uint32_t* const* tables;
};

// The symbolic sizes of a graph. A node runs over the rows of one of them.
enum class Dim : int32_t { kTokens = 0, kRows = 1 };

struct Step {
  int64_t num_tokens;  // rows of the body: every token computed in this step
  int64_t num_rows;    // rows of the present head tile, at most kHeadRows
  int64_t num_sequences;
  const int32_t* token_ids;     // [num_tokens]
  const int32_t* positions;     // [num_tokens] absolute
  const int32_t* row_sequence;  // [num_tokens] index into sequences
  const SequenceRows* sequences;
  const int32_t* logit_rows;  // [num_rows] body rows that the present head tile reads
  uint8_t* kv_pool;
  int32_t num_threads;  // may shape how work is cut, never a result

  int64_t rows(Dim dim) const { return dim == Dim::kTokens ? num_tokens : num_rows; }
};

}  // namespace pelton
