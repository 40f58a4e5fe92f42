// `attention_prepare`: what stands between the q, k, v products and attention: norms of the heads, rotary embedding,
// and the step's keys and values into the cache. The same functions as `rms_norm` and `rope`, hence the same bits.
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "kv_block.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

// A piece is at most one block's tokens of a prompt, so that threads seldom write to the same cache line of keys.
constexpr int64_t kMaxRows = kBlockTokens;

int64_t pieces(const Node& node, const Step& step) {
  const int64_t rows = rows_per_piece(step, node.dim, kMaxRows);
  return (step.num_tokens + rows - 1) / rows;
}

struct Arguments {
  float* query;
  const float* key;
  const float* value;
  const float* query_norm;
  const float* key_norm;
  const float* rope_table;
  int64_t heads, kv_heads, head_dim, rotary_dim, query_stride, key_stride, value_stride, group, key_offset,
      value_offset, kv_type;
  float eps;

  explicit Arguments(const Node& node)
      : query(static_cast<float*>(node.pointer[0])),
        key(static_cast<const float*>(node.pointer[1])),
        value(static_cast<const float*>(node.pointer[2])),
        query_norm(static_cast<const float*>(node.pointer[3])),
        key_norm(static_cast<const float*>(node.pointer[4])),
        rope_table(static_cast<const float*>(node.pointer[5])),
        heads(node.size[0]),
        kv_heads(node.size[1]),
        head_dim(node.size[2]),
        rotary_dim(node.size[3]),
        query_stride(node.size[4]),
        key_stride(node.size[5]),
        value_stride(node.size[6]),
        group(node.size[7]),
        key_offset(node.size[8]),
        value_offset(node.size[9]),
        kv_type(node.size[10]),
        eps(node.value[0]) {}
};

// x may be out.
void norm_and_rope(const Arguments& a, int64_t row, const float* norm, const float* x, float* out) {
  if (norm != nullptr) {
    rms_norm_vector(x, norm, a.head_dim, a.eps, out);
    x = out;
  }
  if (a.rope_table != nullptr) {
    rope_vector(x, a.rope_table + row * a.rotary_dim, a.rotary_dim, a.head_dim, out);
  } else if (x != out) {
    std::memcpy(out, x, static_cast<size_t>(a.head_dim) * sizeof(float));
  }
}

// One head's key and value into the slot of one token.
template <class Element>
void write_head(const float* key, const float* value, int64_t head_dim, int64_t slot, uint8_t* key_bytes,
                uint8_t* value_bytes) {
  using Type = typename Element::Type;
  Type* keys = reinterpret_cast<Type*>(key_bytes) + slot;
  Type* values = reinterpret_cast<Type*>(value_bytes) + slot * head_dim;
  for (int64_t d = 0; d < head_dim; d += 16) {
    const int lanes = lanes_left(head_dim, d);
    Type rounded[16];
    Element::store(rounded, f32_load_partial(key + d, lanes));
    for (int i = 0; i < lanes; ++i) keys[(d + i) * kBlockTokens] = rounded[i];
    Element::store(rounded, f32_load_partial(value + d, lanes));
    for (int i = 0; i < lanes; ++i) values[d + i] = rounded[i];
  }
}

template <class Element>
void write_row(const Arguments& a, const Step& step, int64_t row) {
  const SequenceRows& sequence = step.sequences[step.row_sequence[row]];
  const int64_t position = cache_position(sequence, row);
  uint8_t* block = block_address(step, sequence, a.group, position / kBlockTokens);
  const int64_t head_bytes = kv_head_bytes<Element>(a.head_dim);
  for (int64_t head = 0; head < a.kv_heads; ++head) {
    alignas(64) float key[kMaxHeadDim];
    norm_and_rope(a, row, a.key_norm, a.key + row * a.key_stride + head * a.head_dim, key);
    write_head<Element>(key, a.value + row * a.value_stride + head * a.head_dim, a.head_dim, position % kBlockTokens,
                        block + a.key_offset + head * head_bytes, block + a.value_offset + head * head_bytes);
  }
}

// P0 q (in place) P1 k P2 v P3 q_norm weight or null P4 k_norm weight or null, both f32 [head_dim], P5 table
// of rope_table or null; S0 heads S1 kv_heads S2 head_dim S3 rotary dim S4 q stride S5 k stride S6 v stride S7 group
// S8 key offset S9 value offset (bytes from the block's start, layout in kv_block.h) S10 KvType; V0 eps of the norms.
// k and v stay as they are.
void run(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const Arguments a(node);
  const int64_t first = piece * rows_per_piece(step, node.dim, kMaxRows);
  const int64_t stop = first + rows_per_piece(step, node.dim, kMaxRows);
  for (int64_t row = first; row < stop && row < step.num_tokens; ++row) {
    for (int64_t head = 0; head < a.heads; ++head) {
      float* query = a.query + row * a.query_stride + head * a.head_dim;
      norm_and_rope(a, row, a.query_norm, query, query);
    }
    if (a.kv_type == kKvBf16) write_row<Bf16>(a, step, row);
    if (a.kv_type == kKvF16) write_row<F16>(a, step, row);
    if (a.kv_type == kKvF32) write_row<Float>(a, step, row);
  }
}

constexpr KernelEntry kKernels[] = {{"attention_prepare", run, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(attention_prepare, pelton::PELTON_LEVEL::kKernels)
