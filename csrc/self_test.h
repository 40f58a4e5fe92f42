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

// kAtLoad: what a process runs before it uses a level, in a few milliseconds: every kernel, format and primitive of the
// level, but not every combination. kAll: those too.
enum class SelfTestExtent { kAtLoad, kAll };

// Every kernel of the level has a case; one that has none is a result of its own. Throws std::invalid_argument for a
// level that this CPU can't run.
std::vector<SelfTestResult> self_test(const std::string& level, SelfTestExtent extent);

// ---- For the cases (self_test_cases.cc) ----

// One case: a node with inputs that depend on the case alone. It runs on the generic level and on the tested one; its
// outputs must be the same bytes both times, since all levels compute in one order of operations.
class TestRig {
 public:
  // memory: at least kBytes, zeroed or used by a rig before.
  static constexpr int64_t kBytes = (int64_t{768} << 10) + static_cast<int64_t>(kScratchBytes);
  explicit TestRig(uint8_t* memory);

  Node node{};

  // The step of every case: rows 0-4 continue a sequence at context 20, rows 5-6 start another one; the pool has four
  // blocks for cache group 0; the head tile has two rows. Seven rows make a row tile of every size on every level.
  static constexpr int64_t kRows = 7;
  static constexpr int64_t kTileRows = 2;
  static constexpr int64_t kContext = 20;
  static constexpr int64_t kBlockBytes = 16 << 10;
  static constexpr int64_t kNumBlocks = 4;

  // Random bytes with no bits but those of the mask.
  uint8_t* codes(int64_t nbytes, uint8_t mask) { return random_bytes(nbytes, mask); }
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
  // The pool of keys and values: random, and an output if the kernel writes it.
  void fill_pool(bool is_output);

  // Runs all pieces of a node.
  void run(const std::string& level, const std::string& kernel, const Node& other);
  void run_generic(const std::string& kernel, const Node& other) { run("generic", kernel, other); }
  // Empty, or where the level's outputs for `node` differ first from the generic level's.
  std::string compare(const std::string& level, const std::string& kernel);

 private:
  struct Span {
    uint8_t* data;
    int64_t nbytes;
  };

  uint8_t* random_bytes(int64_t nbytes, uint8_t mask);
  std::vector<uint8_t> copy_outputs() const;
  void make_step();

  uint8_t* memory_;
  int64_t used_ = 0;
  std::vector<Span> outputs_;
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
  bool at_load = true;
};

const std::vector<TestCase>& self_test_cases();

}  // namespace pelton
