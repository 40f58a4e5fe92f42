// What a row needs between products when no kernel has it fused: `gated_activation`, `add`, `gather_rows`.
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "activation_blocks.h"
#include "activations.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kMaxRows = 16;

int64_t pieces(const Node& node, const Step& step) {
  const int64_t rows = rows_per_piece(step, node.dim, kMaxRows);
  return (step.rows(node.dim) + rows - 1) / rows;
}

struct RowRange {
  int64_t first, end;

  RowRange(const Node& node, const Step& step, int64_t piece) {
    const int64_t rows = rows_per_piece(step, node.dim, kMaxRows);
    const int64_t all = step.rows(node.dim);
    first = piece * rows;
    end = first + rows < all ? first + rows : all;
  }
};

const float* row_of(const Node& node, int pointer, int64_t row, int64_t stride) {
  return static_cast<const float*>(node.pointer[pointer]) + row * stride;
}
float* out_row(const Node& node, int pointer, int64_t row, int64_t stride) {
  return static_cast<float*>(node.pointer[pointer]) + row * stride;
}

template <class Function>
void map_row(const float* a, const float* b, float* out, int64_t columns, const Function& function) {
  for (int64_t column = 0; column < columns; column += 16) {
    const int lanes = lanes_left(columns, column);
    const F32 result = function(f32_load_partial(a + column, lanes), f32_load_partial(b + column, lanes));
    f32_store_partial(out + column, result, lanes);
  }
}

// P0 gate P1 up P2 out f32 or null (may be gate or up) P3 out blocks or null; S0 columns (at most kScratchBytes / 4) S1
// gate stride S2 up stride S3 out stride S4 mode of the blocks S5 activation S6 columns
// of the gate, S0 or 1. out = activation(gate) * up.
void run_gated(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const int64_t columns = node.size[0];
  const auto mode = static_cast<int>(node.size[4]);
  const auto activation = static_cast<int>(node.size[5]);
  auto* blocks = static_cast<uint8_t*>(node.pointer[3]);
  const RowRange rows(node, step, piece);
  for (int64_t row = rows.first; row < rows.end; ++row) {
    float* out =
        node.pointer[2] != nullptr ? out_row(node, 2, row, node.size[3]) : reinterpret_cast<float*>(scratch.data);
    const float* gates = row_of(node, 0, row, node.size[1]);
    const float* up = row_of(node, 1, row, node.size[2]);
    if (node.size[6] == columns) {
      map_row(gates, up, out, columns, [&](F32 gate, F32 x) { return mul(activate(activation, gate), x); });
    } else {
      const F32 factor = activate(activation, f32_set(*gates));
      map_row(up, up, out, columns, [&](F32, F32 x) { return mul(factor, x); });
    }
    if (blocks != nullptr) quantise_row(out, columns, mode, blocks + row * activation_row_bytes(columns, mode));
  }
}

// P0 a P1 b P2 out (may be a or b); S0 columns S1 a stride S2 b stride S3 out stride.
void run_add(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const RowRange rows(node, step, piece);
  for (int64_t row = rows.first; row < rows.end; ++row) {
    map_row(row_of(node, 0, row, node.size[1]), row_of(node, 1, row, node.size[2]), out_row(node, 2, row, node.size[3]),
            node.size[0], [](F32 a, F32 b) { return add(a, b); });
  }
}

// P0 x P1 out; S0 columns S1 x stride S2 out stride. A head node: out row r is body row step.logit_rows[r].
void run_gather(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const RowRange rows(node, step, piece);
  for (int64_t row = rows.first; row < rows.end; ++row) {
    const float* x = row_of(node, 0, step.logit_rows[row], node.size[1]);
    __builtin_memcpy(out_row(node, 1, row, node.size[2]), x, static_cast<size_t>(node.size[0]) * sizeof(float));
  }
}

constexpr KernelEntry kKernels[] = {
    {"add", run_add, pieces},
    {"gated_activation", run_gated, pieces},
    {"gather_rows", run_gather, pieces},
};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(elementwise, pelton::PELTON_LEVEL::kKernels)
