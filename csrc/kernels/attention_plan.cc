// `attention_plan`: cuts one step's attention into pieces (csrc/attention_plan.h says how and why). Runs once per step
// and workspace, before the first `attention` that is given the workspace.
#include "../attention_plan.h"

#include "../kernel_table.h"

namespace pelton::PELTON_LEVEL {
namespace {

struct Request {
  const Step& step;
  int64_t heads, kv_heads, head_dim, window, workspace_bytes;
};

AttentionUnit make_unit(const Request& request, int64_t sequence, int64_t offset, int64_t rows_per_unit) {
  const SequenceRows& rows = request.step.sequences[sequence];
  const int64_t left = rows.num_rows - offset;
  AttentionUnit unit{};
  unit.sequence = static_cast<int32_t>(sequence);
  unit.first_row = static_cast<int32_t>(rows.first_row + offset);
  unit.num_rows = static_cast<int32_t>(left < rows_per_unit ? left : rows_per_unit);
  const int64_t first_position = rows.context + offset;
  unit.first_split = static_cast<int32_t>(first_visible(first_position, request.window) / kSplitTokens);
  unit.end_split = static_cast<int32_t>((first_position + unit.num_rows - 1) / kSplitTokens + 1);
  return unit;
}

int64_t cost(const AttentionUnit& unit) {
  return static_cast<int64_t>(unit.num_rows) * (unit.end_split - unit.first_split);
}

int64_t total_cost(const Request& request, int64_t rows_per_unit) {
  int64_t total = 0;
  for (int64_t s = 0; s < request.step.num_sequences; ++s) {
    for (int64_t offset = 0; offset < request.step.sequences[s].num_rows; offset += rows_per_unit) {
      total += cost(make_unit(request, s, offset, rows_per_unit));
    }
  }
  return total;
}

// Fills the plan unit by unit; `partials` is where the next partial may lie.
struct Builder {
  const Request& request;
  AttentionPlan* plan;
  int64_t extra;
  int64_t total;
  int64_t partials;

  void add(AttentionUnit unit) {
    const int64_t splits = unit.end_split - unit.first_split;
    // The sum of these over all units is at most num_units + extra, which is what `pieces` of attention counts on.
    int64_t items = divide_up(cost(unit) * extra, total);
    if (items > splits) items = splits;
    const int64_t bytes =
        splits * unit.num_rows * request.heads * partial_floats(request.head_dim) * static_cast<int64_t>(sizeof(float));
    if (items > 1 && partials + bytes > request.workspace_bytes) items = 1;
    if (items > 1) {
      unit.partial_offset = partials;
      partials += bytes;
    }
    unit.num_items = static_cast<int32_t>(items);
    for (int64_t i = 0; i < items; ++i) {
      AttentionItem& item = plan->items()[plan->num_items++];
      item.unit = static_cast<int32_t>(plan->num_units);
      item.first_split = static_cast<int32_t>(unit.first_split + splits * i / items);
      item.end_split = static_cast<int32_t>(unit.first_split + splits * (i + 1) / items);
    }
    plan->units()[plan->num_units++] = unit;
  }
};

// P0 workspace; S0 heads S1 kv_heads S2 head_dim S3 window (0: none) S4 bytes of the workspace, at least
// attention_workspace_bytes. The `attention` nodes that share the workspace have the same heads, head_dim and window.
void run(const Node& node, const Step& step, int64_t, Scratch&) {
  const Request request{step, node.size[0], node.size[1], node.size[2], node.size[3], node.size[4]};
  auto* plan = static_cast<AttentionPlan*>(node.pointer[0]);
  const int64_t rows_per_unit = unit_rows(step, request.heads, request.kv_heads);
  const int64_t units = num_units(step, rows_per_unit);
  const int64_t extra = extra_items(step.num_threads, request.kv_heads);
  plan->num_units = 0;
  plan->num_items = 0;
  plan->items_offset = sizeof(AttentionPlan) + units * sizeof(AttentionUnit);
  const int64_t item_bytes = divide_up((units + extra) * sizeof(AttentionItem), 64) * 64;
  Builder builder{request, plan, extra, total_cost(request, rows_per_unit), plan->items_offset + item_bytes};
  for (int64_t s = 0; s < step.num_sequences; ++s) {
    // The last rows of a prompt see the most: the longest pieces go first.
    const int64_t count = divide_up(step.sequences[s].num_rows, rows_per_unit);
    for (int64_t i = count - 1; i >= 0; --i) builder.add(make_unit(request, s, i * rows_per_unit, rows_per_unit));
  }
}

int64_t pieces(const Node&, const Step& step) { return step.num_tokens > 0 ? 1 : 0; }

constexpr KernelEntry kKernels[] = {{"attention_plan", run, pieces}};

}  // namespace
}  // namespace pelton::PELTON_LEVEL

PELTON_EXPORT_KERNELS(attention_plan, pelton::PELTON_LEVEL::kKernels)
