// `rms_norm`: x / sqrt(mean(x^2) + eps) * weight, for the residual stream and for the heads of queries and keys.
// The order of every sum is in row_functions.h; a row's result depends on that row alone.
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "activation_blocks.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kMaxRows = 16;

int64_t pieces(const Node& node, const Step& step) {
  const int64_t rows = rows_per_piece(step, node.dim, kMaxRows);
  return (step.rows(node.dim) + rows - 1) / rows;
}

// P0 x, P1 weight f32 [columns], P2 out f32 or null (may be x), P3 out blocks or null; S0 columns of a vector, S1 x
// stride, S2 out stride, S3 mode of the blocks, S4 vectors per row (heads; 1 for the residual stream), contiguous
// within the row; V0 eps. A row, vectors * columns, has at most kScratchBytes / 4 floats.
void run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const int64_t columns = node.size[0], vectors = node.size[4];
  const auto mode = static_cast<int>(node.size[3]);
  const auto* weight = static_cast<const float*>(node.pointer[1]);
  auto* blocks = static_cast<uint8_t*>(node.pointer[3]);
  const int64_t first = piece * rows_per_piece(step, node.dim, kMaxRows);
  const int64_t stop = first + rows_per_piece(step, node.dim, kMaxRows);
  for (int64_t row = first; row < stop && row < step.rows(node.dim); ++row) {
    const float* x = static_cast<const float*>(node.pointer[0]) + row * node.size[1];
    float* out = node.pointer[2] != nullptr ? static_cast<float*>(node.pointer[2]) + row * node.size[2]
                                            : reinterpret_cast<float*>(scratch.data);
    for (int64_t v = 0; v < vectors; ++v) {
      rms_norm_vector(x + v * columns, weight, columns, node.value[0], out + v * columns);
    }
    if (blocks != nullptr) {
      quantise_row(out, vectors * columns, mode, blocks + row * activation_row_bytes(vectors * columns, mode));
    }
  }
}

constexpr KernelEntry kKernels[] = {{"rms_norm", run, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(norm, pelton::PELTON_LEVEL::kKernels)
