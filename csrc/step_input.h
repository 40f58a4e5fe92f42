// A step that owns its arrays and has been checked: for direct runs of a program (tests, captures).
#pragma once

#include <cstdint>
#include <vector>

#include "step.h"

namespace pelton {

class StepInput {
 public:
  struct Sequence {
    int32_t first_row;
    int32_t num_rows;
    int32_t context;
    std::vector<std::vector<uint32_t>> tables;  // per cache group, in units of 64 bytes
  };

  // kv_pool may be null if no table names a block. Throws std::invalid_argument if the parts do not fit each other:
  // sequences cover the rows in order, tables cover the positions, blocks start inside the pool. num_states: per cache
  // group how many recurrent layers it has, 0 for attention and for groups that are not named; their tables have two
  // entries for each.
  StepInput(std::vector<int32_t> token_ids, std::vector<int32_t> positions, std::vector<Sequence> sequences,
            std::vector<int32_t> logit_rows, uint8_t* kv_pool, size_t kv_pool_bytes,
            const std::vector<int64_t>& num_states = {});
  // step() points into this object.
  StepInput(const StepInput&) = delete;
  StepInput& operator=(const StepInput&) = delete;

  const Step& step() const { return step_; }

 private:
  void check(size_t kv_pool_bytes, const std::vector<int64_t>& num_states) const;

  std::vector<int32_t> token_ids_, positions_, row_sequence_, logit_rows_;
  std::vector<Sequence> sequences_;
  std::vector<std::vector<const uint32_t*>> table_pointers_;
  std::vector<SequenceRows> rows_;
  Step step_{};
};

}  // namespace pelton
