#include "step_input.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace pelton {
namespace {

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

}  // namespace

StepInput::StepInput(std::vector<int32_t> token_ids, std::vector<int32_t> positions, std::vector<Sequence> sequences,
                     std::vector<int32_t> logit_rows, uint8_t* kv_pool, size_t kv_pool_bytes,
                     const std::vector<int64_t>& num_states)
    : token_ids_(std::move(token_ids)),
      positions_(std::move(positions)),
      logit_rows_(std::move(logit_rows)),
      sequences_(std::move(sequences)) {
  check(kv_pool_bytes, num_states);
  for (size_t index = 0; index < sequences_.size(); ++index) {
    const Sequence& sequence = sequences_[index];
    row_sequence_.insert(row_sequence_.end(), sequence.num_rows, static_cast<int32_t>(index));
    std::vector<const uint32_t*>& pointers = table_pointers_.emplace_back();
    for (const std::vector<uint32_t>& table : sequence.tables) pointers.push_back(table.data());
  }
  for (size_t index = 0; index < sequences_.size(); ++index) {
    const Sequence& sequence = sequences_[index];
    rows_.push_back({sequence.first_row, sequence.num_rows, sequence.context, static_cast<int32_t>(index),
                     table_pointers_[index].data()});
  }
  step_.num_tokens = static_cast<int64_t>(token_ids_.size());
  step_.num_rows = static_cast<int64_t>(logit_rows_.size());
  step_.num_sequences = static_cast<int64_t>(rows_.size());
  step_.token_ids = token_ids_.data();
  step_.positions = positions_.data();
  step_.row_sequence = row_sequence_.data();
  step_.sequences = rows_.data();
  step_.logit_rows = logit_rows_.data();
  step_.kv_pool = kv_pool;
  step_.num_threads = 1;
}

void StepInput::check(size_t kv_pool_bytes, const std::vector<int64_t>& num_states) const {
  const int64_t num_tokens = static_cast<int64_t>(token_ids_.size());
  require(static_cast<int64_t>(positions_.size()) == num_tokens, "as many positions as token_ids are needed");
  int64_t next_row = 0;
  for (const Sequence& sequence : sequences_) {
    require(sequence.first_row == next_row && sequence.num_rows >= 1, "sequences must cover the rows in order");
    require(sequence.context >= 0, "a sequence's context is negative");
    next_row += sequence.num_rows;
    const int64_t num_blocks = (int64_t{sequence.context} + sequence.num_rows + kBlockTokens - 1) / kBlockTokens;
    for (size_t group = 0; group < sequence.tables.size(); ++group) {
      const std::vector<uint32_t>& table = sequence.tables[group];
      const auto size = static_cast<int64_t>(table.size());
      const int64_t states = group < num_states.size() ? num_states[group] : 0;
      require(states == 0 || size == 2 * states, "a table of states has not two entries for each");
      require(states != 0 || size >= num_blocks, "a block table is shorter than its sequence");
      for (const uint32_t block : table) {
        require(block == kNoBlock || size_t{block} * kOffsetUnit < kv_pool_bytes, "a block lies outside kv_pool");
      }
    }
  }
  require(next_row == num_tokens, "sequences must cover all rows");
  require(logit_rows_.size() <= kHeadRows, "more logit_rows than a head tile holds");
  for (const int32_t row : logit_rows_) require(row >= 0 && row < num_tokens, "a logit row is not a row of the step");
}

}  // namespace pelton
