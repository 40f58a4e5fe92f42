// Packing and unpacking: each value comes back where it was, for whole and partial panels; reading is exact.
#include "pack.h"

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "check.h"
#include "file_read.h"
#include "weight_reads.h"

using namespace pelton;

namespace {

// An unlinked file with these bytes.
class TestFile {
 public:
  explicit TestFile(const std::vector<uint8_t>& bytes) : file_(std::tmpfile()) {
    CHECK(file_ != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file_) == bytes.size());
    std::fflush(file_);
  }
  ~TestFile() { std::fclose(file_); }
  int fd() const { return fileno(file_); }

 private:
  std::FILE* file_;
};

// Bytes that are finite in every format (no byte is the top of an infinity), the same on every run.
std::vector<uint8_t> bytes_of(int64_t count) {
  std::vector<uint8_t> out(count);
  uint32_t state = 12345;
  for (uint8_t& byte : out) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(state >> 24) & 0xbf;
  }
  return out;
}

std::vector<float> unpacked(const PackShape& shape, const uint8_t* packed) {
  std::vector<float> out(shape.n * shape.k);
  unpack(shape, packed, out.data());
  return out;
}

void read_matrix(Team& team, const PackShape& shape, int fd, int64_t offset, uint8_t* target,
                 const std::vector<int64_t>& row_order) {
  WeightReads reads;
  reads.add_matrix(shape, {fd, offset}, target, row_order, shape.n);
  reads.run(team);
}

const char* const kFormats[] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0", "q5_1",
                                "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};

}  // namespace

// A row's values do not depend on which lane of which panel it lies in, nor on its neighbours.
TEST(pack_keeps_each_row_apart) {
  constexpr int64_t kK = 512, kN = 37;
  Team team(2);
  for (const char* format : kFormats) {
    const PackShape shape(format, kN, kK);
    const std::vector<uint8_t> bytes = bytes_of(shape.file_bytes());
    const TestFile file(bytes);
    Memory packed(shape.packed_bytes(), "test");
    read_matrix(team, shape, file.fd(), 0, packed.data(), {});
    const std::vector<float> all = unpacked(shape, packed.data());
    const PackShape one(format, 1, kK);
    for (int64_t row = 0; row < kN; ++row) {
      Memory alone(one.packed_bytes(), "test");
      read_matrix(team, one, file.fd(), row * shape.row_bytes, alone.data(), {});
      const std::vector<float> values = unpacked(one, alone.data());
      CHECK(std::memcmp(values.data(), &all[row * kK], kK * sizeof(float)) == 0);
    }
  }
}

TEST(pack_of_floats_is_lossless) {
  Team team(2);
  for (const int64_t k : {1, 2, 3, 16, 75}) {
    const PackShape shape("f32", 21, k);
    const std::vector<uint8_t> bytes = bytes_of(shape.file_bytes());
    const TestFile file(bytes);
    Memory packed(shape.packed_bytes(), "test");
    read_matrix(team, shape, file.fd(), 0, packed.data(), {});
    CHECK(std::memcmp(unpacked(shape, packed.data()).data(), bytes.data(), bytes.size()) == 0);
  }
}

TEST(pack_reorders_rows) {
  Team team(2);
  const PackShape shape("q8_0", 20, 64);
  const TestFile file(bytes_of(shape.file_bytes()));
  std::vector<int64_t> order;
  for (int64_t row = 0; row < shape.n; ++row) order.push_back((row * 7 + 3) % shape.n);
  Memory straight(shape.packed_bytes(), "test"), reordered(shape.packed_bytes(), "test");
  read_matrix(team, shape, file.fd(), 0, straight.data(), {});
  read_matrix(team, shape, file.fd(), 0, reordered.data(), order);
  const std::vector<float> a = unpacked(shape, straight.data()), b = unpacked(shape, reordered.data());
  for (int64_t row = 0; row < shape.n; ++row) {
    CHECK(std::memcmp(&b[row * shape.k], &a[order[row] * shape.k], shape.k * sizeof(float)) == 0);
  }
}

TEST(pack_names_what_is_missing) {
  Team team(2);
  const PackShape shape("q4_0", 100, 64);
  const TestFile file(bytes_of(shape.file_bytes() - 5));
  Memory packed(shape.packed_bytes(), "test");
  bool named = false;
  try {
    read_matrix(team, shape, file.fd(), 0, packed.data(), {});
  } catch (const EndOfFile& error) {
    named = std::strstr(error.what(), " 5 bytes") != nullptr;
  }
  CHECK(named);
}

TEST(pack_refuses_impossible_shapes) {
  CHECK_THROWS(PackShape("no such format", 16, 32), std::invalid_argument);
  CHECK_THROWS(PackShape("q4_0", 16, 31), std::invalid_argument);
  CHECK_THROWS(PackShape("f32", 0, 32), std::invalid_argument);
  CHECK_THROWS(PackShape("f32", INT64_MAX, INT64_MAX), std::invalid_argument);
}
