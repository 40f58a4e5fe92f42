// Kernel `quantise`: rows of floats become quantised activations.
//
//   P0 x f32, P1 blocks; S0 columns (a multiple of 32), S1 x stride in floats, S2 mode (1 outlier, 2 exact).
//
// A piece is a run of rows of about kPieceValues values.
#include "../kernel_table.h"
#include "activation_blocks.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kPieceValues = 16384;  // some 10 to 20 microseconds

int64_t rows_per_piece(const Node& node) {
  const int64_t rows = kPieceValues / node.size[0];
  return rows > 0 ? rows : 1;
}

int64_t quantise_pieces(const Node& node, const Step& step) {
  const int64_t per_piece = rows_per_piece(node);
  return (step.rows(node.dim) + per_piece - 1) / per_piece;
}

void quantise_run(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const int64_t columns = node.size[0], stride = node.size[1];
  const int mode = static_cast<int>(node.size[2]);
  const float* x = static_cast<const float*>(node.pointer[0]);
  uint8_t* blocks = static_cast<uint8_t*>(node.pointer[1]);
  const int64_t per_piece = rows_per_piece(node), rows = step.rows(node.dim);
  const int64_t row_bytes = activation_row_bytes(columns, mode);
  for (int64_t row = piece * per_piece; row < rows && row < (piece + 1) * per_piece; ++row) {
    quantise_row(x + row * stride, columns, mode, blocks + row * row_bytes);
  }
}

const KernelEntry kEntries[] = {{"quantise", quantise_run, quantise_pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(quantise, pelton::PELTON_LEVEL::kEntries)
