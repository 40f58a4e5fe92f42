// `attention`: softmax(scale * q k^T) v over the paged KV cache, causal, with an optional window, grouped queries.
//
// One definition for one row and many. A row's visible tokens [first, position] are cut at the multiples of 256 of the
// absolute position (kSplitTokens). Within a split, for one query head:
//     s[t] = sum over d of (q[d] * scale) * k[t][d]          one chain of fma in the order of d
//     m = max s,  p[t] = exp(s[t] - m)                       visible t only
//     l = sum p                                              16 lanes by t % 16, then a fixed tree
//     a[d] = sum over t of p[t] * v[t][d]                    one chain of fma in the order of t, visible t only
// and the splits (m, l, a) are merged in order of position (merge below); the result is a / l.
//
// None of these operations depends on what else is computed, so decode, prefill, chunks, other sequences and threads
// give the same bits. Skipping blocks that a row can't see changes nothing either: what is not visible never takes
// part. A vector of scores has a token per lane, so unwritten or later tokens spoil only their own lanes, which are
// overwritten with -infinity before m is taken (their p is exactly 0, and l + 0 = l); the products with v run over the
// visible tokens only, never over 0 * v, which would be NaN for a v that is not finite.
//
// Rows of a unit (csrc/attention_plan.h) times the query heads of a kv head are *queries*; register tiles take them in
// flat order, row by row, so any number of heads per kv head fills them, and each pass over a split's keys and values
// serves all of them.
#include "../attention_plan.h"
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "activation_blocks.h"
#include "attention_tile.h"
#include "kv_block.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

struct Arguments {
  const float* query;
  float* out;
  uint8_t* blocks;
  uint8_t* workspace;
  int64_t heads, kv_heads, head_dim, query_stride, out_stride, group, key_offset, value_offset, window, kv_type;
  int mode;
  float scale;

  explicit Arguments(const Node& node)
      : query(static_cast<const float*>(node.pointer[0])),
        out(static_cast<float*>(node.pointer[1])),
        blocks(static_cast<uint8_t*>(node.pointer[2])),
        workspace(static_cast<uint8_t*>(node.pointer[3])),
        heads(node.size[0]),
        kv_heads(node.size[1]),
        head_dim(node.size[2]),
        query_stride(node.size[3]),
        out_stride(node.size[4]),
        group(node.size[5]),
        key_offset(node.size[6]),
        value_offset(node.size[7]),
        window(node.size[8]),
        kv_type(node.size[9]),
        mode(static_cast<int>(node.size[10])),
        scale(node.value[0]) {}

  AttentionPlan* plan() const { return reinterpret_cast<AttentionPlan*>(workspace); }
};

// One row and head. It sees the tokens [first, position].
struct Query {
  int64_t row, head, first, position;
};

// Working memory of one piece, in the thread's scratch. A state is (m, l, a) with a from kStateValues.
struct Memory {
  Query* queries;  // [kMaxUnitQueries] row by row
  float* vectors;  // [kMaxUnitQueries][kRowFloats], q multiplied by the scale
  float* states;   // [kMaxUnitQueries][kRowFloats], splits merged so far
  float* scores;   // [kQueryRows][kRowFloats], then probabilities
  float* tile;     // [kQueryRows][kRowFloats], states of one split

  explicit Memory(const Scratch& scratch) {
    queries = reinterpret_cast<Query*>(scratch.data);
    vectors = reinterpret_cast<float*>(queries + kMaxUnitQueries);
    states = vectors + kMaxUnitQueries * kRowFloats;
    scores = states + kMaxUnitQueries * kRowFloats;
    tile = scores + kQueryRows * kRowFloats;
  }
};
static_assert(sizeof(Query) * kMaxUnitQueries % 64 == 0, "vectors start on a cache line");
static_assert(sizeof(Query) * kMaxUnitQueries + (2 * kMaxUnitQueries + 2 * kQueryRows) * kRowFloats * sizeof(float) <=
                  kScratchBytes,
              "fits the scratch");

// Tokens of one split that a query sees, counted from the split's start. Empty if first >= end.
struct Range {
  int first, end;
};

Range visible(const Query& query, int split) {
  const int64_t start = int64_t{split} * kSplitTokens;
  const int64_t first = query.first - start, end = query.position + 1 - start;
  return {static_cast<int>(first < 0 ? 0 : first), static_cast<int>(end > kSplitTokens ? kSplitTokens : end)};
}

// One piece: a unit's rows with the query heads of one kv head.
struct Piece {
  const Arguments& a;
  const Step& step;
  const AttentionUnit& unit;
  const SequenceRows& sequence;
  Memory memory;
  int64_t kv_head;
  int num_queries;

  Piece(const Arguments& arguments, const Step& present, const AttentionUnit& rows, const Scratch& scratch)
      : a(arguments), step(present), unit(rows), sequence(present.sequences[rows.sequence]), memory(scratch) {}

  void take_head(int64_t head) {
    const int64_t group = a.heads / a.kv_heads;
    kv_head = head;
    num_queries = 0;
    for (int64_t row = unit.first_row; row < unit.first_row + unit.num_rows; ++row) {
      const int64_t position = cache_position(sequence, row);
      const int64_t first = first_visible(position, a.window);
      for (int64_t i = 0; i < group; ++i) memory.queries[num_queries++] = {row, head * group + i, first, position};
    }
  }

  // The unit's partial of a split, or null if the unit is one item.
  float* partial(const Query& query, int split) const {
    if (unit.partial_offset == 0) return nullptr;
    const int64_t row = int64_t{split - unit.first_split} * unit.num_rows + query.row - unit.first_row;
    return reinterpret_cast<float*>(a.workspace + unit.partial_offset) +
           (row * a.heads + query.head) * partial_floats(a.head_dim);
  }
};

void clear(float* vector, int64_t head_dim) {
  for (int64_t d = 0; d < head_dim; d += 16) f32_store(vector + d, f32_zero());
}

void load_vectors(const Piece& piece) {
  const F32 scale = f32_set(piece.a.scale);
  const int64_t head_dim = piece.a.head_dim;
  float* to = piece.memory.vectors;
  for (int i = 0; i < piece.num_queries; ++i, to += kRowFloats) {
    const Query& query = piece.memory.queries[i];
    const float* from = piece.a.query + query.row * piece.a.query_stride + query.head * head_dim;
    for (int64_t d = 0; d < head_dim; d += 16) {
      f32_store(to + d, mul(f32_load_partial(from + d, lanes_left(head_dim, d)), scale));
    }
  }
  const int in_last_tile = (piece.num_queries - 1) % kQueryRows + 1;
  for (int i = in_last_tile; i < tile_rows(in_last_tile); ++i, to += kRowFloats) clear(to, head_dim);
}

// Scores of one query to probabilities, in place; maximum and sum into the state.
void softmax(float* scores, Range range, float* state) {
  const int first_block = range.first / kBlockTokens * kBlockTokens;
  const int end_block = (range.end + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
  for (int t = first_block; t < range.first; ++t) scores[t] = -__builtin_inff();
  for (int t = range.end; t < end_block; ++t) scores[t] = -__builtin_inff();
  F32 lanes = f32_load(scores + first_block);
  for (int t = first_block + 16; t < end_block; t += 16) lanes = max(lanes, f32_load(scores + t));
  state[0] = f32_reduce_max(lanes);
  const F32 maximum = f32_set(state[0]);
  F32 sum = f32_zero();
  for (int t = first_block; t < end_block; t += 16) {
    const F32 p = f32_exp(sub(f32_load(scores + t), maximum));
    f32_store(scores + t, p);
    sum = add(sum, p);
  }
  state[1] = f32_reduce_add(sum);
}

// Takes the next split of a query into its state: both are scaled to the larger maximum.
void merge(float* state, const float* split, int64_t head_dim) {
  const F32 maximum = max(f32_set(state[0]), f32_set(split[0]));
  const F32 old_factor = f32_exp(sub(f32_set(state[0]), maximum));
  const F32 new_factor = f32_exp(sub(f32_set(split[0]), maximum));
  const auto join = [&](F32 before, F32 now) { return fma(before, old_factor, mul(now, new_factor)); };
  const F32 sum = join(f32_set(state[1]), f32_set(split[1]));
  f32_store_partial(state, maximum, 1);
  f32_store_partial(state + 1, sum, 1);
  for (int64_t d = kStateValues; d < kStateValues + head_dim; d += 16) {
    f32_store(state + d, join(f32_load(state + d), f32_load(split + d)));
  }
}

void copy_state(float* to, const float* from, int64_t head_dim) {
  std::memcpy(to, from, static_cast<size_t>(kStateValues + head_dim) * sizeof(float));
}

void write_out(const Piece& piece, const Query& query, const float* state) {
  const int64_t head_dim = piece.a.head_dim;
  float* out = piece.a.out + query.row * piece.a.out_stride + query.head * head_dim;
  const F32 sum = f32_set(state[1]);
  for (int64_t d = 0; d < head_dim; d += 16) {
    f32_store_partial(out + d, div(f32_load(state + kStateValues + d), sum), lanes_left(head_dim, d));
  }
}

// A query's next split into its state, which the first one makes.
void take_split(const Piece& piece, const Query& query, int split, const float* from, float* state) {
  if (query.first / kSplitTokens == split) {
    copy_state(state, from, piece.a.head_dim);
  } else {
    merge(state, from, piece.a.head_dim);
  }
}

// Where a split's keys and values of this kv head lie, by block. Only blocks that some query sees are looked up.
template <class Element>
struct SplitBlocks {
  const uint8_t* keys[kSplitBlocks];
  const uint8_t* values[kSplitBlocks];

  SplitBlocks(const Piece& piece, int split, Range range) {
    const int64_t head_bytes = kv_head_bytes<Element>(piece.a.head_dim);
    for (int b = range.first / kBlockTokens; b * kBlockTokens < range.end; ++b) {
      const uint8_t* block =
          block_address(piece.step, piece.sequence, piece.a.group, int64_t{split} * kSplitBlocks + b);
      keys[b] = block + piece.a.key_offset + piece.kv_head * head_bytes;
      values[b] = block + piece.a.value_offset + piece.kv_head * head_bytes;
    }
  }
};

// The queries [first, first + rows) of one split: tile states in memory.tile. `all` covers the ranges of all of them.
template <class Element>
void compute_tile(const Piece& piece, const SplitBlocks<Element>& blocks, int first, int rows, const Range* ranges,
                  Range all) {
  const Memory& memory = piece.memory;
  const int64_t head_dim = piece.a.head_dim;
  const int first_block = all.first / kBlockTokens;
  const int num_blocks = (all.end + kBlockTokens - 1) / kBlockTokens - first_block;
  score_blocks<Element>(rows, memory.vectors + first * kRowFloats, head_dim, blocks.keys + first_block, num_blocks,
                        memory.scores + first_block * kBlockTokens);
  // Tokens that all of them see go through the tile together, the few before and after row by row.
  Range common = {0, kSplitTokens};
  for (int i = 0; i < rows; ++i) {
    common.first = ranges[i].first > common.first ? ranges[i].first : common.first;
    common.end = ranges[i].end < common.end ? ranges[i].end : common.end;
  }
  if (common.end < common.first) common.end = common.first;
  float* values = memory.tile + kStateValues;
  for (int i = 0; i < tile_rows(rows); ++i) clear(values + i * kRowFloats, head_dim);
  for (int i = 0; i < rows; ++i) {
    const Range range = ranges[i];
    float* out = values + i * kRowFloats;
    if (range.first >= range.end) continue;
    softmax(memory.scores + i * kRowFloats, range, memory.tile + i * kRowFloats);
    const int before = range.end < common.first ? range.end : common.first;
    add_values<Element>(1, memory.scores + i * kRowFloats, range.first, before, blocks.values, head_dim, out);
  }
  add_values<Element>(rows, memory.scores, common.first, common.end, blocks.values, head_dim, values);
  for (int i = 0; i < rows; ++i) {
    const int after = ranges[i].first > common.end ? ranges[i].first : common.end;
    add_values<Element>(1, memory.scores + i * kRowFloats, after, ranges[i].end, blocks.values, head_dim,
                        values + i * kRowFloats);
  }
}

template <class Element>
void compute_split(const Piece& piece, int split) {
  const Memory& memory = piece.memory;
  const Query* queries = memory.queries;
  const Range whole = {visible(queries[0], split).first, visible(queries[piece.num_queries - 1], split).end};
  const SplitBlocks<Element> blocks(piece, split, whole);
  for (int first = 0; first < piece.num_queries; first += kQueryRows) {
    const int left = piece.num_queries - first, rows = left < kQueryRows ? left : kQueryRows;
    Range ranges[kQueryRows];
    for (int i = 0; i < rows; ++i) ranges[i] = visible(queries[first + i], split);
    const Range all = {ranges[0].first, ranges[rows - 1].end};
    if (all.first >= all.end) continue;
    compute_tile(piece, blocks, first, rows, ranges, all);
    for (int i = 0; i < rows; ++i) {
      if (ranges[i].first >= ranges[i].end) continue;
      const Query& query = queries[first + i];
      const float* from = memory.tile + i * kRowFloats;
      if (float* partial = piece.partial(query, split)) {
        copy_state(partial, from, piece.a.head_dim);
      } else {
        take_split(piece, query, split, from, memory.states + (first + i) * kRowFloats);
      }
    }
  }
}

template <class Element>
void compute_item(const Piece& piece, const AttentionItem& item) {
  load_vectors(piece);
  for (int split = item.first_split; split < item.end_split; ++split) compute_split<Element>(piece, split);
  if (piece.unit.partial_offset != 0) return;
  for (int i = 0; i < piece.num_queries; ++i) {
    write_out(piece, piece.memory.queries[i], piece.memory.states + i * kRowFloats);
  }
}

// Merges the partials of the unit's rows for one kv head.
void merge_partials(const Piece& piece) {
  float* state = piece.memory.states;
  for (int i = 0; i < piece.num_queries; ++i) {
    const Query& query = piece.memory.queries[i];
    const int64_t last_split = query.position / kSplitTokens;
    for (int split = static_cast<int>(query.first / kSplitTokens); split <= last_split; ++split) {
      take_split(piece, query, split, piece.partial(query, split), state);
    }
    write_out(piece, query, state);
  }
}

// What is left when all pieces of a unit are done: whoever comes last does it, and what he does is fixed.
void finish_unit(const Arguments& a, Piece& piece) {
  if (piece.unit.partial_offset != 0) {
    for (int64_t head = 0; head < a.kv_heads; ++head) {
      piece.take_head(head);
      merge_partials(piece);
    }
  }
  if (a.blocks == nullptr) return;
  const int64_t columns = a.heads * a.head_dim;
  const int64_t row_bytes = activation_row_bytes(columns, a.mode);
  for (int64_t row = piece.unit.first_row; row < piece.unit.first_row + piece.unit.num_rows; ++row) {
    quantise_row(a.out + row * a.out_stride, columns, a.mode, a.blocks + row * row_bytes);
  }
}

// P0 q, P1 out f32, P2 out blocks or null (a row is quantised from P1 once all of its heads stand there), P3 workspace
// with the step's plan (see attention_plan); S0 heads S1 kv_heads S2 head_dim S3 q stride S4 out stride S5 group
// S6 key offset S7 value offset (bytes from the block's start, layout in kv_block.h) S8 window (0: none) S9 KvType S10
// mode of the blocks; V0 scale. head_dim is at most 256; at most 128 query heads share a kv head.
void run(const Node& node, const Step& step, int64_t index, Scratch& scratch) {
  const Arguments a(node);
  AttentionPlan* plan = a.plan();
  if (index / a.kv_heads >= plan->num_items) return;
  const AttentionItem& item = plan->items()[index / a.kv_heads];
  AttentionUnit& unit = plan->units()[item.unit];
  Piece piece(a, step, unit, scratch);
  piece.take_head(index % a.kv_heads);
  if (a.kv_type == kKvBf16) compute_item<Bf16>(piece, item);
  if (a.kv_type == kKvF16) compute_item<F16>(piece, item);
  if (a.kv_type == kKvF32) compute_item<Float>(piece, item);
  if (unit.partial_offset == 0 && a.blocks == nullptr) return;
  const int64_t parts = unit.num_items * a.kv_heads;
  // Releases what this piece wrote, acquires what the others did.
  if (__atomic_add_fetch(&unit.arrived, 1, __ATOMIC_ACQ_REL) < parts) return;
  __atomic_store_n(&unit.arrived, 0, __ATOMIC_RELAXED);
  finish_unit(a, piece);
}

// As many as a plan may hold. It can't be read here: nodes before this one may still be running.
int64_t pieces(const Node& node, const Step& step) {
  if (step.num_tokens == 0) return 0;
  const int64_t heads = node.size[0], kv_heads = node.size[1];
  return kv_heads * (num_units(step, unit_rows(step, heads, kv_heads)) + extra_items(step.num_threads, kv_heads));
}

constexpr KernelEntry kKernels[] = {{"attention", run, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(attention, pelton::PELTON_LEVEL::kKernels)
