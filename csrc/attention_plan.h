// How a step's attention is cut into pieces: made once per step, read by every layer that has the same cache group,
// heads and head size. Knows rows and contexts, not keys or values. Nothing here can change a result, only who computes
// what, and when.
//
// A *split* is the kSplitTokens tokens [s * 256, s * 256 + 256) of a sequence, by absolute position. For each row and
// head a split gives (maximum, sum, weighted values), and a row's splits are merged in order: that is the one
// definition of the result, whoever computes the splits.
// A *unit* is up to kMaxUnitRows consecutive rows of one sequence: they share each pass over keys and values.
// An *item* is a unit over a range of its splits; item x kv head is one piece of the kernel `attention`.
// A unit with one item is finished by the piece that computes it. The pieces of a unit with several items leave their
// splits in the workspace as *partials*, and the last of them to arrive merges: no second node, no barrier, and nobody
// waits, since what the last one does is the same whoever it is.
//
// The workspace, in this order: AttentionPlan, units, items, partials.
#pragma once

#include <cstddef>
#include <cstdint>

#include "step.h"

namespace pelton {
namespace {

// Splits of 256: the scores of one register tile (12 rows x 256 x 4 bytes) stay in half of a 32 KiB L1 cache, a split's
// keys and values (64 KiB in bf16 with 64 dimensions, 128 KiB with 128) stay in L2 while the tiles of a unit pass over
// them, and a lone sequence of 2,048 tokens still gives eight splits per kv head to share among threads. The merge
// costs two multiply-adds per split and value, less than 1 % of the 256 that the split itself needs.
constexpr int kSplitTokens = 256;
constexpr int kSplitBlocks = kSplitTokens / kBlockTokens;

// Sixteen rows of one query head are a full register tile on every level; with more heads per kv head it is several.
constexpr int kMaxUnitRows = 16;
// Rows x query heads per kv head of a unit, bounded by the thread's scratch memory.
constexpr int kMaxUnitQueries = 128;
// Enough queries to fill the largest register tile: smaller units would only read keys and values more often.
constexpr int kFullTileQueries = 12;
// Pieces per thread that the plan aims for, so that the last ones to finish are at most about 1/4 of a thread's work.
constexpr int kPiecesPerThread = 4;

struct AttentionUnit {
  int32_t sequence;
  int32_t first_row;
  int32_t num_rows;
  int32_t first_split;  // of its first row: a window may hide the splits before it
  int32_t end_split;    // one past its last row's own
  int32_t num_items;
  int32_t arrived;  // pieces that are done; the last one sets it back to 0 for the next layer
  int32_t unused;
  int64_t partial_offset;  // bytes from the workspace's start to [split][row][head] partials; 0: none, one item
  int64_t padding[3];      // a cache line of its own: `arrived` is shared between threads
};
static_assert(sizeof(AttentionUnit) == 64, "one cache line");

struct AttentionItem {
  int32_t unit;
  int32_t first_split;
  int32_t end_split;
  int32_t unused;
};
static_assert(sizeof(AttentionItem) == 16, "packed");

struct AttentionPlan {
  int64_t num_units;
  int64_t num_items;
  int64_t items_offset;
  int64_t padding[5];

  AttentionUnit* units() { return reinterpret_cast<AttentionUnit*>(this + 1); }
  AttentionItem* items() { return reinterpret_cast<AttentionItem*>(reinterpret_cast<uint8_t*>(this) + items_offset); }
};
static_assert(sizeof(AttentionPlan) == 64, "keeps the units on cache lines");

// A row's part of one head: maximum at [0], sum at [1], weighted values from [kStateValues].
constexpr int kStateValues = 16;
inline int64_t partial_floats(int64_t head_dim) { return kStateValues + (head_dim + 15) / 16 * 16; }

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// First position that the token at `position` sees. window: tokens seen, its own included; 0 sees all.
inline int64_t first_visible(int64_t position, int64_t window) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

// Items beyond one per unit that a plan may have: with them a lone unit gives every thread kPiecesPerThread pieces.
inline int64_t extra_items(int64_t num_threads, int64_t kv_heads) {
  return divide_up(kPiecesPerThread * num_threads, kv_heads);
}

// Rows per unit: as many as share well, fewer while threads would go without work.
inline int64_t unit_rows(const Step& step, int64_t heads, int64_t kv_heads) {
  const int64_t queries_per_row = heads / kv_heads;
  int64_t rows = kMaxUnitRows;
  while (rows > 1 && rows * queries_per_row > kMaxUnitQueries) rows /= 2;
  while (rows > 1 && rows / 2 * queries_per_row >= kFullTileQueries &&
         divide_up(step.num_tokens, rows) * kv_heads < kPiecesPerThread * step.num_threads) {
    rows /= 2;
  }
  return rows;
}

inline int64_t num_units(const Step& step, int64_t rows_per_unit) {
  int64_t count = 0;
  for (int64_t s = 0; s < step.num_sequences; ++s) count += divide_up(step.sequences[s].num_rows, rows_per_unit);
  return count;
}

// Bytes of a workspace for steps of up to max_tokens rows. Partials: as many as the units that are worth cutting can
// need when each is one row at the full context; a unit that finds no room stays whole.
inline int64_t attention_workspace_bytes(int64_t max_tokens, int64_t max_context, int64_t num_threads, int64_t heads,
                                         int64_t kv_heads, int64_t head_dim) {
  const int64_t extra = extra_items(num_threads, kv_heads);
  const int64_t plan = sizeof(AttentionPlan) + max_tokens * sizeof(AttentionUnit) +
                       divide_up((max_tokens + extra) * sizeof(AttentionItem), 64) * 64;
  const int64_t partials = (extra + 1) * divide_up(max_context, kSplitTokens);
  return plan + partials * heads * partial_floats(head_dim) * static_cast<int64_t>(sizeof(float));
}

}  // namespace
}  // namespace pelton
