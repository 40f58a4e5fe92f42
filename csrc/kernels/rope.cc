// Rotary position embedding: `rope_table` computes a step's angles once, `rope` and `attention_prepare` read them.
//
// The angle is the float32 product position * inv_freq: models are trained and checked with that rounding. Its cosine
// and sine are taken in double and rounded once, so they are right to a float's last bit at any position. A row costs
// dim / 2 pairs of double cos and sin, about a microsecond, once per step and not once per layer and head.
#include <math.h>

#include "../kernel_table.h"
#include "../vec/vec.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kMaxRows = 16;

int64_t pieces(const Node& node, const Step& step) {
  const int64_t rows = rows_per_piece(step, node.dim, kMaxRows);
  return (step.rows(node.dim) + rows - 1) / rows;
}

// P0 inv_freq f32 [dim / 2], P1 out [tokens][dim]: cos[dim / 2] then sin[dim / 2] of each row's position, times the
// attention factor; S0 dim; V0 attention factor. Positions from the step.
void run_table(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const auto* inv_freq = static_cast<const float*>(node.pointer[0]);
  const int64_t dim = node.size[0];
  const float factor = node.value[0];
  const int64_t first = piece * rows_per_piece(step, node.dim, kMaxRows);
  const int64_t stop = first + rows_per_piece(step, node.dim, kMaxRows);
  for (int64_t row = first; row < stop && row < step.num_tokens; ++row) {
    float* cosine = static_cast<float*>(node.pointer[1]) + row * dim;
    float* sine = cosine + dim / 2;
    const auto position = static_cast<float>(step.positions[row]);
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle = position * inv_freq[i];
      cosine[i] = static_cast<float>(cos(angle)) * factor;
      sine[i] = static_cast<float>(sin(angle)) * factor;
    }
  }
}

// P0 x P1 out (may be x) P2 table of rope_table; S0 heads S1 head_dim S2 rotary dim (even, <= head_dim) S3 x stride
// S4 out stride. Heads are contiguous within a row.
void run_rope(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const int64_t heads = node.size[0], head_dim = node.size[1], dim = node.size[2];
  const int64_t first = piece * rows_per_piece(step, node.dim, kMaxRows);
  const int64_t stop = first + rows_per_piece(step, node.dim, kMaxRows);
  for (int64_t row = first; row < stop && row < step.num_tokens; ++row) {
    const float* x = static_cast<const float*>(node.pointer[0]) + row * node.size[3];
    float* out = static_cast<float*>(node.pointer[1]) + row * node.size[4];
    const float* table = static_cast<const float*>(node.pointer[2]) + row * dim;
    for (int64_t head = 0; head < heads; ++head) {
      rope_vector(x + head * head_dim, table, dim, head_dim, out + head * head_dim);
    }
  }
}

constexpr KernelEntry kKernels[] = {{"rope", run_rope, pieces}, {"rope_table", run_table, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(rope, pelton::PELTON_LEVEL::kKernels)
