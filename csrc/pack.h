// Weights from a file into panels of 16 output channels: the reader's side, and what it asks of a weight format.
//
// Between two owners: pack.cc reads and shares out the work and knows no format; pack_formats.cc defines the formats
// (find_pack_format) and reads no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "team.h"

namespace pelton {

inline constexpr int kPanelLanes = 16;

// One weight format. Packed, a matrix [n, k] is ceil(n / 16) panels one after the other, panel_bytes(k) each.
struct PackFormat {
  const char* name;                   // "q4_0"
  int64_t block_values;               // K is a multiple of this
  int64_t block_bytes;                // one block in the file: a row is k / block_values blocks
  int64_t (*panel_bytes)(int64_t k);  // a multiple of 64
  // rows: 16 rows in file layout, any alignment; null is a lane beyond n, packed as zeros. Writes panel_bytes(k).
  void (*pack)(const uint8_t* const* rows, int64_t k, uint8_t* panel);
  // rows: 16 rows of k floats; null is not wanted. Bitwise what the format's dequantisation gives in float32.
  void (*unpack)(const uint8_t* panel, int64_t k, float* const* rows);
};

// Null if there is no such format. Defined in pack_formats.cc.
const PackFormat* find_pack_format(const std::string& name);

// A matrix of a format, its sizes checked: every product of them fits.
struct PackShape {
  // Throws std::invalid_argument: unknown format, n or k not positive, too large, or K not whole blocks.
  PackShape(const std::string& format, int64_t n, int64_t k);

  const PackFormat* format;
  int64_t n, k;
  int64_t num_panels;
  int64_t row_bytes;    // in the file
  int64_t panel_bytes;  // packed
  int64_t file_bytes() const { return n * row_bytes; }
  int64_t packed_bytes() const { return num_panels * panel_bytes; }
};

// Reads the matrix at `offset` of `fd` and packs it into target[0, shape.packed_bytes()), in parallel.
// row_order: empty, or n entries: row i of the result is file row row_order[i].
// Throws EndOfFile, std::system_error, std::invalid_argument for a row outside [0, n).
void pack_from_file(Team& team, const PackShape& shape, int fd, int64_t offset, uint8_t* target,
                    const std::vector<int64_t>& row_order);

// target: [n, k] float32.
void unpack(const PackShape& shape, const uint8_t* packed, float* target);

// Reads `count` floats stored as f32, f16 or bf16 and converts them, exactly, to float32.
// Throws EndOfFile, std::system_error, std::invalid_argument for another format.
void read_floats(const std::string& format, int fd, int64_t offset, int64_t count, float* target);

}  // namespace pelton
