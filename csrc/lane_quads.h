// The same bytes of four rows at a time, transposed, in 16-byte vectors that every target has: what packing is made of.
#pragma once

#include <cstdint>
#include <cstring>

namespace pelton {
namespace {

// One quad (four consecutive bytes) of each of four lanes. Operators work element by element.
typedef uint32_t LaneQuads __attribute__((vector_size(16)));
typedef uint16_t LaneHalves __attribute__((vector_size(16)));
typedef uint8_t LaneBytes __attribute__((vector_size(16)));

// Where four lanes have the bytes in question. A lane beyond the matrix points to kZeroBytes.
struct FourLanes {
  const uint8_t* lane[4];
};

// As long as the largest block.
constexpr uint8_t kZeroBytes[256] = {};

[[maybe_unused]] inline uint32_t load_u32(const uint8_t* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

template <class Vector>
void store_vector(uint8_t* p, Vector value) {
  std::memcpy(p, &value, sizeof(value));
}

[[maybe_unused]] inline LaneQuads load_quad(const FourLanes& lanes, int64_t offset) {
  return LaneQuads{load_u32(lanes.lane[0] + offset), load_u32(lanes.lane[1] + offset), load_u32(lanes.lane[2] + offset),
                   load_u32(lanes.lane[3] + offset)};
}

// 16 bytes of each lane: quads[v] is quad v of the four lanes.
[[maybe_unused]] inline void load_four_quads(const FourLanes& lanes, int64_t offset, LaneQuads* quads) {
  LaneQuads rows[4];
  for (int i = 0; i < 4; ++i) std::memcpy(&rows[i], lanes.lane[i] + offset, sizeof(LaneQuads));
  const LaneQuads low_01 = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
  const LaneQuads low_23 = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
  const LaneQuads high_01 = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
  const LaneQuads high_23 = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
  quads[0] = __builtin_shufflevector(low_01, low_23, 0, 1, 4, 5);
  quads[1] = __builtin_shufflevector(low_01, low_23, 2, 3, 6, 7);
  quads[2] = __builtin_shufflevector(high_01, high_23, 0, 1, 4, 5);
  quads[3] = __builtin_shufflevector(high_01, high_23, 2, 3, 6, 7);
}

// Byte i of each of four lanes, side by side at `p + i * stride`.
[[maybe_unused]] inline void store_bytes_apart(uint8_t* p, int64_t stride, LaneQuads quads) {
  LaneBytes bytes;
  std::memcpy(&bytes, &quads, sizeof(bytes));
  for (int step = 0; step < 2; ++step) {  // two interleavings of its halves transpose a 4 x 4 square
    bytes = __builtin_shufflevector(bytes, bytes, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  }
  LaneQuads transposed;
  std::memcpy(&transposed, &bytes, sizeof(transposed));
  for (int i = 0; i < 4; ++i) {
    const uint32_t four = transposed[i];
    std::memcpy(p + i * stride, &four, sizeof(four));
  }
}

// The low and the high halves of the quads of eight lanes.
[[maybe_unused]] inline void split_halves(LaneQuads a, LaneQuads b, LaneHalves* low, LaneHalves* high) {
  LaneHalves x, y;
  std::memcpy(&x, &a, sizeof(x));
  std::memcpy(&y, &b, sizeof(y));
  *low = __builtin_shufflevector(x, y, 0, 2, 4, 6, 8, 10, 12, 14);
  *high = __builtin_shufflevector(x, y, 1, 3, 5, 7, 9, 11, 13, 15);
}

}  // namespace
}  // namespace pelton
