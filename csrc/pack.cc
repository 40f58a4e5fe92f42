#include "pack.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>

#include "file_read.h"
#include "half.h"

namespace pelton {
namespace {

// File bytes per piece: large enough for the system call to vanish, small enough to stay in the L2 cache between the
// read and the packing, and to share out the last tensor evenly.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
// Larger than any tensor, small enough that no product of checked sizes overflows.
constexpr int64_t kMaxBytes = int64_t{1} << 50;

struct Reader {
  const PackShape& shape;
  int fd;
  int64_t offset;
  uint8_t* target;
  const std::vector<int64_t>& row_order;
  Memory staging;  // one part per worker, if a panel's rows do not fit into the scratch
  int64_t panels_per_piece;
  std::atomic<int> error{0};

  int64_t file_row(int64_t row) const { return row_order.empty() ? row : row_order[row]; }
  int64_t staging_bytes() const {
    return std::max<int64_t>(static_cast<int64_t>(kScratchBytes), kPanelLanes * shape.row_bytes);
  }
  uint8_t* staging_of(const Scratch& scratch) const {
    return staging.data() == nullptr ? scratch.data : staging.data() + scratch.thread * staging_bytes();
  }
  int read_rows(int64_t first, int64_t count, int64_t position, uint8_t* buffer) const;
  int read_panels(int64_t first_panel, int64_t last_panel, uint8_t* buffer);
  void pack_panel(int64_t panel, const uint8_t* buffer, int64_t buffer_row) const;
};

// `count` consecutive rows of the file to row `position` of the buffer.
int Reader::read_rows(int64_t first, int64_t count, int64_t position, uint8_t* buffer) const {
  return read_exactly(fd, buffer + position * shape.row_bytes, static_cast<size_t>(count * shape.row_bytes),
                      offset + first * shape.row_bytes);
}

// One read of the window of file rows that the panels need, if it fits into the buffer; else row by row. A reordering
// within attention heads, the usual one, stays within a window hardly larger than the rows themselves.
int Reader::read_panels(int64_t first_panel, int64_t last_panel, uint8_t* buffer) {
  const int64_t first_row = first_panel * kPanelLanes;
  const int64_t last_row = std::min(last_panel * kPanelLanes, shape.n);
  int64_t low = file_row(first_row), high = low;
  for (int64_t row = first_row; row < last_row; ++row) {
    low = std::min(low, file_row(row));
    high = std::max(high, file_row(row));
  }
  if ((high - low + 1) * shape.row_bytes <= staging_bytes()) {
    const int result = read_rows(low, high - low + 1, 0, buffer);
    if (result != 0) return result;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) pack_panel(panel, buffer, low);
    return 0;
  }
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const uint8_t* rows[kPanelLanes] = {};
    for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < shape.n; ++lane) {
      const int result = read_rows(file_row(panel * kPanelLanes + lane), 1, lane, buffer);
      if (result != 0) return result;
      rows[lane] = buffer + lane * shape.row_bytes;
    }
    shape.format->pack(rows, shape.k, target + panel * shape.panel_bytes);
  }
  return 0;
}

// buffer holds the file's rows from buffer_row on.
void Reader::pack_panel(int64_t panel, const uint8_t* buffer, int64_t buffer_row) const {
  const uint8_t* rows[kPanelLanes] = {};
  for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < shape.n; ++lane) {
    rows[lane] = buffer + (file_row(panel * kPanelLanes + lane) - buffer_row) * shape.row_bytes;
  }
  shape.format->pack(rows, shape.k, target + panel * shape.panel_bytes);
}

}  // namespace

PackShape::PackShape(const std::string& format_name, int64_t n_, int64_t k_)
    : format(find_pack_format(format_name)), n(n_), k(k_) {
  if (format == nullptr) throw std::invalid_argument("there is no weight format `" + format_name + "`");
  const std::string what = "[`" + std::to_string(n) + "`, `" + std::to_string(k) + "`] as `" + format_name + "`";
  if (n <= 0 || k <= 0) throw std::invalid_argument(what + ": sizes must be positive");
  // 64 bytes per value is more than any format takes, packed or not.
  if (k > kMaxBytes / 64 || n > kMaxBytes / 64 / k) throw std::invalid_argument(what + ": too large");
  if (k % format->block_values != 0) {
    throw std::invalid_argument(what + ": rows must be multiples of " + std::to_string(format->block_values));
  }
  num_panels = (n + kPanelLanes - 1) / kPanelLanes;
  row_bytes = k / format->block_values * format->block_bytes;
  panel_bytes = format->panel_bytes(k);
}

void pack_from_file(Team& team, const PackShape& shape, int fd, int64_t offset, uint8_t* target,
                    const std::vector<int64_t>& row_order) {
  if (offset < 0 || offset > kMaxBytes) throw std::invalid_argument("offset is `" + std::to_string(offset) + "`");
  if (!row_order.empty() && static_cast<int64_t>(row_order.size()) != shape.n) {
    throw std::invalid_argument("row_order has `" + std::to_string(row_order.size()) + "` entries for `" +
                                std::to_string(shape.n) + "` rows");
  }
  for (const int64_t row : row_order) {
    if (row < 0 || row >= shape.n) throw std::invalid_argument("row_order names row `" + std::to_string(row) + "`");
  }
  const int64_t panel_file_bytes = kPanelLanes * shape.row_bytes;
  Reader reader{shape, fd, offset, target, row_order, {}, std::max<int64_t>(kPieceBytes / panel_file_bytes, 1)};
  if (panel_file_bytes > static_cast<int64_t>(kScratchBytes)) {
    reader.staging = Memory(static_cast<size_t>(reader.staging_bytes() * team.num_threads()), "weight reading");
  }
  const int64_t pieces = (shape.num_panels + reader.panels_per_piece - 1) / reader.panels_per_piece;
  team.run_pieces(pieces, [&](int64_t piece, Scratch& scratch) {
    if (reader.error.load(std::memory_order_relaxed) != 0) return;
    const int64_t first = piece * reader.panels_per_piece;
    const int64_t last = std::min(first + reader.panels_per_piece, shape.num_panels);
    const int result = reader.read_panels(first, last, reader.staging_of(scratch));
    if (result != 0) reader.error.store(result, std::memory_order_relaxed);
  });
  if (reader.error != 0) throw_read_error(reader.error, fd, offset + shape.file_bytes());
}

void unpack(const PackShape& shape, const uint8_t* packed, float* target) {
  for (int64_t panel = 0; panel < shape.num_panels; ++panel) {
    float* rows[kPanelLanes] = {};
    for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < shape.n; ++lane) {
      rows[lane] = target + (panel * kPanelLanes + lane) * shape.k;
    }
    shape.format->unpack(packed + panel * shape.panel_bytes, shape.k, rows);
  }
}

void read_floats(const std::string& format, int fd, int64_t offset, int64_t count, float* target) {
  if (format != "f32" && format != "f16" && format != "bf16") {
    throw std::invalid_argument("`" + format + "` is not a format of single floats");
  }
  if (offset < 0 || offset > kMaxBytes || count < 0 || count > kMaxBytes / 4) {
    throw std::invalid_argument("`" + std::to_string(count) + "` floats at offset `" + std::to_string(offset) + "`");
  }
  const int64_t size = format == "f32" ? 4 : 2;
  // Halves are read into the upper half of the target and widened from the front: the reader stays ahead.
  uint8_t* bytes = reinterpret_cast<uint8_t*>(target) + (4 - size) * count;
  const int result = read_exactly(fd, bytes, static_cast<size_t>(size * count), offset);
  if (result != 0) throw_read_error(result, fd, offset + size * count);
  if (size == 4) return;
  const bool is_f16 = format == "f16";
  for (int64_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof bits);
    target[i] = is_f16 ? float_from_f16(bits) : float_from_bf16(bits);
  }
}

}  // namespace pelton
