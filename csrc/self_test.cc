#include "self_test.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "levels.h"
#include "pack.h"

namespace pelton {
namespace {

constexpr int64_t kArenaBytes = TestRig::kBytes - static_cast<int64_t>(kScratchBytes);
constexpr uint8_t kOutputPattern = 0xa5;

// No byte without this bit is the top of an infinity, a NaN, or a number of 2 or more, in any float format.
constexpr uint8_t kTame = 0xbf;

// Random words that all inputs are cut from: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
// generators, 2014). A prime number of them, so that cuts differ.
constexpr int64_t kNumWords = 4099;
const uint64_t* random_words() {
  static const std::vector<uint64_t> words = [] {
    std::vector<uint64_t> out(kNumWords);
    uint64_t state = 0;
    for (uint64_t& word : out) {
      uint64_t z = state += 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      word = z ^ (z >> 31);
    }
    return out;
  }();
  return words.data();
}

}  // namespace

std::vector<SelfTestResult> self_test(const std::string& level, SelfTestExtent extent) {
  require_features(level);
  const Memory memory(TestRig::kBytes, "self-test");
  std::vector<SelfTestResult> results;
  for (const KernelEntry& kernel : kernels(level)) {
    const size_t num_before = results.size();
    for (const TestCase& test : self_test_cases()) {
      if (test.kernel != kernel.name || (extent == SelfTestExtent::kAtLoad && !test.at_load)) continue;
      TestRig rig(memory.data());
      test.build(rig, test);
      const std::string difference = rig.compare(level, test.kernel);
      results.push_back({test.name, difference.empty() ? "ok" : difference});
    }
    if (results.size() == num_before) results.push_back({kernel.name, "has no case in self_test_cases.cc"});
  }
  return results;
}

TestRig::TestRig(uint8_t* memory) : memory_(memory), scratch_{memory + kArenaBytes, kScratchBytes, 0} { make_step(); }

// The first sequence's second block is not next to its first one.
void TestRig::make_step() {
  const auto block = [](int64_t index) { return static_cast<uint32_t>(index * kBlockBytes / kOffsetUnit); };
  constexpr int32_t kFirstRows = 5;
  tables_[0] = {block(2), block(0)};
  tables_[1] = {block(3), block(1)};
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
  step_ = {kRows, kTileRows, 2, token_ids_, positions_, row_sequence_, sequences_, logit_rows_, nullptr, 1};
}

uint8_t* TestRig::allocate(int64_t nbytes) {
  uint8_t* start = memory_ + used_;
  used_ += (nbytes + 63) / 64 * 64;
  if (used_ > kArenaBytes) throw std::length_error("a self-test case is too large");
  return start;
}

uint8_t* TestRig::random_bytes(int64_t nbytes, uint8_t mask) {
  const uint64_t* words = random_words();
  const uint64_t wide_mask = mask * 0x0101010101010101u;
  const int64_t first = used_ / 64;  // differs from one input to the next
  uint8_t* out = allocate((nbytes + 7) / 8 * 8);
  for (int64_t i = 0; i * 8 < nbytes; ++i) {
    const uint64_t word = words[(first + i) % kNumWords] & wide_mask;
    std::memcpy(out + i * 8, &word, sizeof word);
  }
  return out;
}

float* TestRig::floats(int64_t count) {
  uint8_t* bits = random_bytes(count * 4, 0xff);
  float* out = reinterpret_cast<float*>(bits);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, bits + 4 * i, sizeof word);
    out[i] = static_cast<float>(static_cast<int32_t>(word >> 15) - 65536) / 65536.0f;
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
  const bool has_codes = shape.format->block_values > 1;
  uint8_t* file = random_bytes(shape.file_bytes(), has_codes ? 0xff : kTame);
  for (int64_t block = 0; has_codes && block < shape.file_bytes(); block += block_bytes) {
    for (const int64_t end : {block, block + block_bytes - 4}) {
      for (int64_t i = end; i < end + 4; ++i) file[i] &= kTame;
    }
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

void TestRig::fill_pool(bool is_output) {
  step_.kv_pool = random_bytes(kNumBlocks * kBlockBytes, kTame);
  if (is_output) outputs_.push_back({step_.kv_pool, kNumBlocks * kBlockBytes});
}

void TestRig::run(const std::string& level, const std::string& kernel, const Node& other) {
  const KernelEntry* entry = find_kernel(level, kernel);
  if (entry == nullptr) throw std::invalid_argument("level `" + level + "` has no kernel `" + kernel + "`");
  const int64_t pieces = entry->pieces(other, step_);
  for (int64_t piece = 0; piece < pieces; ++piece) entry->run(other, step_, piece, scratch_);
}

std::vector<uint8_t> TestRig::copy_outputs() const {
  std::vector<uint8_t> copy;
  for (const Span& output : outputs_) copy.insert(copy.end(), output.data, output.data + output.nbytes);
  return copy;
}

std::string TestRig::compare(const std::string& level, const std::string& kernel) {
  const std::vector<uint8_t> before = copy_outputs();
  run_generic(kernel, node);
  const std::vector<uint8_t> expected = copy_outputs();
  int64_t at = 0;
  for (const Span& output : outputs_) {
    std::memcpy(output.data, before.data() + at, static_cast<size_t>(output.nbytes));
    at += output.nbytes;
  }
  run(level, kernel, node);
  at = 0;
  for (size_t index = 0; index < outputs_.size(); ++index) {
    const Span& output = outputs_[index];
    const uint8_t* end = output.data + output.nbytes;
    const uint8_t* difference = std::mismatch<const uint8_t*>(output.data, end, expected.data() + at).first;
    if (difference != end) {
      return "output " + std::to_string(index) + " differs from the generic level's at byte " +
             std::to_string(difference - output.data) + " of " + std::to_string(output.nbytes);
    }
    at += output.nbytes;
  }
  return "";
}

}  // namespace pelton
