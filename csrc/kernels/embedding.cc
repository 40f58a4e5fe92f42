// Kernel `embedding`: rows of a packed table by token id, as floats.
//
//   P0 packed table, P1 out f32; S0 format, S1 vocabulary, S2 columns, S3 out stride in floats; V0 factor (1: none).
//
// A piece is one row: a lane of one panel is decoded, by the code that defines the format (pack_formats.cc).
#include "../kernel_table.h"
#include "../unpack_formats.h"
#include "../vec/vec.h"

namespace pelton::PELTON_LEVEL {
namespace {

int64_t embedding_pieces(const Node& node, const Step& step) { return step.rows(node.dim); }

void embedding_run(const Node& node, const Step& step, int64_t piece, Scratch&) {
  const Format format = static_cast<Format>(node.size[0]);
  const int64_t columns = node.size[2];
  const float factor = node.value[0];
  const int32_t token = step.token_ids[piece];
  const uint8_t* table = static_cast<const uint8_t*>(node.pointer[0]);
  float* out = static_cast<float*>(node.pointer[1]) + piece * node.size[3];

  const uint8_t* panel = table + token / kLanes * panel_bytes(format, columns);
  unpack_lane(format, panel, columns, token % kLanes, out);
  if (factor == 1.0f) return;
  for (int64_t i = 0; i < columns; ++i) out[i] *= factor;
}

const KernelEntry kEntries[] = {{"embedding", embedding_run, embedding_pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(embedding, pelton::PELTON_LEVEL::kEntries)
