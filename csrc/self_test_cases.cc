// One builder per kernel: its arguments for a small run. The kernel's own file says what each argument means. A new
// kernel needs a case here before a level that has it counts as tested.
#include <algorithm>

#include "formats.h"
#include "self_test.h"

namespace pelton {
namespace {

constexpr int64_t kRows = TestRig::kRows;
constexpr int64_t kNone = 0, kOutlier = 1, kExact = 2;  // modes of quantised activations
const char* const kModeNames[] = {"", " outlier", " exact"};

int64_t block_row_bytes(int64_t columns, int64_t mode) { return columns / 32 * (mode == kExact ? 128 : 64); }

std::string name_of(int64_t format) { return kFormatNames[format]; }

// A float and a quantised output, for the kernels that can write both at once.
void two_outputs(TestRig& rig, int first_pointer, int64_t columns, int64_t mode) {
  rig.node.pointer[first_pointer] = rig.float_output(kRows * columns);
  rig.node.pointer[first_pointer + 1] = rig.output(kRows * block_row_bytes(columns, mode));
}

template <class... Sizes>
void set_sizes(TestRig& rig, Sizes... sizes) {
  int index = 0;
  ((rig.node.size[index++] = static_cast<int64_t>(sizes)), ...);
}

// ---- Rows ----

void build_rms_norm(TestRig& rig, const TestCase& self) {
  constexpr int64_t kColumns = 96, kVectors = 2;
  rig.node.pointer[0] = rig.activations(kColumns * kVectors);
  rig.node.pointer[1] = rig.floats(kColumns);
  two_outputs(rig, 2, kColumns * kVectors, self.variant);
  set_sizes(rig, kColumns, kColumns * kVectors, kColumns * kVectors, self.variant, kVectors);
  rig.node.value[0] = 1e-5f;
}

void build_gated_activation(TestRig& rig, const TestCase& self) {
  constexpr int64_t kColumns = 96;
  rig.node.pointer[0] = rig.activations(kColumns);
  rig.node.pointer[1] = rig.activations(kColumns);
  two_outputs(rig, 2, kColumns, kOutlier);
  const int64_t gate_columns = self.variant == 2 ? 1 : kColumns;
  set_sizes(rig, kColumns, kColumns, kColumns, kColumns, kOutlier, self.variant, gate_columns);
}

void build_add(TestRig& rig, const TestCase&) {
  constexpr int64_t kColumns = 37;
  rig.node.pointer[0] = rig.activations(kColumns);
  rig.node.pointer[1] = rig.activations(kColumns);
  rig.node.pointer[2] = rig.float_output(kRows * kColumns);
  set_sizes(rig, kColumns, kColumns, kColumns, kColumns);
}

void build_gather_rows(TestRig& rig, const TestCase&) {
  constexpr int64_t kColumns = 37;
  rig.node.dim = Dim::kRows;
  rig.node.pointer[0] = rig.activations(kColumns);
  rig.node.pointer[1] = rig.float_output(TestRig::kTileRows * kColumns);
  set_sizes(rig, kColumns, kColumns, kColumns);
}

void build_quantise(TestRig& rig, const TestCase& self) {
  constexpr int64_t kColumns = 96;
  rig.node.pointer[0] = rig.activations(kColumns);
  rig.node.pointer[1] = rig.output(kRows * block_row_bytes(kColumns, self.variant));
  set_sizes(rig, kColumns, kColumns, self.variant);
}

// ---- Products ----

void build_embedding(TestRig& rig, const TestCase& self) {
  constexpr int64_t kVocabulary = 20, kColumns = 256;
  rig.node.pointer[0] = rig.weights(name_of(self.format), kVocabulary, kColumns);
  rig.node.pointer[1] = rig.float_output(kRows * kColumns);
  set_sizes(rig, self.format, kVocabulary, kColumns, kColumns);
  rig.node.value[0] = 1.7f;
}

// Input of a product in the mode of the case. K: two groups, one super-block, or for floats no multiple of anything.
int64_t product_input(TestRig& rig, const TestCase& self) {
  if (self.variant == kNone) {
    constexpr int64_t kK = 75;
    rig.node.pointer[0] = rig.activations(kK);
    return kK;
  }
  const int64_t k = self.format >= static_cast<int64_t>(Format::kQ2K) ? 256 : 64;
  rig.node.pointer[0] = rig.blocks(k, self.variant);
  return k;
}

// Two segments: one that is written, one that is added to, with a bias; the last panels are not full.
void build_linear(TestRig& rig, const TestCase& self) {
  constexpr int64_t kOutputs[] = {24, 8};
  const int64_t k = product_input(rig, self);
  set_sizes(rig, k, 2, self.variant, k);
  for (int segment = 0; segment < 2; ++segment) {
    const int64_t n = kOutputs[segment];
    rig.node.pointer[1 + 3 * segment] = rig.weights(name_of(self.format), n, k);
    rig.node.pointer[2 + 3 * segment] = rig.float_output(kRows * n);
    rig.node.pointer[3 + 3 * segment] = segment == 0 ? nullptr : rig.floats(n);
    rig.node.size[4 + 4 * segment] = self.format;
    rig.node.size[5 + 4 * segment] = n;
    rig.node.size[6 + 4 * segment] = n;
    rig.node.size[7 + 4 * segment] = segment;
  }
}

void build_linear_gated(TestRig& rig, const TestCase& self) {
  constexpr int64_t kOutputs = 32;
  const int64_t k = product_input(rig, self);
  rig.node.pointer[1] = rig.weights(name_of(self.format), kOutputs, k);
  rig.node.pointer[2] = rig.weights(name_of(self.format), kOutputs, k);
  rig.node.pointer[3] = rig.float_output(kRows * kOutputs);
  rig.node.pointer[4] = rig.floats(kOutputs);
  rig.node.pointer[5] = nullptr;
  rig.node.pointer[6] = rig.output(kRows * block_row_bytes(kOutputs, kOutlier));
  set_sizes(rig, k, kOutputs, self.format, self.format, self.format % 2, self.variant, kOutputs, k, kOutlier);
}

// ---- Experts ----

constexpr int64_t kExperts = 5, kChosen = 2;

Node route(TestRig& rig, int32_t* choices, float* weights) {
  Node node{};
  node.pointer[0] = rig.activations(kExperts);
  node.pointer[1] = choices;
  node.pointer[2] = weights;
  const int64_t values[] = {kExperts, kChosen, 1, kExperts, kChosen, kChosen};
  std::copy_n(values, 6, node.size);
  return node;
}

void build_route(TestRig& rig, const TestCase&) {
  auto* choices = reinterpret_cast<int32_t*>(rig.output(kRows * kChosen * 4));
  rig.node = route(rig, choices, rig.float_output(kRows * kChosen));
}

Node experts_plan(TestRig& rig, uint8_t* workspace, float* weights) {
  auto* choices = reinterpret_cast<int32_t*>(rig.allocate(kRows * kChosen * 4));
  rig.run_generic("route", route(rig, choices, weights));
  Node plan{};
  plan.pointer[0] = choices;
  plan.pointer[1] = workspace;
  const int64_t values[] = {kExperts, kChosen, kChosen};
  std::copy_n(values, 3, plan.size);
  return plan;
}

constexpr int64_t kExpertPlanBytes = 4 * (kExperts + 1 + kRows * kChosen);

float* choice_weights(TestRig& rig) { return reinterpret_cast<float*>(rig.allocate(kRows * kChosen * 4)); }

void build_experts_plan(TestRig& rig, const TestCase&) {
  rig.node = experts_plan(rig, rig.output(kExpertPlanBytes), choice_weights(rig));
}

uint8_t* made_experts_plan(TestRig& rig, float* weights) {
  uint8_t* workspace = rig.allocate(kExpertPlanBytes);
  rig.run_generic("experts_plan", experts_plan(rig, workspace, weights));
  return workspace;
}

void build_experts_gated(TestRig& rig, const TestCase& self) {
  constexpr int64_t kOutputs = 32;
  const int64_t k = product_input(rig, self);
  rig.node.pointer[1] = rig.weights(name_of(self.format), kExperts * kOutputs, k);
  rig.node.pointer[2] = rig.weights(name_of(self.format), kExperts * kOutputs, k);
  rig.node.pointer[3] = rig.float_output(kRows * kChosen * kOutputs);
  rig.node.pointer[4] = rig.output(kChosen * kRows * block_row_bytes(kOutputs, kOutlier));
  rig.node.pointer[5] = made_experts_plan(rig, choice_weights(rig));
  set_sizes(rig, k, kOutputs, self.format, self.format, self.format % 2, self.variant, k, kOutlier, kExperts, kChosen);
}

// Its input has kChosen rows for each of the step's: those that a product would read, side by side.
void build_experts_down(TestRig& rig, const TestCase& self) {
  constexpr int64_t kOutputs = 48;
  const int64_t k = self.format >= static_cast<int64_t>(Format::kQ2K) ? 256 : 64;
  float* weights = choice_weights(rig);
  rig.node.pointer[0] = self.variant == kNone ? reinterpret_cast<uint8_t*>(rig.activations(kChosen * k))
                                              : rig.blocks(kChosen * k, self.variant);
  rig.node.pointer[1] = rig.weights(name_of(self.format), kExperts * kOutputs, k);
  rig.node.pointer[2] = rig.float_output(kRows * kOutputs);
  rig.node.pointer[3] = weights;
  rig.node.pointer[4] = made_experts_plan(rig, weights);
  set_sizes(rig, k, kOutputs, self.format, self.variant, kOutputs, kChosen, kExperts, kChosen);
}

// ---- Attention ----

struct HeadSizes {
  int64_t heads, kv_heads, head_dim, rotary_dim;
  int64_t queries() const { return heads * head_dim; }
  int64_t keys() const { return kv_heads * head_dim; }
  int64_t layer_bytes(int64_t kv_type) const { return keys() * kBlockTokens * (kv_type == 2 ? 4 : 2); }
};
constexpr HeadSizes kHeads[] = {{2, 1, 32, 32}, {6, 2, 48, 20}};

Node rope_table(TestRig& rig, int64_t dim, float* out) {
  Node table{};
  table.pointer[0] = rig.floats(dim / 2);
  table.pointer[1] = out;
  table.size[0] = dim;
  table.value[0] = 1.25f;
  return table;
}

void build_rope_table(TestRig& rig, const TestCase&) { rig.node = rope_table(rig, 32, rig.float_output(kRows * 32)); }

float* made_rope_table(TestRig& rig, int64_t dim) {
  float* out = reinterpret_cast<float*>(rig.allocate(kRows * dim * 4));
  rig.run_generic("rope_table", rope_table(rig, dim, out));
  return out;
}

void build_rope(TestRig& rig, const TestCase& self) {
  const HeadSizes& sizes = kHeads[self.variant];
  rig.node.pointer[0] = rig.activations(sizes.queries());
  rig.node.pointer[1] = rig.float_output(kRows * sizes.queries());
  rig.node.pointer[2] = made_rope_table(rig, sizes.rotary_dim);
  set_sizes(rig, sizes.heads, sizes.head_dim, sizes.rotary_dim, sizes.queries(), sizes.queries());
}

void build_attention_prepare(TestRig& rig, const TestCase& self) {
  const HeadSizes& sizes = kHeads[self.variant];
  float* queries = rig.float_output(kRows * sizes.queries());  // in place
  std::copy_n(rig.activations(sizes.queries()), kRows * sizes.queries(), queries);
  rig.node.pointer[0] = queries;
  rig.node.pointer[1] = rig.activations(sizes.keys());
  rig.node.pointer[2] = rig.activations(sizes.keys());
  rig.node.pointer[3] = self.variant == 0 ? nullptr : rig.floats(sizes.head_dim);
  rig.node.pointer[4] = self.variant == 0 ? nullptr : rig.floats(sizes.head_dim);
  rig.node.pointer[5] = made_rope_table(rig, sizes.rotary_dim);
  rig.fill_pool(/*is_output=*/true);
  set_sizes(rig, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.rotary_dim, sizes.queries(), sizes.keys(),
            sizes.keys(), 0, 64, 64 + sizes.layer_bytes(self.format), self.format);
  rig.node.value[0] = 1e-6f;
}

constexpr int64_t kWindow = 9;
constexpr int64_t kWorkspaceBytes = 32 << 10;

Node attention_plan(const HeadSizes& sizes, int64_t window, uint8_t* workspace) {
  Node plan{};
  plan.pointer[0] = workspace;
  const int64_t values[] = {sizes.heads, sizes.kv_heads, sizes.head_dim, window, kWorkspaceBytes};
  std::copy_n(values, 5, plan.size);
  return plan;
}

void build_attention_plan(TestRig& rig, const TestCase& self) {
  rig.node = attention_plan(kHeads[self.variant], 0, rig.output(kWorkspaceBytes));
}

void build_attention(TestRig& rig, const TestCase& self) {
  const HeadSizes& sizes = kHeads[self.variant];
  const int64_t window = self.variant == 0 ? 0 : kWindow;
  rig.fill_pool(/*is_output=*/false);
  rig.node.pointer[0] = rig.activations(sizes.queries());
  two_outputs(rig, 1, sizes.queries(), kOutlier);
  rig.node.pointer[3] = rig.allocate(kWorkspaceBytes);
  rig.run_generic("attention_plan", attention_plan(sizes, window, static_cast<uint8_t*>(rig.node.pointer[3])));
  set_sizes(rig, sizes.heads, sizes.kv_heads, sizes.head_dim, sizes.queries(), sizes.queries(), 0, 64,
            64 + sizes.layer_bytes(self.format), window, self.format, kOutlier);
  rig.node.value[0] = 0.2f;
}

// ---- Recurrent state ----

// Two sequences, each with two layers' blocks; the second layer's state is written elsewhere than it is read.
void build_gated_delta(TestRig& rig, const TestCase& self) {
  constexpr int64_t kKeyHeads = 1, kValueHeads = 2, kDim = 20, kValueDim = 24, kTaps = 4;
  constexpr int64_t kConvColumns = 2 * kKeyHeads * kDim + kValueHeads * kValueDim;
  constexpr int64_t kGates = kValueHeads * kValueDim;
  rig.fill_pool(/*is_output=*/true);
  const int64_t widths[] = {kConvColumns, kGates, kValueHeads, kValueHeads};
  for (int input = 0; input < 4; ++input) rig.node.pointer[input] = rig.floats(kRows * widths[input]);
  const int64_t counts[] = {kTaps * kConvColumns, kValueHeads, kValueHeads, kValueDim};
  for (int vector = 0; vector < 4; ++vector) rig.node.pointer[4 + vector] = rig.floats(counts[vector]);
  rig.node.pointer[8] = rig.float_output(kRows * kGates);
  set_sizes(rig, kKeyHeads, kValueHeads, kDim, kValueDim, kTaps, self.variant, self.variant, kConvColumns, kGates,
            kValueHeads, kValueHeads, kGates, 0, 0, 1);
  rig.node.value[0] = 1e-6f;
}

// ---- Logits ----

constexpr int64_t kVocabulary = 600, kVocabularyBlocks = 3;

void build_logits_maxima(TestRig& rig, const TestCase&) {
  rig.node.pointer[0] = rig.floats(kVocabulary);
  rig.node.pointer[1] = rig.float_output(kVocabularyBlocks);
  rig.node.pointer[2] = rig.float_output(1);
  set_sizes(rig, kVocabulary);
}

void build_logits_masses(TestRig& rig, const TestCase&) {
  rig.node.pointer[0] = rig.floats(kVocabulary);
  rig.node.pointer[1] = rig.output(kVocabulary * 8);
  rig.node.pointer[2] = rig.output(kVocabularyBlocks * 8);
  set_sizes(rig, kVocabulary);
  rig.node.value[0] = 1.0f;
  rig.node.value[1] = 1.5f;
}

// ---- Measurements ----

void build_peak(TestRig& rig, const TestCase& self) {
  constexpr int64_t kPieces = 2, kTurns = 3;
  const bool is_float = self.format == static_cast<int64_t>(Format::kF32);
  rig.node.pointer[0] = rig.output(kPieces * 64);
  rig.node.pointer[1] = is_float ? reinterpret_cast<uint8_t*>(rig.floats(2 * 64 * 16)) : rig.codes(2 * 8 * 8 * 64, 15);
  rig.node.pointer[2] = is_float ? reinterpret_cast<uint8_t*>(rig.floats(8 * 64)) : rig.codes(8 * 256, 127);
  rig.node.pointer[3] = rig.allocate(8);
  set_sizes(rig, kTurns, kPieces);
}

std::vector<TestCase> make_cases() {
  std::vector<TestCase> cases = {
      {"add", "add", build_add},
      {"gather_rows", "gather_rows", build_gather_rows},
      {"gated_activation silu", "gated_activation", build_gated_activation, 0, 0},
      {"gated_activation gelu", "gated_activation", build_gated_activation, 0, 1},
      {"gated_activation sigmoid", "gated_activation", build_gated_activation, 0, 2},
      {"gated_delta grouped", "gated_delta", build_gated_delta, 0, 0},
      {"gated_delta tiled", "gated_delta", build_gated_delta, 0, 1},
      {"rope_table", "rope_table", build_rope_table},
      {"route", "route", build_route},
      {"experts_plan", "experts_plan", build_experts_plan},
      {"logits.maxima", "logits.maxima", build_logits_maxima},
      {"logits.masses", "logits.masses", build_logits_masses},
      {"peak.float", "peak.float", build_peak, static_cast<int64_t>(Format::kF32)},
      {"peak.integer", "peak.integer", build_peak, static_cast<int64_t>(Format::kQ4_1)},
  };
  for (const int64_t mode : {kOutlier, kExact}) {
    cases.push_back({std::string("quantise") + kModeNames[mode], "quantise", build_quantise, 0, mode});
    cases.push_back({std::string("rms_norm") + kModeNames[mode], "rms_norm", build_rms_norm, 0, mode});
  }
  for (int64_t format = 0; format < kNumFormats; ++format) {
    cases.push_back({"embedding " + name_of(format), "embedding", build_embedding, format});
    const bool is_float = static_cast<Format>(format) <= Format::kBf16;
    for (const int64_t mode : is_float ? std::vector<int64_t>{kNone} : std::vector<int64_t>{kOutlier, kExact}) {
      const std::string suffix = " " + name_of(format) + kModeNames[mode];
      const bool is_q4_0 = format == static_cast<int64_t>(Format::kQ4_0);
      // The modes differ in one primitive, and the gated product in its epilogue: one format shows it.
      cases.push_back({"linear" + suffix, "linear", build_linear, format, mode, mode != kExact || is_q4_0});
      cases.push_back({"linear_gated" + suffix, "linear_gated", build_linear_gated, format, mode, is_q4_0});
      cases.push_back({"experts_gated" + suffix, "experts_gated", build_experts_gated, format, mode, is_q4_0});
      cases.push_back({"experts_down" + suffix, "experts_down", build_experts_down, format, mode, is_q4_0});
    }
  }
  const char* const kv_names[] = {" bf16", " f16", " f32"};
  for (const int64_t heads : {0, 1}) {
    const std::string suffix = heads == 0 ? "" : " window";
    cases.push_back({"rope" + suffix, "rope", build_rope, 0, heads});
    cases.push_back({"attention_plan" + suffix, "attention_plan", build_attention_plan, 0, heads});
    for (const int64_t kv_type : {0, 1, 2}) {
      const std::string of_type = kv_names[kv_type] + suffix;
      cases.push_back(
          {"attention" + of_type, "attention", build_attention, kv_type, heads, heads == 0 || kv_type == 0});
      cases.push_back({"attention_prepare" + of_type, "attention_prepare", build_attention_prepare, kv_type, heads});
    }
  }
  return cases;
}

}  // namespace

const std::vector<TestCase>& self_test_cases() {
  static const std::vector<TestCase> cases = make_cases();
  return cases;
}

}  // namespace pelton
