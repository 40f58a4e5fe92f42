// Kernels `experts_gated` and `experts_down`: the MLPs of a mixture of experts, each row with the experts that it
// chose.
//
//   experts_gated   inner[row, place] = activation(x[row] * gate_e^T) * (x[row] * up_e^T)       e = choices[row, place]
//   experts_down    out[row] = sum over the row's experts, in rising order of e, of weight * (inner[row, place] *
//   down_e^T)
//
// The experts' matrices stand one after the other, each of whole panels. A piece is a run of column strips for all
// rows: expert by expert its rows are gathered, kBlockRows at a time, and multiplied as `linear` does, so an expert
// that nobody chose costs nothing and the weights of the others are read once. A row's result does not depend on who
// else chose its experts. Part of linear.cc, whose products it uses.
#pragma once

#include "../expert_plan.h"

namespace pelton::PELTON_LEVEL {
namespace {

// Gathered rows, behind what a Worker uses of the scratch memory.
inline constexpr int64_t kWorkerBytes = kStripBytes + 2 * kAccBytes + kActivationBytes;
inline constexpr int64_t kGatheredBytes = static_cast<int64_t>(kScratchBytes) - kWorkerBytes;

struct Experts {
  Input input;
  ExpertPlan plan;
  int64_t num_experts;
  int64_t num_chosen;

  // The entries' rows of one block: as many as fit.
  int64_t block_rows() const {
    const int64_t wide = input.k * static_cast<int64_t>(sizeof(int16_t));
    const int64_t fitting = smaller(kGatheredBytes / input.row_bytes, kActivationBytes / wide);
    return smaller(larger(fitting / kTileRows * kTileRows, 1), kMaxBlockRows);
  }
};

Matrix expert_matrix(const Matrix& all, int64_t expert) {
  Matrix matrix = all;
  matrix.weights += expert * (all.n / kLanes) * all.panel_bytes;
  return matrix;
}

// Strips per piece, for some four pieces a thread.
int64_t strips_per_piece(int64_t n, const Step& step) { return larger(1, num_strips(n) / (4 * step.num_threads)); }

int64_t expert_pieces(int64_t n, const Node& node, const Step& step) {
  return step.rows(node.dim) == 0 ? 0 : ceil_div(num_strips(n), strips_per_piece(n, step));
}

// Calls work(expert, entries, count, worker) for each block of rows of each expert. source(entry): its input row.
template <class Source, class Work>
void for_each_block(const Experts& experts, Scratch& scratch, const Source& source, const Work& work) {
  uint8_t* gathered = scratch.data + kWorkerBytes;
  const int64_t block_rows = experts.block_rows(), row_bytes = experts.input.row_bytes;
  Input input = experts.input;
  input.x = gathered;
  for (int64_t expert = 0; expert < experts.num_experts; ++expert) {
    const int64_t end = experts.plan.starts[expert + 1];
    for (int64_t first = experts.plan.starts[expert]; first < end; first += block_rows) {
      const int64_t count = smaller(end - first, block_rows);
      const int32_t* entries = experts.plan.entries + first;
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(gathered + i * row_bytes, experts.input.x + source(entries[i]) * row_bytes,
                    static_cast<size_t>(row_bytes));
      }
      Worker worker(scratch, input, 0, count);
      work(expert, entries, count, worker);
    }
  }
}

// ---- experts_gated ----
//
// P0 x, P1 gate weights, P2 up weights, P3 inner out f32 or null, P4 inner out blocks or null, P5 plan; S0 K, S1 N of
// one expert, S2 gate format, S3 up format, S4 activation, S5 mode of x, S6 x stride (mode 0), S7 mode of the out
// blocks, S8 experts, S9 chosen. Entry e of the inner rows starts at float e * N, or at block e * N / 32.

Gated make_expert_gated(const Node& node) {
  const int64_t k = node.size[0], n = node.size[1];
  return {make_input(node.pointer[0], k, node.size[5], node.size[6]),
          make_matrix(node.pointer[1], node.size[2], n, k),
          make_matrix(node.pointer[2], node.size[3], n, k),
          nullptr,
          nullptr,
          static_cast<int>(node.size[4]),
          static_cast<float*>(node.pointer[3]),
          n,
          static_cast<uint8_t*>(node.pointer[4]),
          static_cast<int>(node.size[7])};
}

int64_t experts_gated_pieces(const Node& node, const Step& step) { return expert_pieces(node.size[1], node, step); }

void experts_gated_run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  Gated gated = make_expert_gated(node);
  const Experts experts = {gated.input, ExpertPlan(node.pointer[5], node.size[8]), node.size[8], node.size[9]};
  const Matrix all_gates = gated.gate, all_ups = gated.up;
  const int64_t run = strips_per_piece(gated.gate.n, step);
  const int64_t last_strip = smaller((piece + 1) * run, num_strips(gated.gate.n));
  const auto source = [&](int32_t entry) { return entry / experts.num_chosen; };
  for_each_block(experts, scratch, source, [&](int64_t expert, const int32_t* entries, int64_t count, Worker& worker) {
    gated.gate = expert_matrix(all_gates, expert);
    gated.up = expert_matrix(all_ups, expert);
    for (int64_t strip = piece * run; strip < last_strip; ++strip) {
      float* gate = worker.product(gated.gate, strip, 0);
      const float* up = worker.product(gated.up, strip, 1);
      for (int64_t i = 0; i < count; ++i) {
        store_gated_row(gated, strip, entries[i], gate + i * kStripColumns, up + i * kStripColumns);
      }
    }
  });
}

// ---- experts_down ----
//
// P0 inner, as experts_gated leaves it, P1 weights, P2 out f32, P3 weights of the choices f32, P4 plan; S0 K of one
// expert, S1 N, S2 format, S3 mode of inner, S4 out stride, S5 stride of the choices' weights, S6 experts, S7 chosen.

int64_t experts_down_pieces(const Node& node, const Step& step) { return expert_pieces(node.size[1], node, step); }

void add_weighted(const Matrix& matrix, int64_t strip, const float* acc, float weight, float* out) {
  for (int p = 0; p < kStripPanels; ++p) {
    const int lanes = lanes_in(matrix.n, strip, p);
    if (lanes == 0) return;
    float* place = out + strip * kStripColumns + p * kLanes;
    const F32 sum = fma(f32_set(weight), f32_load(acc + p * kLanes), f32_load_partial(place, lanes));
    f32_store_partial(place, sum, lanes);
  }
}

void experts_down_run(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const Input input = make_input(node.pointer[0], node.size[0], node.size[3], node.size[0]);
  const Matrix all = make_matrix(node.pointer[1], node.size[2], node.size[1], node.size[0]);
  const Experts experts = {input, ExpertPlan(node.pointer[4], node.size[6]), node.size[6], node.size[7]};
  auto* out = static_cast<float*>(node.pointer[2]);
  const auto* weights = static_cast<const float*>(node.pointer[3]);
  const int64_t run = strips_per_piece(all.n, step);
  const int64_t first_strip = piece * run, last_strip = smaller(first_strip + run, num_strips(all.n));
  const int64_t first_column = first_strip * kStripColumns, end_column = smaller(last_strip * kStripColumns, all.n);
  for (int64_t row = 0; row < step.rows(node.dim); ++row) {
    std::memset(out + row * node.size[4] + first_column, 0, sizeof(float) * (end_column - first_column));
  }
  const auto source = [](int32_t entry) { return entry; };
  for_each_block(experts, scratch, source, [&](int64_t expert, const int32_t* entries, int64_t count, Worker& worker) {
    const Matrix matrix = expert_matrix(all, expert);
    for (int64_t strip = first_strip; strip < last_strip; ++strip) {
      const float* acc = worker.product(matrix, strip, 0);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t row = entries[i] / experts.num_chosen, place = entries[i] % experts.num_chosen;
        add_weighted(matrix, strip, acc + i * kStripColumns, weights[row * node.size[5] + place],
                     out + row * node.size[4]);
      }
    }
  });
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
