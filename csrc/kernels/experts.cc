// Kernels `route` and `experts_plan`: which experts each row takes, and the rows of each expert. The products with the
// experts' weights are in linear_experts.h.
//
//   route         p = softmax(logits) over all experts; the num_chosen largest logits, the largest first, of equal ones
//                 the lower index; weights p, divided by their sum in that order if they are to be normalised.
//   experts_plan  a counting sort of the choices by expert, see csrc/expert_plan.h.
//
// Both are some hundred operations per row. A row that is not finite chooses experts too, and its weights are NaN, so
// that its logits are, which the sampler reports.
#include "../expert_plan.h"
#include "../kernel_table.h"
#include "../vec/vec.h"
#include "row_functions.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int64_t kLanes = 16;

// p[0, count) = exp(x - max x), their sum in lanes and then by the fixed tree. p has room for whole vectors.
float exponentials(const float* x, int64_t count, float* p) {
  F32 largest = f32_set(x[0]);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int lanes = lanes_left(count, i);
    for (int lane = 0; lane < kLanes; ++lane) p[i + lane] = lane < lanes ? x[i + lane] : x[0];
    largest = max(f32_load(p + i), largest);
  }
  const F32 best = f32_set(f32_reduce_max(largest));
  F32 sum = f32_zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const F32 value = f32_exp(sub(f32_load(p + i), best));
    f32_store(p + i, value);
    sum = add(sum, f32_load_partial(p + i, lanes_left(count, i)));
  }
  return f32_reduce_add(sum);
}

// The largest that is not taken; the lowest such index if none compares.
int64_t best_left(const float* x, int64_t count, const uint8_t* taken) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (taken[i]) continue;
    if (best < 0 || x[i] > x[best]) best = i;
  }
  return best;
}

// P0 logits f32, P1 choices out i32, P2 weights out f32; S0 experts, S1 chosen, S2 1: normalise, S3 logits stride,
// S4 choices stride, S5 weights stride.
constexpr int64_t kRouteRows = 16;

int64_t route_pieces(const Node& node, const Step& step) {
  const int64_t rows = rows_per_piece(step, node.dim, kRouteRows);
  return (step.rows(node.dim) + rows - 1) / rows;
}

void route_row(const Node& node, int64_t row, Scratch& scratch) {
  const int64_t experts = node.size[0], chosen = node.size[1];
  const float* x = static_cast<const float*>(node.pointer[0]) + row * node.size[3];
  auto* choices = static_cast<int32_t*>(node.pointer[1]) + row * node.size[4];
  float* weights = static_cast<float*>(node.pointer[2]) + row * node.size[5];
  auto* p = reinterpret_cast<float*>(scratch.data);
  uint8_t* taken = scratch.data + (experts + kLanes) * sizeof(float);
  const float sum = exponentials(x, experts, p);
  for (int64_t i = 0; i < experts; ++i) taken[i] = 0;
  float total = 0.0f;
  for (int64_t place = 0; place < chosen; ++place) {
    const int64_t best = best_left(x, experts, taken);
    taken[best] = 1;
    choices[place] = static_cast<int32_t>(best);
    weights[place] = p[best] / sum;
    total += weights[place];
  }
  if (node.size[2] == 0) return;
  for (int64_t place = 0; place < chosen; ++place) weights[place] /= total;
}

void route(const Node& node, const Step& step, int64_t piece, Scratch& scratch) {
  const int64_t count = rows_per_piece(step, node.dim, kRouteRows);
  const int64_t first = piece * count, left = step.rows(node.dim) - first;
  for (int64_t row = first; row < first + (left < count ? left : count); ++row) route_row(node, row, scratch);
}

// P0 choices i32, P1 workspace; S0 experts, S1 chosen, S2 choices stride.
int64_t plan_pieces(const Node& node, const Step& step) { return step.rows(node.dim) == 0 ? 0 : 1; }

void experts_plan(const Node& node, const Step& step, int64_t, Scratch&) {
  const int64_t experts = node.size[0], chosen = node.size[1], rows = step.rows(node.dim);
  const auto* choices = static_cast<const int32_t*>(node.pointer[0]);
  const ExpertPlan plan(node.pointer[1], experts);
  for (int64_t e = 0; e <= experts; ++e) plan.starts[e] = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t place = 0; place < chosen; ++place) ++plan.starts[choices[row * node.size[2] + place] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) plan.starts[e + 1] += plan.starts[e];
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t place = 0; place < chosen; ++place) {
      const int32_t expert = choices[row * node.size[2] + place];
      plan.entries[plan.starts[expert]++] = static_cast<int32_t>(row * chosen + place);
    }
  }
  for (int64_t e = experts; e > 0; --e) plan.starts[e] = plan.starts[e - 1];  // each had moved to the next one's
  plan.starts[0] = 0;
}

const KernelEntry kEntries[] = {{"route", route, route_pieces}, {"experts_plan", experts_plan, plan_pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(experts, pelton::PELTON_LEVEL::kEntries)
