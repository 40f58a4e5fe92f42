#include "slots.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace pelton {
namespace {

[[noreturn]] void fail(int64_t slot, const std::string& message) {
  throw std::invalid_argument("slot `" + std::to_string(slot) + "`: " + message);
}

std::string quoted(int64_t number) { return "`" + std::to_string(number) + "`"; }

int64_t num_mask_words(int64_t vocab_size) { return (vocab_size + 31) / 32; }

void check_request(int64_t slot, const Request& request, const RunnerLimits& limits) {
  const int64_t num_known = static_cast<int64_t>(request.token_ids.size());
  if (request.num_prompt < 1 || request.num_prompt > num_known) {
    fail(slot, "`num_prompt` is " + quoted(request.num_prompt) + " of " + quoted(num_known) + " tokens");
  }
  if (num_known > limits.max_model_len) {
    fail(slot, quoted(num_known) + " tokens exceed the context of " + quoted(limits.max_model_len));
  }
  for (const int32_t token_id : request.token_ids) {
    if (token_id < 0 || token_id >= limits.vocab_size) {
      fail(slot, "token " + quoted(token_id) + " is outside the vocabulary of " + quoted(limits.vocab_size));
    }
  }
  check_sampling(request.sampling, limits.vocab_size);
}

}  // namespace

Slot::Slot(Request request)
    : token_ids_(std::move(request.token_ids)),
      num_prompt_(request.num_prompt),
      sampling_(std::move(request.sampling)) {
  if (!sampling_.has_penalties()) return;
  counts_ = std::make_unique<TokenCounts>();
  for (int64_t i = 0; i < num_known(); ++i) {
    i < num_prompt_ ? counts_->add_prompt(token_ids_[i]) : counts_->add_output(token_ids_[i]);
  }
}

void Slot::append(int32_t token_id) {
  token_ids_.push_back(token_id);
  if (counts_ != nullptr) counts_->add_output(token_id);
}

void Slot::check(const SlotWork& work, const RunnerLimits& limits) const {
  const int64_t slot = work.slot;
  if (work.num_tokens < 1 || work.num_tokens > limits.max_num_tokens) {
    fail(slot, "`num_tokens` is " + quoted(work.num_tokens) + ", not within [1, " +
                   std::to_string(limits.max_num_tokens) + "]");
  }
  if (work.num_computed < 0 || work.num_computed > num_known() - work.num_tokens) {
    fail(slot, "`num_computed` is " + quoted(work.num_computed) + " and `num_tokens` " + quoted(work.num_tokens) +
                   "; " + quoted(num_known()) + " tokens are known");
  }
  if (work.end() > limits.max_model_len) fail(slot, "the context of " + quoted(limits.max_model_len) + " is full");
  if (work.sample && work.end() != num_known()) fail(slot, "can't sample before all known tokens are computed");
  if (!work.token_mask.empty() && static_cast<int64_t>(work.token_mask.size()) != num_mask_words(limits.vocab_size)) {
    fail(slot, "`token_mask` does not hold a bit per token in words of 32");
  }
  if (work.prompt_logprobs_from != -1) {
    if (sampling_.num_prompt_logprobs < 0) fail(slot, "the request did not ask for prompt log-probabilities");
    if (work.prompt_logprobs_from <= work.num_computed || work.prompt_logprobs_from > work.end()) {
      fail(slot, "`prompt_logprobs_from` is " + quoted(work.prompt_logprobs_from) + ", which no row predicts");
    }
  }
  check_blocks(work, limits);
}

void Slot::check_blocks(const SlotWork& work, const RunnerLimits& limits) const {
  const int64_t slot = work.slot;
  const size_t num_groups = limits.cache_groups.size();
  if (work.new_blocks.size() != num_groups) fail(slot, "`new_blocks` must have a list per cache group");
  if (!work.freed_blocks.empty() && work.freed_blocks.size() != num_groups) {
    fail(slot, "`freed_blocks` must have a number per cache group");
  }
  for (size_t group = 0; group < num_groups; ++group) {
    const CacheGroup& spec = limits.cache_groups[group];
    for (const uint32_t block : work.new_blocks[group]) {
      if (int64_t{block} * kOffsetUnit + spec.block_bytes > limits.kv_pool_bytes) {
        fail(slot, "block " + quoted(block) + " lies outside the KV pool");
      }
    }
    if (spec.num_states != 0) {
      check_states(work, group, spec.num_states);
      continue;
    }
    const size_t had_blocks = is_fresh(work) ? 0 : tables_[group].size();
    const auto num_blocks = static_cast<int64_t>(had_blocks + work.new_blocks[group].size());
    if (num_blocks * kBlockTokens < work.end()) {
      fail(slot, quoted(num_blocks) + " blocks do not hold " + quoted(work.end()) + " tokens");
    }
    const int64_t had_freed = is_fresh(work) ? 0 : num_freed_[group];
    const int64_t freed = work.freed_blocks.empty() ? had_freed : work.freed_blocks[group];
    // Blocks that the first row, and so every row, no longer sees.
    const int64_t invisible =
        spec.window == 0 ? 0 : std::max<int64_t>(0, work.num_computed - spec.window + 1) / kBlockTokens;
    if (freed < had_freed || freed > invisible) {
      fail(slot, "`freed_blocks` is " + quoted(freed) + "; " + quoted(had_freed) + " were given back before and " +
                     quoted(invisible) + " are out of sight");
    }
  }
}

// What a slot may be told of its states: nothing, so that it goes on in place; blocks to write, for a start or to leave
// those before as they are; or blocks to read and blocks to write, to start behind what others have computed.
void Slot::check_states(const SlotWork& work, size_t group, int64_t num_states) const {
  const auto count = static_cast<int64_t>(work.new_blocks[group].size());
  const bool is_start = is_fresh(work);
  const bool is_known = count == (is_start ? work.num_computed > 0 ? 2 * num_states : num_states : 0);
  if (!is_known && (is_start || count != num_states)) {
    fail(work.slot, quoted(count) + " blocks for " + quoted(num_states) + " states");
  }
  if (!is_start && work.num_computed != num_stepped_) {
    fail(work.slot,
         "`num_computed` is " + quoted(work.num_computed) + ", its states stand behind " + quoted(num_stepped_));
  }
  if (!work.freed_blocks.empty() && work.freed_blocks[group] != 0) fail(work.slot, "states can't be given back");
}

void Slot::update_states(const std::vector<uint32_t>& new_blocks, size_t group, size_t num_states) {
  std::vector<uint32_t>& table = tables_[group];
  const bool is_first = table.empty();
  table.resize(2 * num_states);
  if (new_blocks.size() == table.size()) {
    table = new_blocks;
    return;
  }
  const auto written = table.begin() + static_cast<int64_t>(num_states);
  if (!is_first) std::copy(written, table.end(), table.begin());
  if (new_blocks.empty()) return;
  std::copy(new_blocks.begin(), new_blocks.end(), written);
  if (is_first) std::copy(new_blocks.begin(), new_blocks.end(), table.begin());
}

void Slot::update_tables(const SlotWork& work, const RunnerLimits& limits) {
  const size_t num_groups = work.new_blocks.size();
  num_stepped_ = work.end();
  if (is_fresh(work)) {
    tables_.assign(num_groups, {});
    num_freed_.assign(num_groups, 0);
    table_pointers_.assign(num_groups, nullptr);
  }
  for (size_t group = 0; group < num_groups; ++group) {
    std::vector<uint32_t>& table = tables_[group];
    if (const auto num_states = static_cast<size_t>(limits.cache_groups[group].num_states); num_states != 0) {
      update_states(work.new_blocks[group], group, num_states);
      table_pointers_[group] = table.data();
      continue;
    }
    table.insert(table.end(), work.new_blocks[group].begin(), work.new_blocks[group].end());
    if (!work.freed_blocks.empty()) {
      std::fill(table.begin() + num_freed_[group], table.begin() + work.freed_blocks[group], kNoBlock);
      num_freed_[group] = work.freed_blocks[group];
    }
    table_pointers_[group] = table.data();
  }
}

Slots::Slots(RunnerLimits limits) : limits_(std::move(limits)), slots_(limits_.num_slots) {}

void Slots::enter(int64_t slot, Request request) {
  std::unique_ptr<Slot>& place = at(slot);
  if (place != nullptr) fail(slot, "it is taken");
  check_request(slot, request, limits_);
  place = std::make_unique<Slot>(std::move(request));
}

void Slots::release(int64_t slot) {
  live(slot);
  at(slot) = nullptr;
}

Slot& Slots::live(int64_t slot) {
  std::unique_ptr<Slot>& place = at(slot);
  if (place == nullptr) fail(slot, "it holds no request");
  return *place;
}

void Slots::check(const std::vector<SlotWork>& work) {
  std::vector<bool> is_taken(slots_.size());
  int64_t num_tokens = 0;
  for (const SlotWork& item : work) {
    live(item.slot).check(item, limits_);
    if (is_taken[item.slot]) fail(item.slot, "it appears twice in a step");
    is_taken[item.slot] = true;
    num_tokens += item.num_tokens;
  }
  if (num_tokens > limits_.max_num_tokens) {
    throw std::invalid_argument("a step of " + quoted(num_tokens) + " tokens; the program has room for " +
                                quoted(limits_.max_num_tokens));
  }
}

std::unique_ptr<Slot>& Slots::at(int64_t slot) {
  if (slot < 0 || slot >= static_cast<int64_t>(slots_.size())) {
    fail(slot, "there are " + quoted(static_cast<int64_t>(slots_.size())) + " slots");
  }
  return slots_[slot];
}

}  // namespace pelton
