// Weights from a file into panels of 16 output channels: the reader's side, and what it asks of a weight format.
//
// Between two owners: pack.cc reads and shares out the work and knows no format; pack_formats.cc defines the formats
// (find_pack_format) and reads no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "team.h"

namespace pelton {

inline constexpr int kPanelLanes = 16;

// One weight format. Packed, a matrix [n, k] is ceil(n / 16) panels one after the other, panel_bytes(k) each.
struct PackFormat {
  const char* name;            // "q4_0"
  int64_t block_values;        // K is a multiple of this
  int64_t block_bytes;         // one block in the file: a row is k / block_values blocks
  int64_t (*panel_bytes)(int64_t k);  // a multiple of 64
  // rows: 16 rows in file layout, any alignment; null is a lane beyond n, packed as zeros. Writes panel_bytes(k).
  void (*pack)(const uint8_t* const* rows, int64_t k, uint8_t* panel);
  // rows: 16 rows of k floats; null is not wanted. Bitwise what the format's dequantisation gives in float32.
  void (*unpack)(const uint8_t* panel, int64_t k, float* const* rows);
};

// Null if there is no such format.
const PackFormat* find_pack_format(const std::string& name);

}  // namespace pelton
