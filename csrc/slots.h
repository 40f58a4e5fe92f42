// What the runner keeps of each live request: its known tokens, its block tables, how it wants its tokens chosen.
// Checks everything that it is told; knows nothing of programs or Python.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sampler.h"
#include "step.h"

namespace pelton {

// Layers that share block tables. window: tokens that they see, the query's own included; 0 sees all. num_states: of
// recurrent layers how many they are, each with a block for its state; 0 for attention.
struct CacheGroup {
  int64_t block_bytes;
  int64_t window;
  int64_t num_states = 0;
};

// The sizes that every request and step is checked against.
struct RunnerLimits {
  int64_t num_slots;
  int64_t max_model_len;   // positions lie in [0, max_model_len)
  int64_t max_num_tokens;  // rows of the program's buffers
  int64_t vocab_size;
  int64_t kv_pool_bytes;
  std::vector<CacheGroup> cache_groups;
};

// A request that enters a slot. token_ids: the prompt, then what was already said (after a preemption or a restart).
struct Request {
  std::vector<int32_t> token_ids;
  int64_t num_prompt;
  Sampling sampling;
};

// One slot's part of a step; pelton/engine/batch.py says what the fields mean.
struct SlotWork {
  int64_t slot;
  int64_t num_computed;
  int64_t num_tokens;
  std::vector<std::vector<uint32_t>> new_blocks;
  bool reset;
  std::vector<int64_t> freed_blocks;  // empty: unchanged
  bool sample;
  int64_t prompt_logprobs_from;      // -1: not wanted
  std::vector<uint32_t> token_mask;  // empty: all tokens are allowed

  int64_t end() const { return num_computed + num_tokens; }
};

class Slot {
 public:
  explicit Slot(Request request);

  const std::vector<int32_t>& token_ids() const { return token_ids_; }
  int64_t num_known() const { return static_cast<int64_t>(token_ids_.size()); }
  int64_t num_prompt() const { return num_prompt_; }
  int64_t num_output() const { return num_known() - num_prompt_; }
  const Sampling& sampling() const { return sampling_; }
  // Null unless the request has penalties.
  const TokenCounts* counts() const { return counts_.get(); }
  void append(int32_t token_id);

  // Throws std::invalid_argument, and changes nothing, if the work does not fit this request or the limits.
  void check(const SlotWork& work, const RunnerLimits& limits) const;
  // Takes in the blocks of a work that was checked.
  void update_tables(const SlotWork& work, const RunnerLimits& limits);
  // [groups] as SequenceRows wants them; valid until the next update.
  const uint32_t* const* tables() const { return table_pointers_.data(); }

 private:
  bool is_fresh(const SlotWork& work) const { return work.reset || tables_.empty(); }
  void check_blocks(const SlotWork& work, const RunnerLimits& limits) const;
  void check_states(const SlotWork& work, size_t group, int64_t num_states) const;
  void update_states(const std::vector<uint32_t>& new_blocks, size_t group, size_t num_states);

  std::vector<int32_t> token_ids_;
  int64_t num_prompt_;
  Sampling sampling_;
  std::unique_ptr<TokenCounts> counts_;
  // Per group; kNoBlock where a block was given back. Of states: the blocks that a step reads, then those it writes.
  std::vector<std::vector<uint32_t>> tables_;
  std::vector<int64_t> num_freed_;  // per group, the leading kNoBlock entries
  std::vector<const uint32_t*> table_pointers_;
  int64_t num_stepped_ = 0;  // tokens that the states stand behind
};

class Slots {
 public:
  explicit Slots(RunnerLimits limits);

  const RunnerLimits& limits() const { return limits_; }
  // All throw std::invalid_argument and change nothing if the slot is not free, or not live, or the request is
  // malformed.
  void enter(int64_t slot, Request request);
  void release(int64_t slot);
  Slot& live(int64_t slot);
  // Checks all work of a step: each slot at most once, no more rows than fit.
  void check(const std::vector<SlotWork>& work);

 private:
  std::unique_ptr<Slot>& at(int64_t slot);

  RunnerLimits limits_;
  std::vector<std::unique_ptr<Slot>> slots_;
};

}  // namespace pelton
