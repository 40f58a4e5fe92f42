#include "self_test.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "levels.h"
#include "pack.h"

namespace pelton {
namespace {

constexpr int64_t kArenaBytes = int64_t{1} << 20;
constexpr uint8_t kOutputPattern = 0xa5;

// No byte without this bit is the top of an infinity, a NaN, or a number of 2 or more, in any float format.
constexpr uint8_t kTame = 0xbf;

std::string run_case(const TestCase& test, const std::string& level) {
  TestRig expected("generic"), found(level);
  for (TestRig* rig : {&expected, &found}) {
    test.build(*rig, test);
    rig->run(test.kernel);
  }
  return TestRig::compare(expected, found);
}

}  // namespace

std::vector<SelfTestResult> self_test(const std::string& level) {
  require_features(level);
  std::vector<SelfTestResult> results;
  for (const KernelEntry& kernel : kernels(level)) {
    const size_t num_before = results.size();
    for (const TestCase& test : self_test_cases()) {
      if (test.kernel != kernel.name) continue;
      const std::string difference = run_case(test, level);
      results.push_back({test.name, difference.empty() ? "ok" : difference});
    }
    if (results.size() == num_before) results.push_back({kernel.name, "has no case in self_test_cases.cc"});
  }
  return results;
}

TestRig::TestRig(const std::string& level)
    : level_(level),
      memory_(kArenaBytes + kScratchBytes, "self-test"),
      scratch_{memory_.data() + kArenaBytes, kScratchBytes, 0} {
  pool_ = tame_bytes(kNumBlocks * kBlockBytes);
  make_step();
}

// The first sequence's second block is not next to its first one.
void TestRig::make_step() {
  const auto block = [](int64_t index) { return static_cast<uint32_t>(index * kBlockBytes / kOffsetUnit); };
  constexpr int32_t kFirstRows = 10;
  tables_[0] = {block(2), block(0)};
  tables_[1] = {block(3)};
  for (int s = 0; s < 2; ++s) groups_[s] = tables_[s].data();
  sequences_[0] = {0, kFirstRows, kContext, 0, &groups_[0]};
  sequences_[1] = {kFirstRows, kRows - kFirstRows, 0, 1, &groups_[1]};
  for (int32_t row = 0; row < kRows; ++row) {
    row_sequence_[row] = row < kFirstRows ? 0 : 1;
    positions_[row] = row < kFirstRows ? static_cast<int32_t>(kContext) + row : row - kFirstRows;
    token_ids_[row] = 3 * row;
  }
  logit_rows_[0] = kFirstRows - 1;
  logit_rows_[1] = kRows - 1;
  step_ = {kRows, kTileRows, 2, token_ids_, positions_, row_sequence_, sequences_, logit_rows_, pool_, 1};
}

uint8_t* TestRig::allocate(int64_t nbytes) {
  uint8_t* start = memory_.data() + used_;
  used_ += (nbytes + 63) / 64 * 64;
  if (used_ > kArenaBytes) throw std::length_error("a self-test case is too large");
  return start;
}

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
uint64_t TestRig::next_random() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint8_t* TestRig::tame_bytes(int64_t nbytes) {
  uint8_t* out = allocate(nbytes);
  for (int64_t i = 0; i < nbytes; i += 8) {
    const uint64_t word = next_random() & (kTame * 0x0101010101010101u);
    std::memcpy(out + i, &word, static_cast<size_t>(std::min<int64_t>(8, nbytes - i)));
  }
  return out;
}

float* TestRig::floats(int64_t count) {
  float* out = reinterpret_cast<float*>(allocate(count * 4));
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>(static_cast<int64_t>(next_random() >> 47) - 65536) / 65536.0f;
  }
  return out;
}

float* TestRig::activations(int64_t columns) {
  float* out = floats(kRows * columns);
  std::fill(out, out + std::min<int64_t>(columns, 32), 0.0f);
  out[columns + columns / 2] *= 50.0f;
  return out;
}

uint8_t* TestRig::blocks(int64_t columns, int64_t mode) {
  Node quantise{};
  quantise.pointer[0] = activations(columns);
  quantise.pointer[1] = allocate(kRows * columns * 4);  // more than any mode needs
  quantise.size[0] = quantise.size[1] = columns;
  quantise.size[2] = mode;
  run_generic("quantise", quantise);
  return static_cast<uint8_t*>(quantise.pointer[1]);
}

// Codes take every value. What may be a float is tame: all of a float format, else the ends of a block, where all
// formats keep their scales.
uint8_t* TestRig::weights(const std::string& format, int64_t n, int64_t k) {
  const PackShape shape(format, n, k);
  const int64_t block_bytes = shape.format->block_bytes;
  uint8_t* file = allocate(shape.file_bytes());
  for (int64_t i = 0; i < shape.file_bytes(); ++i) {
    const int64_t at = i % block_bytes;
    const bool is_code = shape.format->block_values > 1 && at >= 4 && at < block_bytes - 4;
    file[i] = static_cast<uint8_t>(next_random()) & (is_code ? 0xff : kTame);
  }
  uint8_t* packed = allocate(shape.packed_bytes());
  for (int64_t panel = 0; panel < shape.num_panels; ++panel) {
    const uint8_t* rows[kPanelLanes] = {};
    for (int64_t row = panel * kPanelLanes; row < std::min(n, (panel + 1) * kPanelLanes); ++row) {
      rows[row % kPanelLanes] = file + row * shape.row_bytes;
    }
    shape.format->pack(rows, k, packed + panel * shape.panel_bytes);
  }
  return packed;
}

uint8_t* TestRig::output(int64_t nbytes) {
  uint8_t* out = allocate(nbytes);
  std::memset(out, kOutputPattern, static_cast<size_t>(nbytes));
  outputs_.push_back({out, nbytes});
  return out;
}

void TestRig::compare_pool() { outputs_.push_back({pool_, kNumBlocks * kBlockBytes}); }

void TestRig::run_on(const std::string& level, const std::string& kernel, const Node& other) {
  const KernelEntry* entry = find_kernel(level, kernel);
  if (entry == nullptr) throw std::invalid_argument("level `" + level + "` has no kernel `" + kernel + "`");
  const int64_t pieces = entry->pieces(other, step_);
  for (int64_t piece = 0; piece < pieces; ++piece) entry->run(other, step_, piece, scratch_);
}

std::string TestRig::compare(const TestRig& expected, const TestRig& found) {
  for (size_t index = 0; index < expected.outputs_.size(); ++index) {
    const Span a = expected.outputs_[index], b = found.outputs_[index];
    const uint8_t* difference = std::mismatch(a.data, a.data + a.nbytes, b.data).first;
    if (difference == a.data + a.nbytes) continue;
    return "output " + std::to_string(index) + " differs from the generic level's at byte " +
           std::to_string(difference - a.data) + " of " + std::to_string(a.nbytes);
  }
  return "";
}

}  // namespace pelton
