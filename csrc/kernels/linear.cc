// Kernels `linear` and `linear_gated`: rows times packed weights, with their epilogues.
//
// linear: out_s = x * w_s^T (+ bias_s) for up to four segments s that share their input.
//   P0 x: activation blocks for integer formats, float32 rows for f32, f16 and bf16.
//   Segment s: P[1+3s] weights, P[2+3s] out f32, P[3+3s] bias f32 or null;
//              S[4+4s] format, S[5+4s] N, S[6+4s] out stride in floats, S[7+4s] 1: out += product + bias.
//   S0 K, S1 number of segments, S2 mode of x (0 float32, 1 outlier, 2 exact), S3 x stride in floats (mode 0).
// linear_gated: out = activation(x * gate^T + gate_bias) * (x * up^T + up_bias).
//   P0 x, P1 gate weights, P2 up weights, P3 out f32 or null, P4 gate bias or null, P5 up bias or null,
//   P6 out blocks or null (N is then a multiple of 32);
//   S0 K, S1 N, S2 gate format, S3 up format, S4 activation, S5 mode of x, S6 out stride, S7 x stride (mode 0),
//   S8 mode of the out blocks.
//
// The work is a grid of row blocks by column strips of 32 outputs. A piece is one row block by a run of strips, about
// kPieceMicroseconds long by a rough model of the machine, shorter if threads would go without. Pieces of one row block
// are neighbours, so that its activations stay in L2 (kActivationBytes) while the panels of each strip pass through L1.
#include "../kernel_table.h"
#include "activations.h"
#include "linear_float.h"
#include "linear_integer.h"

namespace pelton::PELTON_LEVEL {
namespace {

// ---- Formats ----

template <bool kExact>
ProductFn integer_product_of(Format format) {
  switch (format) {
    case Format::kQ4_0:
      return integer_product<PackedQ4_0, kExact>;
    case Format::kQ4_1:
      return integer_product<PackedQ4_1, kExact>;
    case Format::kQ5_0:
      return integer_product<PackedQ5_0, kExact>;
    case Format::kQ5_1:
      return integer_product<PackedQ5_1, kExact>;
    case Format::kQ8_0:
      return integer_product<PackedQ8_0, kExact>;
    case Format::kQ2K:
      return integer_product<PackedQ2K, kExact>;
    case Format::kQ3K:
      return integer_product<PackedQ3K, kExact>;
    case Format::kQ4K:
      return integer_product<PackedQ4K, kExact>;
    case Format::kQ5K:
      return integer_product<PackedQ5K, kExact>;
    default:
      return integer_product<PackedQ6K, kExact>;
  }
}

ProductFn product_of(Format format, int mode) {
  if (format == Format::kF32) return float_product<Format::kF32>;
  if (format == Format::kF16) return float_product<Format::kF16>;
  if (format == Format::kBf16) return float_product<Format::kBf16>;
  return mode == kModeExact ? integer_product_of<true>(format) : integer_product_of<false>(format);
}

bool wants_wide(Format format, int mode) {
  if (mode == kModeNone) return false;
  return mode == kModeExact ? kUseWide<4, true> : format == Format::kQ8_0 && kUseWide<8, false>;
}

// ---- A node's matrices ----

struct Matrix {
  const uint8_t* weights;
  Format format;
  int64_t n;
  int64_t panel_bytes;
};

struct Input {
  const uint8_t* x;
  int64_t k;
  int mode;
  int64_t row_bytes;
};

Input make_input(const void* x, int64_t k, int64_t mode, int64_t stride) {
  const int m = static_cast<int>(mode);
  const int64_t row_bytes = m == kModeNone ? stride * static_cast<int64_t>(sizeof(float)) : activation_row_bytes(k, m);
  return {static_cast<const uint8_t*>(x), k, m, row_bytes};
}

Matrix make_matrix(const void* weights, int64_t format, int64_t n, int64_t k) {
  const Format f = static_cast<Format>(format);
  return {static_cast<const uint8_t*>(weights), f, n, panel_bytes(f, k)};
}

struct Segment {
  Matrix matrix;
  float* out;
  const float* bias;
  int64_t out_stride;
  bool accumulate;
};

Segment linear_segment(const Node& node, int64_t s) {
  return {make_matrix(node.pointer[1 + 3 * s], node.size[4 + 4 * s], node.size[5 + 4 * s], node.size[0]),
          static_cast<float*>(node.pointer[2 + 3 * s]), static_cast<const float*>(node.pointer[3 + 3 * s]),
          node.size[6 + 4 * s], node.size[7 + 4 * s] != 0};
}

int64_t num_strips(int64_t n) { return (n + kStripColumns - 1) / kStripColumns; }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- Cutting ----

// Working memory of a piece: strips, row sums, widened activations.
inline constexpr int64_t kMaxBlockRows = 128;
inline constexpr int64_t kAccBytes = kMaxBlockRows * kStripColumns * sizeof(float);
inline constexpr int64_t kActivationBytes = 512 << 10;  // of a row block: half of an L2 of 1 MiB
static_assert(2 * kStripBytes + 2 * kAccBytes + kActivationBytes <= static_cast<int64_t>(kScratchBytes), "scratch");

inline constexpr int64_t kPieceMicroseconds = 60;
inline constexpr int64_t kBytesPerMicrosecond = 8'000;        // one thread, from memory
inline constexpr int64_t kOperationsPerMicrosecond = 80'000;  // one thread, integer products
inline constexpr int64_t kWideStrips = 4;  // at least, of a piece that widens its rows: that costs a tenth of a strip

struct Cut {
  int64_t block_rows;
  int64_t num_blocks;
  int64_t piece_strips;
  int64_t num_runs;  // pieces per row block
};

// strip_bytes: packed bytes of all panels that one strip reads. columns: outputs of a strip over all its matrices.
// wide: whether one of them wants widened rows.
Cut make_cut(int64_t rows, int64_t strips, int64_t strip_bytes, int64_t columns, bool wide, const Input& input,
             int num_threads) {
  Cut cut;
  const int64_t held_bytes = larger(input.row_bytes, input.k * static_cast<int64_t>(sizeof(int16_t)));
  const int64_t fitting = kActivationBytes / held_bytes;
  cut.block_rows = smaller(rows, smaller(larger(fitting / kTileRows * kTileRows, 1), kMaxBlockRows));
  cut.num_blocks = ceil_div(rows, cut.block_rows);
  const int64_t operations = 2 * columns * input.k * cut.block_rows;
  const int64_t duration = larger(strip_bytes / kBytesPerMicrosecond, operations / kOperationsPerMicrosecond);
  const int64_t wanted_pieces = 4 * num_threads;
  const int64_t fair_share = ceil_div(strips * cut.num_blocks, wanted_pieces);
  const int64_t lasting = larger(wide ? kWideStrips : 1, kPieceMicroseconds / larger(duration, 1));
  cut.piece_strips = larger(1, smaller(fair_share, lasting));
  cut.num_runs = ceil_div(strips, cut.piece_strips);
  return cut;
}

// A piece's rows and strips.
struct Region {
  int64_t first_row, last_row, first_strip, last_strip;
};

Region region_of(const Cut& cut, int64_t rows, int64_t strips, int64_t piece) {
  const int64_t block = piece / cut.num_runs, run = piece % cut.num_runs;
  return {block * cut.block_rows, smaller(rows, (block + 1) * cut.block_rows), run * cut.piece_strips,
          smaller(strips, (run + 1) * cut.piece_strips)};
}

// ---- One strip ----

// A thread's memory for a piece, and the products of its row block with single strips.
class Worker {
 public:
  Worker(Scratch& scratch, const Input& input, int64_t first_row, int64_t last_row)
      : strips_(scratch.data),
        acc_(scratch.data + kStripBytes),
        wide_(reinterpret_cast<int16_t*>(scratch.data + kStripBytes + 2 * kAccBytes)),
        input_(input),
        x_(input.x + first_row * input.row_bytes),
        rows_(static_cast<int>(last_row - first_row)) {}

  // The row block times strip `strip` of a matrix: [rows][kStripColumns] in buffer 0 or 1.
  float* product(const Matrix& matrix, int64_t strip, int buffer) {
    const bool wide = wants_wide(matrix.format, input_.mode);
    if (wide && !widened_) widen();
    const int64_t first_panel = strip * kStripPanels;
    const int64_t panels_left = ceil_div(matrix.n, kLanes) - first_panel;
    float* acc = reinterpret_cast<float*>(acc_ + buffer * kAccBytes);
    const ProductCall call = {matrix.weights + first_panel * matrix.panel_bytes,
                              static_cast<int>(smaller(panels_left, kStripPanels)),
                              matrix.panel_bytes,
                              input_.k,
                              rows_,
                              x_,
                              input_.row_bytes,
                              wide_,
                              acc,
                              strips_};
    product_of(matrix.format, input_.mode)(call);
    return acc;
  }

 private:
  void widen() {
    for (int row = 0; row < rows_; ++row)
      widen_row(x_ + row * input_.row_bytes, input_.k, input_.mode, wide_ + row * input_.k);
    widened_ = true;
  }

  uint8_t* strips_;
  uint8_t* acc_;
  int16_t* wide_;
  bool widened_ = false;
  Input input_;
  const uint8_t* x_;
  int rows_;
};

// Lanes of panel p of a strip that exist in a matrix of n outputs.
int lanes_in(int64_t n, int64_t strip, int p) {
  const int64_t left = n - strip * kStripColumns - p * kLanes;
  return static_cast<int>(left < 0 ? 0 : smaller(left, kLanes));
}

// ---- linear ----

Cut linear_cut(const Node& node, const Step& step, int64_t* strips) {
  const Input input = make_input(node.pointer[0], node.size[0], node.size[2], node.size[3]);
  int64_t bytes = 0;
  bool wide = false;
  *strips = 0;
  for (int64_t s = 0; s < node.size[1]; ++s) {
    const Matrix matrix = linear_segment(node, s).matrix;
    *strips += num_strips(matrix.n);
    bytes += ceil_div(matrix.n, kLanes) * matrix.panel_bytes;
    wide |= wants_wide(matrix.format, input.mode);
  }
  return make_cut(step.rows(node.dim), *strips, bytes / *strips, kStripColumns, wide, input, step.num_threads);
}

int64_t linear_pieces(const Node& node, const Step& step) {
  if (step.rows(node.dim) == 0) return 0;
  int64_t strips;
  const Cut cut = linear_cut(node, step, &strips);
  return cut.num_blocks * cut.num_runs;
}

void store_strip(const Segment& segment, int64_t strip, const float* acc, int64_t first_row, int64_t last_row) {
  for (int p = 0; p < kStripPanels; ++p) {
    const int lanes = lanes_in(segment.matrix.n, strip, p);
    if (lanes == 0) return;
    const int64_t column = strip * kStripColumns + p * kLanes;
    const F32 bias = segment.bias ? f32_load_partial(segment.bias + column, lanes) : f32_zero();
    for (int64_t row = first_row; row < last_row; ++row) {
      F32 value = f32_load(acc + (row - first_row) * kStripColumns + p * kLanes);
      if (segment.bias) value = add(value, bias);
      float* out = segment.out + row * segment.out_stride + column;
      if (segment.accumulate) value = add(f32_load_partial(out, lanes), value);
      f32_store_partial(out, value, lanes);
    }
  }
}

void linear_run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const Input input = make_input(node.pointer[0], node.size[0], node.size[2], node.size[3]);
  int64_t strips;
  const Cut cut = linear_cut(node, step, &strips);
  const Region region = region_of(cut, step.rows(node.dim), strips, piece);
  Worker worker(scratch, input, region.first_row, region.last_row);
  int64_t before = 0;  // strips of the segments before s
  for (int64_t s = 0; s < node.size[1]; ++s) {
    const Segment segment = linear_segment(node, s);
    const int64_t count = num_strips(segment.matrix.n);
    const int64_t first = larger(region.first_strip - before, 0), last = smaller(region.last_strip - before, count);
    for (int64_t strip = first; strip < last; ++strip) {
      const float* acc = worker.product(segment.matrix, strip, 0);
      store_strip(segment, strip, acc, region.first_row, region.last_row);
    }
    before += count;
  }
}

// ---- linear_gated ----

struct Gated {
  Input input;
  Matrix gate, up;
  const float* gate_bias;
  const float* up_bias;
  int activation;
  float* out;
  int64_t out_stride;
  uint8_t* blocks;
  int blocks_mode;
};

Gated make_gated(const Node& node) {
  const int64_t k = node.size[0], n = node.size[1];
  return {make_input(node.pointer[0], k, node.size[5], node.size[7]),
          make_matrix(node.pointer[1], node.size[2], n, k),
          make_matrix(node.pointer[2], node.size[3], n, k),
          static_cast<const float*>(node.pointer[4]),
          static_cast<const float*>(node.pointer[5]),
          static_cast<int>(node.size[4]),
          static_cast<float*>(node.pointer[3]),
          node.size[6],
          static_cast<uint8_t*>(node.pointer[6]),
          static_cast<int>(node.size[8])};
}

Cut gated_cut(const Gated& gated, const Step& step, Dim dim) {
  const int64_t bytes = kStripPanels * (gated.gate.panel_bytes + gated.up.panel_bytes);
  const bool wide = wants_wide(gated.gate.format, gated.input.mode) || wants_wide(gated.up.format, gated.input.mode);
  return make_cut(step.rows(dim), num_strips(gated.gate.n), bytes, 2 * kStripColumns, wide, gated.input,
                  step.num_threads);
}

int64_t linear_gated_pieces(const Node& node, const Step& step) {
  if (step.rows(node.dim) == 0) return 0;
  const Cut cut = gated_cut(make_gated(node), step, node.dim);
  return cut.num_blocks * cut.num_runs;
}

// One row of one strip: combines gate and up in place of the gate, and writes floats.
void store_gated_row(const Gated& gated, int64_t strip, int64_t row, float* gate, const float* up) {
  const int64_t column = strip * kStripColumns;
  for (int p = 0; p < kStripPanels; ++p) {
    const int lanes = lanes_in(gated.gate.n, strip, p);
    if (lanes == 0) break;
    const int64_t first = column + p * kLanes;
    F32 g = f32_load(gate + p * kLanes), u = f32_load(up + p * kLanes);
    if (gated.gate_bias) g = add(g, f32_load_partial(gated.gate_bias + first, lanes));
    if (gated.up_bias) u = add(u, f32_load_partial(gated.up_bias + first, lanes));
    const F32 value = mul(activate(gated.activation, g), u);
    f32_store(gate + p * kLanes, value);
    if (gated.out) f32_store_partial(gated.out + row * gated.out_stride + first, value, lanes);
  }
}
static_assert(kStripColumns == kGroup, "a strip's row is one block");

void linear_gated_run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const Gated gated = make_gated(node);
  const Cut cut = gated_cut(gated, step, node.dim);
  const Region region = region_of(cut, step.rows(node.dim), num_strips(gated.gate.n), piece);
  Worker worker(scratch, gated.input, region.first_row, region.last_row);
  for (int64_t strip = region.first_strip; strip < region.last_strip; ++strip) {
    float* gate = worker.product(gated.gate, strip, 0);
    const float* up = worker.product(gated.up, strip, 1);
    for (int64_t row = region.first_row; row < region.last_row; ++row) {
      const int64_t offset = (row - region.first_row) * kStripColumns;
      store_gated_row(gated, strip, row, gate + offset, up + offset);
    }
    if (gated.blocks == nullptr) continue;
    const int64_t row_bytes = activation_row_bytes(gated.gate.n, gated.blocks_mode);
    uint8_t* blocks = gated.blocks + region.first_row * row_bytes + strip * activation_block_bytes(gated.blocks_mode);
    quantise_groups(gate, kStripColumns, region.last_row - region.first_row, gated.blocks_mode, blocks, row_bytes);
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL

#include "linear_experts.h"

namespace pelton::PELTON_LEVEL {
namespace {

const KernelEntry kEntries[] = {{"linear", linear_run, linear_pieces},
                                {"linear_gated", linear_gated_run, linear_gated_pieces},
                                {"experts_gated", experts_gated_run, experts_gated_pieces},
                                {"experts_down", experts_down_run, experts_down_pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(linear, pelton::PELTON_LEVEL::kEntries)
