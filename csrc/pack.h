// Panels of 16 output channels: their sizes, and what is asked of a weight format. Reads no file.
//
// Between two owners: weight_reads.cc reads files, shares out the work and knows no format; pack_formats.cc defines the
// formats (find_pack_format).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "formats.h"

namespace pelton {

inline constexpr int kPanelLanes = 16;
// Larger than any tensor, small enough that no product of checked sizes overflows.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 50;

// One weight format. Packed, a matrix [n, k] is ceil(n / 16) panels one after the other, panel_bytes(k) each.
struct PackFormat {
  Format format;
  int64_t block_values;               // K is a multiple of this
  int64_t block_bytes;                // one block in the file: a row is k / block_values blocks
  int64_t (*panel_bytes)(int64_t k);  // a multiple of 64
  // rows: 16 rows in file layout, any alignment; null is a lane beyond n, packed as zeros. Writes panel_bytes(k).
  void (*pack)(const uint8_t* const* rows, int64_t k, uint8_t* panel);
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

// target: [n, k] float32.
void unpack(const PackShape& shape, const uint8_t* packed, float* target);

}  // namespace pelton
