#include "runner.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/logits.h"

namespace pelton {
namespace {

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw std::invalid_argument("`" + std::string(name) + "` is `" + std::to_string(value) + "`, not within [" +
                                std::to_string(low) + ", " + std::to_string(high) + "]");
  }
}

RunnerLimits checked(RunnerLimits limits) {
  constexpr int64_t kMaxLength = int64_t{1} << 30;  // rows and positions are int32
  check_range("num_slots", limits.num_slots, 1, kMaxLength);
  check_range("max_model_len", limits.max_model_len, 1, kMaxLength);
  check_range("max_num_tokens", limits.max_num_tokens, 1, kMaxLength);
  check_range("vocab_size", limits.vocab_size, 1, kMaxVocabSize);
  for (const CacheGroup& group : limits.cache_groups) {
    check_range("block_bytes", group.block_bytes, 1, limits.kv_pool_bytes);
    check_range("window", group.window, 0, kMaxLength);
    check_range("num_states", group.num_states, 0, kMaxLength);
  }
  return limits;
}

}  // namespace

Runner::Runner(Program& program, RunnerLimits limits, uint8_t* kv_pool, LogitsView logits)
    : program_(program), slots_(checked(std::move(limits))), kv_pool_(kv_pool), logits_(logits) {
  const LogitsKernels kernels(program.level());
  samplers_.reserve(program.team().num_threads());
  for (int i = 0; i < program.team().num_threads(); ++i) samplers_.emplace_back(kernels, slots_.limits().vocab_size);
}

std::vector<SlotOutcome> Runner::step(const std::vector<SlotWork>& work) {
  slots_.check(work);
  std::vector<SlotOutcome> outcomes(work.size());
  if (work.empty()) return outcomes;
  build_rows(work);
  build_jobs(work, outcomes);
  program_.run_body(step_);
  for (size_t first = 0; first < jobs_.size(); first += kHeadRows) {
    run_tile(work, first, std::min<size_t>(kHeadRows, jobs_.size() - first));
  }
  finish_jobs(outcomes);
  return outcomes;
}

void Runner::build_rows(const std::vector<SlotWork>& work) {
  token_ids_.clear();
  positions_.clear();
  row_sequence_.clear();
  sequences_.clear();
  for (const SlotWork& item : work) {
    Slot& slot = slots_.live(item.slot);
    slot.update_tables(item, slots_.limits());
    const auto first_row = static_cast<int32_t>(token_ids_.size());
    const auto begin = slot.token_ids().begin() + item.num_computed;
    token_ids_.insert(token_ids_.end(), begin, begin + item.num_tokens);
    row_sequence_.insert(row_sequence_.end(), item.num_tokens, static_cast<int32_t>(sequences_.size()));
    for (int64_t position = item.num_computed; position < item.end(); ++position) {
      positions_.push_back(static_cast<int32_t>(position));
    }
    sequences_.push_back({first_row, static_cast<int32_t>(item.num_tokens), static_cast<int32_t>(item.num_computed),
                          static_cast<int32_t>(item.slot), slot.tables()});
  }
  step_.num_tokens = static_cast<int64_t>(token_ids_.size());
  step_.num_rows = 0;
  step_.num_sequences = static_cast<int64_t>(sequences_.size());
  step_.token_ids = token_ids_.data();
  step_.positions = positions_.data();
  step_.row_sequence = row_sequence_.data();
  step_.sequences = sequences_.data();
  step_.logit_rows = nullptr;
  step_.kv_pool = kv_pool_;
}

// The row at position p predicts the token at p + 1.
void Runner::build_jobs(const std::vector<SlotWork>& work, std::vector<SlotOutcome>& outcomes) {
  jobs_.clear();
  for (size_t index = 0; index < work.size(); ++index) {
    const SlotWork& item = work[index];
    Slot& slot = slots_.live(item.slot);
    const int32_t first_row = sequences_[index].first_row;
    SlotOutcome& outcome = outcomes[index];
    outcome.slot = item.slot;
    if (item.prompt_logprobs_from != -1) {
      const int64_t last = std::min(item.end(), slot.num_prompt() - 1);
      outcome.prompt_logprobs.resize(std::max<int64_t>(0, last - item.prompt_logprobs_from + 1));
      for (int64_t position = item.prompt_logprobs_from; position <= last; ++position) {
        const auto row = static_cast<int32_t>(first_row + position - 1 - item.num_computed);
        Logprobs* logprobs = &outcome.prompt_logprobs[position - item.prompt_logprobs_from];
        jobs_.push_back({row, index, &slot, false, slot.token_ids()[position], logprobs, nullptr});
      }
    }
    if (item.sample) {
      const auto row = static_cast<int32_t>(first_row + item.num_tokens - 1);
      Logprobs* logprobs = slot.sampling().num_logprobs >= 0 ? &outcome.logprobs.emplace() : nullptr;
      jobs_.push_back({row, index, &slot, true, 0, logprobs, nullptr});
    }
  }
}

void Runner::run_tile(const std::vector<SlotWork>& work, size_t first_job, size_t num_jobs) {
  int32_t rows[kHeadRows];
  for (size_t i = 0; i < num_jobs; ++i) rows[i] = jobs_[first_job + i].row;
  step_.logit_rows = rows;
  step_.num_rows = static_cast<int64_t>(num_jobs);
  program_.run_head(step_);
  const auto run = [&](int64_t i, Sampler& sampler) {
    run_job(work, jobs_[first_job + i], logits_.data + i * logits_.stride, sampler);
  };
  if (num_jobs == 1) {
    run(0, samplers_[0]);  // waking the team would cost more
    return;
  }
  program_.team().run_pieces(static_cast<int64_t>(num_jobs),
                             [&](int64_t piece, Scratch& scratch) { run(piece, samplers_[scratch.thread]); });
}

// Runs within the team: allocates nothing and throws nothing.
void Runner::run_job(const std::vector<SlotWork>& work, RowJob& job, const float* logits, Sampler& sampler) {
  const Sampling& sampling = job.slot->sampling();
  job.error = sampler.load(logits);
  if (job.error != nullptr) return;
  if (job.is_draw) {
    const std::vector<uint32_t>& mask = work[job.work].token_mask;
    const DrawRequest request{&sampling, job.slot->counts(), mask.empty() ? nullptr : mask.data(),
                              job.slot->num_known(), job.slot->num_output()};
    job.error = sampler.draw(request, &job.token_id);
    if (job.error != nullptr) return;
  }
  if (job.logprobs != nullptr) {
    sampler.logprobs(job.token_id, job.is_draw ? sampling.num_logprobs : sampling.num_prompt_logprobs, job.logprobs);
  }
}

void Runner::finish_jobs(std::vector<SlotOutcome>& outcomes) {
  for (const RowJob& job : jobs_) {
    if (job.error != nullptr && outcomes[job.work].error == nullptr) outcomes[job.work].error = job.error;
  }
  for (const RowJob& job : jobs_) {
    SlotOutcome& outcome = outcomes[job.work];
    if (outcome.error != nullptr) {
      outcome.logprobs.reset();
      outcome.prompt_logprobs.clear();
    } else if (job.is_draw) {
      outcome.token_id = job.token_id;
      job.slot->append(job.token_id);
    }
  }
}

}  // namespace pelton
