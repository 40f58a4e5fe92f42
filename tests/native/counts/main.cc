// Work whose instructions are counted (scripts/count-instructions): kernels at the shapes of SmolLM2, and a decode
// step.
//
//     native_counts              the names
//     native_counts NAME LEVEL   does that work once, inside `counted`
//
// Weights and quantised activations are zeros, values are not. Everything is made before `counted`.
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "attention_plan.h"
#include "memory.h"
#include "pack.h"
#include "program.h"

// The tool collects while it is inside this function, which must stay one.
extern "C" __attribute__((noinline)) void counted(pelton::Program& program, const pelton::Step& step) {
  program.run(step, 0, program.num_nodes());
}

namespace {

using namespace pelton;

constexpr int64_t kHidden = 576, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kInner = 1536;
constexpr int64_t kOutlier = 1;  // mode of quantised activations
constexpr int64_t kBf16Cache = 0;
constexpr int64_t kLayerBytes = kKvHeads * kHeadDim * kBlockTokens * 2;  // keys of one block, or values

// One sequence of `rows` tokens behind `context` others, and memory for the program's arguments.
class Work {
 public:
  Work(int64_t rows, int64_t context, const std::string& level) : rows_(rows), team_(1), program_(team_, level) {
    const int64_t num_blocks = (context + rows + kBlockTokens - 1) / kBlockTokens;
    for (int64_t block = 0; block < num_blocks; ++block) {
      table_.push_back(static_cast<uint32_t>(block * 2 * kLayerBytes / kOffsetUnit));
    }
    for (int64_t row = 0; row < rows; ++row) positions_.push_back(static_cast<int32_t>(context + row));
    zeros_.assign(rows, 0);
    groups_ = table_.data();
    sequence_ = {0, static_cast<int32_t>(rows), static_cast<int32_t>(context), 0, &groups_};
    step_ = {rows,
             1,
             1,
             zeros_.data(),
             positions_.data(),
             zeros_.data(),
             &sequence_,
             zeros_.data(),
             take(num_blocks * 2 * kLayerBytes),
             1};
  }

  uint8_t* take(int64_t nbytes) { return memory_.emplace_back(nbytes, "counted").data(); }
  float* vector(int64_t size) {
    float* out = reinterpret_cast<float*>(take(size * 4));
    for (int64_t i = 0; i < size; ++i) out[i] = static_cast<float>(i * 37 % 101 - 50) / 16;
    return out;
  }
  float* values(int64_t columns) { return vector(rows_ * columns); }
  uint8_t* blocks(int64_t columns) { return take(rows_ * columns / 32 * 64); }
  uint8_t* weights(Format format, int64_t n, int64_t k) {
    return take(PackShape(kFormatNames[static_cast<int>(format)], n, k).packed_bytes());
  }
  void add(const char* kernel, const std::vector<void*>& pointers, const std::vector<int64_t>& sizes, float value = 0) {
    program_.add(kernel, Dim::kTokens, pointers, sizes, {value});
  }
  void run() { counted(program_, step_); }
  const Step& step() const { return step_; }

 private:
  int64_t rows_;
  std::vector<uint32_t> table_;
  std::vector<int32_t> positions_, zeros_;
  const uint32_t* groups_;
  SequenceRows sequence_;
  std::vector<Memory> memory_;
  Step step_;
  Team team_;
  Program program_;
};

void add_norm(Work& work, float* x, uint8_t* blocks) {
  work.add("rms_norm", {x, work.vector(kHidden), nullptr, blocks}, {kHidden, kHidden, 0, kOutlier, 1}, 1e-5f);
}

void add_linear(Work& work, void* x, int64_t k, Format format, int64_t n, float* out, bool is_added) {
  const bool is_float = format == Format::kBf16;
  work.add("linear", {x, work.weights(format, n, k), out, nullptr},
           {k, 1, is_float ? 0 : kOutlier, k, static_cast<int64_t>(format), n, n, is_added});
}

void add_attention(Work& work, float* query, uint8_t* out_blocks) {
  const int64_t nbytes = attention_workspace_bytes(work.step().num_tokens, 4096, 1, kHeads, kKvHeads, kHeadDim);
  uint8_t* plan = work.take(nbytes);
  work.add("attention_plan", {plan}, {kHeads, kKvHeads, kHeadDim, 0, nbytes});
  work.add("attention", {query, work.values(kHidden), out_blocks, plan},
           {kHeads, kKvHeads, kHeadDim, kHidden, kHidden, 0, 0, kLayerBytes, 0, kBf16Cache, kOutlier}, 0.125f);
}

void add_gated(Work& work, uint8_t* x, uint8_t* out_blocks) {
  constexpr int64_t kFormat = static_cast<int64_t>(Format::kQ4_1);
  work.add("linear_gated",
           {x, work.weights(Format::kQ4_1, kInner, kHidden), work.weights(Format::kQ4_1, kInner, kHidden), nullptr,
            nullptr, nullptr, out_blocks},
           {kHidden, kInner, kFormat, kFormat, 0, kOutlier, 0, 0, kOutlier});
}

// A decode step of one layer: what a step of the whole model repeats.
void add_layer(Work& work) {
  float* x = work.values(kHidden);
  uint8_t* normed = work.blocks(kHidden);
  uint8_t* mixed = work.blocks(kHidden);
  uint8_t* inner = work.blocks(kInner);
  float* query = work.values(kHidden);
  float* key = work.values(kKvHeads * kHeadDim);
  float* value = work.values(kKvHeads * kHeadDim);
  float* table = work.values(kHeadDim);
  work.add("rope_table", {work.vector(kHeadDim / 2), table}, {kHeadDim}, 1.0f);
  add_norm(work, x, normed);
  for (float* out : {query, key, value}) {
    add_linear(work, normed, kHidden, Format::kQ4_1, out == query ? kHidden : kKvHeads * kHeadDim, out, false);
  }
  work.add("attention_prepare", {query, key, value, nullptr, nullptr, table},
           {kHeads, kKvHeads, kHeadDim, kHeadDim, kHidden, kKvHeads * kHeadDim, kKvHeads * kHeadDim, 0, 0, kLayerBytes,
            kBf16Cache});
  add_attention(work, query, mixed);
  add_linear(work, mixed, kHidden, Format::kQ4_1, kHidden, x, true);
  add_norm(work, x, normed);
  add_gated(work, normed, inner);
  add_linear(work, inner, kInner, Format::kQ4_1, kHidden, x, true);
}

void product(Work& work, Format format, int64_t k) {
  void* x = format == Format::kBf16 ? static_cast<void*>(work.values(k)) : work.blocks(k);
  add_linear(work, x, k, format, kHidden, work.values(kHidden), false);
}

struct Case {
  const char* name;
  int64_t rows, context;
  void (*build)(Work& work);
};

const Case kCases[] = {
    {"rms_norm", 64, 0, [](Work& work) { add_norm(work, work.values(kHidden), work.blocks(kHidden)); }},
    {"linear q4_1, 1 row", 1, 0, [](Work& work) { product(work, Format::kQ4_1, kHidden); }},
    {"linear q4_1, 64 rows", 64, 0, [](Work& work) { product(work, Format::kQ4_1, kHidden); }},
    {"linear q8_0, 1 row", 1, 0, [](Work& work) { product(work, Format::kQ8_0, kHidden); }},
    {"linear q8_0, 64 rows", 64, 0, [](Work& work) { product(work, Format::kQ8_0, kHidden); }},
    {"linear q4_k, 64 rows", 64, 0, [](Work& work) { product(work, Format::kQ4K, 512); }},
    {"linear q6_k, 1 row", 1, 0, [](Work& work) { product(work, Format::kQ6K, 512); }},
    {"linear bf16, 64 rows", 64, 0, [](Work& work) { product(work, Format::kBf16, kHidden); }},
    {"linear_gated, 8 rows", 8, 0, [](Work& work) { add_gated(work, work.blocks(kHidden), work.blocks(kInner)); }},
    {"attention, 1 row at 500", 1, 500,
     [](Work& work) { add_attention(work, work.values(kHidden), work.blocks(kHidden)); }},
    {"attention, 64 rows at 192", 64, 192,
     [](Work& work) { add_attention(work, work.values(kHidden), work.blocks(kHidden)); }},
    {"decode step", 1, 200, add_layer},
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    for (const Case& each : kCases) std::printf("%s\n", each.name);
    return argc == 1 ? 0 : 2;
  }
  for (const Case& each : kCases) {
    if (std::strcmp(each.name, argv[1]) != 0) continue;
    try {
      Work work(each.rows, each.context, argv[2]);
      each.build(work);
      work.run();
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      return 1;
    }
  }
  std::fprintf(stderr, "no work is called `%s`\n", argv[1]);
  return 2;
}
