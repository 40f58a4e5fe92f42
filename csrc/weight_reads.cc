#include "weight_reads.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "file_read.h"
#include "half.h"
#include "memory.h"

namespace pelton {
namespace {

// File bytes per piece: large enough for the system call to vanish, small enough to stay in the L2 cache between the
// read and the packing.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
// Consecutive pieces that one thread takes, about a huge page's worth: two threads that touch one huge page first at
// the same time both clear it.
constexpr int64_t kPiecesAtOnce = 8;
constexpr int64_t kScratch = static_cast<int64_t>(kScratchBytes);

}  // namespace

VectorShape::VectorShape(const std::string& format, int64_t count_) : count(count_), is_f16(format == "f16") {
  if (format != "f32" && format != "f16" && format != "bf16") {
    throw std::invalid_argument("`" + format + "` is not a format of single floats");
  }
  if (count < 1 || count > kMaxTensorBytes / 4) {
    throw std::invalid_argument("count is `" + std::to_string(count) + "`");
  }
  value_bytes = format == "f32" ? 4 : 2;
}

void WeightReads::add_matrix(const PackShape& shape, FilePlace place, uint8_t* target, std::vector<int64_t> row_order,
                             int64_t file_rows) {
  if (file_rows < shape.n || file_rows > kMaxTensorBytes / shape.row_bytes) {
    throw std::invalid_argument("file_rows is `" + std::to_string(file_rows) + "`");
  }
  const int64_t panel_bytes = kPanelLanes * shape.row_bytes;
  const int64_t panels = std::max<int64_t>(kPieceBytes / panel_bytes, 1);
  staging_bytes_ = std::max(staging_bytes_, panel_bytes);
  add({shape, std::nullopt, place, target, std::move(row_order), 1.0f, 0.0f, file_rows, num_pieces_, panels}, shape.n,
      (shape.num_panels + panels - 1) / panels);
}

void WeightReads::add_vector(const VectorShape& shape, FilePlace place, float* target, std::vector<int64_t> row_order,
                             int64_t file_rows, float factor, float summand) {
  add({std::nullopt, shape, place, reinterpret_cast<uint8_t*>(target), std::move(row_order), factor, summand, file_rows,
       num_pieces_, 0},
      shape.count, 1);
  staging_bytes_ = std::max(staging_bytes_, tensors_.back().file_bytes());
}

void WeightReads::add(Tensor tensor, int64_t rows, int64_t pieces) {
  const int64_t offset = tensor.place.offset;
  if (offset < 0 || offset > kMaxTensorBytes) throw std::invalid_argument("offset is `" + std::to_string(offset) + "`");
  if (!tensor.row_order.empty() && static_cast<int64_t>(tensor.row_order.size()) != rows) {
    throw std::invalid_argument("row_order has `" + std::to_string(tensor.row_order.size()) + "` entries for `" +
                                std::to_string(rows) + "` rows");
  }
  for (const int64_t row : tensor.row_order) {
    if (row < 0 || row >= tensor.file_rows)
      throw std::invalid_argument("row_order names row `" + std::to_string(row) + "`");
  }
  tensors_.push_back(std::move(tensor));
  num_pieces_ += pieces;
}

void WeightReads::run(Team& team) {
  has_failed_ = false;
  failed_.reset();
  // The team's scratch is in every thread's cache already; only rows too long for it need memory of their own.
  Memory own;
  const int64_t staging_bytes = std::max(staging_bytes_, kScratch);
  if (staging_bytes > kScratch) own = Memory(static_cast<size_t>(staging_bytes * team.num_threads()), "weight reading");
  team.run_pieces((num_pieces_ + kPiecesAtOnce - 1) / kPiecesAtOnce, [&](int64_t run, Scratch& scratch) {
    uint8_t* staging = own.data() == nullptr ? scratch.data : own.data() + scratch.thread * staging_bytes;
    const int64_t end = std::min((run + 1) * kPiecesAtOnce, num_pieces_);
    for (int64_t piece = run * kPiecesAtOnce; piece < end && !has_failed_.load(std::memory_order_relaxed); ++piece) {
      read_piece(piece, staging, staging_bytes);
    }
  });
  if (failed_.has_value()) {
    const Tensor& tensor = tensors_[*failed_];
    throw_read_error(failure_, tensor.place.fd, tensor.end());
  }
}

void WeightReads::read_piece(int64_t piece, uint8_t* staging, int64_t staging_bytes) {
  const auto after = std::upper_bound(tensors_.begin(), tensors_.end(), piece,
                                      [](int64_t value, const Tensor& tensor) { return value < tensor.first_piece; });
  const Tensor& tensor = *(after - 1);
  const int result = tensor.read_piece(piece - tensor.first_piece, staging, staging_bytes);
  if (result != 0) note_failure(after - 1 - tensors_.begin(), result);
}

void WeightReads::note_failure(int64_t tensor, int result) {
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  has_failed_.store(true, std::memory_order_relaxed);
  if (failed_.has_value() && *failed_ <= tensor) return;
  failed_ = tensor;
  failure_ = result;
}

// Returns what read_exactly does, as all below do.
int WeightReads::Tensor::read_piece(int64_t piece, uint8_t* staging, int64_t staging_bytes) const {
  if (vector) return read_values(staging);
  const int64_t first = piece * panels_per_piece;
  return read_panels(first, std::min(first + panels_per_piece, matrix->num_panels), staging, staging_bytes);
}

// One read of the window of file rows that the panels need, if it fits into the staging memory; else row by row. A
// reordering within attention heads, the usual one, stays within a window hardly larger than the rows themselves.
int WeightReads::Tensor::read_panels(int64_t first, int64_t last, uint8_t* staging, int64_t staging_bytes) const {
  const int64_t end_row = std::min(last * kPanelLanes, matrix->n);
  int64_t low = first * kPanelLanes, high = end_row - 1;
  if (!row_order.empty()) {
    const auto [least, most] = std::minmax_element(row_order.begin() + low, row_order.begin() + end_row);
    low = *least;
    high = *most;
  }
  const int64_t window_bytes = (high - low + 1) * matrix->row_bytes;
  if (window_bytes <= staging_bytes) {
    const int result =
        read_exactly(place.fd, staging, static_cast<size_t>(window_bytes), place.offset + low * matrix->row_bytes);
    if (result != 0) return result;
    for (int64_t panel = first; panel < last; ++panel) pack_panel(panel, staging, low);
    return 0;
  }
  for (int64_t panel = first; panel < last; ++panel) {
    const int result = read_apart(panel, staging);
    if (result != 0) return result;
  }
  return 0;
}

int WeightReads::Tensor::read_apart(int64_t panel, uint8_t* staging) const {
  const int64_t row_bytes = matrix->row_bytes;
  const uint8_t* rows[kPanelLanes] = {};
  for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < matrix->n; ++lane) {
    uint8_t* row = staging + lane * row_bytes;
    const int64_t offset = place.offset + file_row(panel * kPanelLanes + lane) * row_bytes;
    const int result = read_exactly(place.fd, row, static_cast<size_t>(row_bytes), offset);
    if (result != 0) return result;
    rows[lane] = row;
  }
  matrix->format->pack(rows, matrix->k, target + panel * matrix->panel_bytes);
  return 0;
}

// staging holds the file's rows from staging_row on.
void WeightReads::Tensor::pack_panel(int64_t panel, const uint8_t* staging, int64_t staging_row) const {
  const uint8_t* rows[kPanelLanes] = {};
  for (int64_t lane = 0; lane < kPanelLanes && panel * kPanelLanes + lane < matrix->n; ++lane) {
    rows[lane] = staging + (file_row(panel * kPanelLanes + lane) - staging_row) * matrix->row_bytes;
  }
  matrix->format->pack(rows, matrix->k, target + panel * matrix->panel_bytes);
}

int WeightReads::Tensor::read_values(uint8_t* staging) const {
  const int result = read_exactly(place.fd, staging, static_cast<size_t>(file_bytes()), place.offset);
  if (result != 0) return result;
  for (int64_t i = 0; i < vector->count; ++i) {
    const uint8_t* stored = staging + file_row(i) * vector->value_bytes;
    float value;
    if (vector->value_bytes == 4) {
      std::memcpy(&value, stored, sizeof value);
    } else {
      uint16_t bits;
      std::memcpy(&bits, stored, sizeof bits);
      value = vector->is_f16 ? float_from_f16(bits) : float_from_bf16(bits);
    }
    if (factor != 1.0f) value *= factor;
    if (summand != 0.0f) value += summand;
    std::memcpy(target + i * sizeof value, &value, sizeof value);
  }
  return 0;
}

}  // namespace pelton
