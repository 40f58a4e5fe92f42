// Runs steps: slots' deltas in, tokens and log-probabilities out. Knows nothing of Python or of models.
//
// One step is: body nodes once over all rows, then per tile of at most 32 logit rows the head nodes and, row by row,
// the sampler. The logits of a tile are overwritten by the next one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "program.h"
#include "sampler.h"
#include "slots.h"
#include "step.h"

namespace pelton {

// What one slot got from a step. error: why it failed, or null; the other slots are unharmed.
struct SlotOutcome {
  int64_t slot;
  std::optional<int32_t> token_id;  // empty if it did not sample
  std::optional<Logprobs> logprobs;
  std::vector<Logprobs> prompt_logprobs;
  const char* error = nullptr;
};

// Where the program's head leaves a tile: kHeadRows rows, `stride` floats apart, of vocab_size logits each.
struct LogitsView {
  const float* data;
  int64_t stride;
};

class Runner {
 public:
  // kv_pool may be null without cache groups. Program and memory must outlive the runner. Throws std::invalid_argument
  // if the sizes do not fit.
  Runner(Program& program, RunnerLimits limits, uint8_t* kv_pool, LogitsView logits);

  void enter(int64_t slot, Request request) { slots_.enter(slot, std::move(request)); }
  void release(int64_t slot) { slots_.release(slot); }
  // Computes one step; outcomes are in the order of `work`. Throws std::invalid_argument, before anything is changed,
  // if some work does not fit its slot.
  std::vector<SlotOutcome> step(const std::vector<SlotWork>& work);

 private:
  // One logit row and what is wanted of it.
  struct RowJob {
    int32_t row;  // of the body
    size_t work;  // index into the step's work
    Slot* slot;
    bool is_draw;        // else the log-probability of a prompt token
    int32_t token_id;    // drawn, or the prompt's
    Logprobs* logprobs;  // null: not wanted
    const char* error;
  };

  void build_rows(const std::vector<SlotWork>& work);
  void build_jobs(const std::vector<SlotWork>& work, std::vector<SlotOutcome>& outcomes);
  void run_tile(const std::vector<SlotWork>& work, size_t first_job, size_t num_jobs);
  void run_job(const std::vector<SlotWork>& work, RowJob& job, const float* logits, Sampler& sampler);
  void finish_jobs(std::vector<SlotOutcome>& outcomes);

  Program& program_;
  Slots slots_;
  uint8_t* kv_pool_;
  LogitsView logits_;
  std::vector<Sampler> samplers_;  // one per thread of the team

  // Of the present step.
  std::vector<int32_t> token_ids_, positions_, row_sequence_;
  std::vector<SequenceRows> sequences_;
  std::vector<RowJob> jobs_;
  Step step_{};
};

}  // namespace pelton
