// Reads any number of tensors from files, packed or widened, in one job of a team. Knows no weight format's layout.
//
// One list of pieces over all tensors, so that no thread waits at the end of a tensor. A piece is read into memory that
// stays in the L2 cache and is packed from there.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "pack.h"
#include "team.h"

namespace pelton {

struct FilePlace {
  int fd;
  int64_t offset;
};

// Single floats, stored as f32, f16 or bf16, that become float32.
struct VectorShape {
  // Throws std::invalid_argument: another format, or an impossible count.
  VectorShape(const std::string& format, int64_t count);

  int64_t count;
  int64_t value_bytes;  // in the file
  bool is_f16;
  int64_t target_bytes() const { return count * static_cast<int64_t>(sizeof(float)); }
};

class WeightReads {
 public:
  // target: shape.packed_bytes(). row_order: empty, or row i of the result is file row row_order[i] of file_rows.
  // Throws std::invalid_argument for an impossible offset or a row outside [0, file_rows).
  void add_matrix(const PackShape& shape, FilePlace place, uint8_t* target, std::vector<int64_t> row_order,
                  int64_t file_rows);
  // target: shape.count floats. row_order, file_rows: likewise, of values, each of which becomes factor * value +
  // summand.
  void add_vector(const VectorShape& shape, FilePlace place, float* target, std::vector<int64_t> row_order,
                  int64_t file_rows, float factor, float summand);

  // Fills every target, in the order of the calls. After a failure the contents of the targets are undefined.
  // Throws EndOfFile, naming how many bytes are missing, or std::system_error.
  void run(Team& team);

  // Which of the tensors (counted in the order of the calls) the last run could not read.
  std::optional<int64_t> failed() const { return failed_; }

 private:
  struct Tensor {
    std::optional<PackShape> matrix;
    std::optional<VectorShape> vector;
    FilePlace place;
    uint8_t* target;
    std::vector<int64_t> row_order;
    float factor, summand;  // of a vector's values
    int64_t file_rows;
    int64_t first_piece;
    int64_t panels_per_piece;

    int64_t file_bytes() const { return file_rows * (matrix ? matrix->row_bytes : vector->value_bytes); }
    int64_t end() const { return place.offset + file_bytes(); }
    int64_t file_row(int64_t row) const { return row_order.empty() ? row : row_order[row]; }
    int read_piece(int64_t piece, uint8_t* staging, int64_t staging_bytes) const;
    int read_panels(int64_t first, int64_t last, uint8_t* staging, int64_t staging_bytes) const;
    int read_apart(int64_t panel, uint8_t* staging) const;
    int read_values(uint8_t* staging) const;
    void pack_panel(int64_t panel, const uint8_t* staging, int64_t staging_row) const;
  };

  void add(Tensor tensor, int64_t rows, int64_t pieces);
  void read_piece(int64_t piece, uint8_t* staging, int64_t staging_bytes);
  void note_failure(int64_t tensor, int result);

  std::vector<Tensor> tensors_;
  int64_t num_pieces_ = 0;
  int64_t staging_bytes_ = 0;  // of one thread
  std::atomic<bool> has_failed_{false};
  std::mutex failure_mutex_;
  std::optional<int64_t> failed_;
  int failure_ = 0;
};

}  // namespace pelton
