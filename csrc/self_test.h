// Every kernel on small fixed inputs, one level against the generic one: whether a level may be used on this machine.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"
#include "memory.h"

namespace pelton {

struct SelfTestResult {
  std::string name;     // of the case: "linear q4_0 outlier"
  std::string verdict;  // "ok", or what differs
};

// Runs all cases, in a few milliseconds. Every kernel of the level has a case; one that has none is a result of its
// own. Throws std::invalid_argument for a level that this CPU can't run.
std::vector<SelfTestResult> self_test(const std::string& level);

// ---- For the cases (self_test_cases.cc) ----

// One case on one level: its node, and inputs that depend on the case alone. Two rigs, one per level, run the same;
// then their outputs must be the same bytes, since all levels compute in one order of operations.
class TestRig {
 public:
  explicit TestRig(const std::string& level);

  Node node{};

  // The step of every case: rows 0-9 continue a sequence at context 20, rows 10-12 start another one; the pool has four
  // blocks for cache group 0; the head tile has two rows.
  static constexpr int64_t kRows = 13;
  static constexpr int64_t kTileRows = 2;
  static constexpr int64_t kContext = 20;
  static constexpr int64_t kBlockBytes = 16 << 10;
  static constexpr int64_t kNumBlocks = 4;
  const Step& step() const { return step_; }

  // Uniform in [-1, 1), multiples of 2^-16.
  float* floats(int64_t count);
  // kRows rows of such floats, among them a group of zeros and an outlier.
  float* activations(int64_t columns);
  // The same, quantised by the generic level.
  uint8_t* blocks(int64_t columns, int64_t mode);
  // A random matrix of a format, packed.
  uint8_t* weights(const std::string& format, int64_t n, int64_t k);
  // Memory for results, filled with a pattern. All of it is compared.
  uint8_t* output(int64_t nbytes);
  float* float_output(int64_t count) { return reinterpret_cast<float*>(output(count * 4)); }
  // Memory for what is not compared.
  uint8_t* allocate(int64_t nbytes);
  // The pool of keys and values, random before, is compared as well.
  void compare_pool();

  // Runs all pieces of a node on this rig's level, or on the generic one to make an input.
  void run(const std::string& kernel) { run_on(level_, kernel, node); }
  void run_generic(const std::string& kernel, const Node& other) { run_on("generic", kernel, other); }

  // Empty, or where the outputs of two rigs differ first.
  static std::string compare(const TestRig& expected, const TestRig& found);

 private:
  struct Span {
    const uint8_t* data;
    int64_t nbytes;
  };

  uint64_t next_random();
  uint8_t* tame_bytes(int64_t nbytes);
  void make_step();
  void run_on(const std::string& level, const std::string& kernel, const Node& other);

  std::string level_;
  Memory memory_;
  int64_t used_ = 0;
  uint64_t random_ = 0;
  std::vector<Span> outputs_;
  uint8_t* pool_ = nullptr;
  std::vector<uint32_t> tables_[2];
  const uint32_t* groups_[2];
  SequenceRows sequences_[2];
  int32_t token_ids_[kRows], positions_[kRows], row_sequence_[kRows], logit_rows_[kTileRows];
  Step step_{};
  Scratch scratch_{};
};

struct TestCase {
  std::string name;
  std::string kernel;
  void (*build)(TestRig& rig, const TestCase& self);
  int64_t format = 0;   // of the weights or of the cache
  int64_t variant = 0;  // what else the builder varies by
};

const std::vector<TestCase>& self_test_cases();

}  // namespace pelton
