// Chooses a token from one row of logits, and reports log-probabilities. Knows nothing of slots, steps or Python.
//
// The order is: token mask, logit bias, stop tokens before min_tokens, repetition penalty (prompt and output),
// frequency and presence penalty (output); then with temperature 0 the likeliest token, else temperature, min_p, top_k,
// top_p and a draw. Equal logits are ordered by token id, the lower one first. min_p and top_k both keep the best few,
// so their order does not matter; top_p is a part of the mass that they leave.
//
// The result depends on the row, the request and the position alone: masses are integers (see kernels/logits.h), the
// draw is a function of (seed, choice, position), and candidates are met in the order of their ids.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernel_table.h"

namespace pelton {

inline constexpr int kMaxLogprobs = 20;

// What a request asked for. Whoever makes one has checked it with check_sampling().
struct Sampling {
  double temperature = 1.0;
  int64_t top_k = 0;  // 0 or less keeps all
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids;  // can't be chosen before min_tokens
  std::vector<std::pair<int32_t, double>> logit_bias;
  int32_t num_logprobs = -1;  // alternatives reported beside the chosen token; -1 reports nothing
  int32_t num_prompt_logprobs = -1;

  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

// Throws std::invalid_argument, naming the field, if a number is out of its range or a token out of the vocabulary.
void check_sampling(const Sampling& sampling, int64_t vocab_size);

// Which tokens a request has seen and how often it said them, kept up to date token by token.
class TokenCounts {
 public:
  struct Entry {
    int32_t token_id;
    int32_t num_output;  // occurrences in the output
  };

  void add_prompt(int32_t token_id) { entry(token_id); }
  void add_output(int32_t token_id) { ++entry(token_id).num_output; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  Entry& entry(int32_t token_id);

  std::vector<Entry> entries_;
  std::unordered_map<int32_t, size_t> index_;
};

// The log-probabilities of one position in the unmodified distribution: the chosen token, then the likeliest ones.
struct Logprobs {
  int32_t count = 0;  // entries used below
  std::array<int32_t, kMaxLogprobs + 1> token_ids{};
  std::array<float, kMaxLogprobs + 1> values{};
  int64_t rank = 0;  // of the chosen token, 1 for the likeliest
};

// One draw to make. Pointers outlive the call.
struct DrawRequest {
  const Sampling* sampling;
  const TokenCounts* counts;   // null without penalties
  const uint32_t* token_mask;  // bit i % 32 of word i / 32 allows token i; null allows all
  int64_t position;            // of the token to draw
  int64_t num_output;          // tokens said before it
};

// The passes over a row that are compiled per level.
class LogitsKernels {
 public:
  // Throws std::invalid_argument if the level lacks them.
  explicit LogitsKernels(const std::string& level);

  // Fills block_maxima[num_logit_blocks(size)]; false if a logit is not finite.
  bool maxima(const float* logits, int64_t size, float* block_maxima) const;
  // masses[size], which may be null, and block_sums[num_logit_blocks(size)]. best: the largest of the row.
  void masses(const float* logits, int64_t size, float best, float scale, int64_t* masses, int64_t* block_sums) const;

 private:
  const KernelEntry* maxima_;
  const KernelEntry* masses_;
};

// The workspace of one thread: nothing is allocated after construction.
class Sampler {
 public:
  Sampler(const LogitsKernels& kernels, int64_t vocab_size);

  // Looks at a row, which must stay unchanged while the calls below use it. Returns what is wrong with it, or null.
  const char* load(const float* logits);
  // Sets `token_id`, or returns why no token can be drawn.
  const char* draw(const DrawRequest& request, int32_t* token_id);
  // count: alternatives to report, at most kMaxLogprobs.
  void logprobs(int32_t token_id, int32_t count, Logprobs* out);

 private:
  struct Candidate {
    float logit;
    int32_t token_id;
    int64_t mass;
  };
  struct Row {
    const float* logits;
    const float* block_maxima;
    float best;
  };

  static bool is_better(const Candidate& a, const Candidate& b);

  void modify(const DrawRequest& request);
  int32_t likeliest(const Row& row) const;
  int64_t measure_blocks(const Row& row, float scale);
  int32_t draw_from_row(const Row& row, float scale, uint64_t bits);

  void select(const Row& row, const Sampling& sampling, float scale);
  float cut_for_best(const Row& row, int64_t count);
  void gather(const Row& row, float cut);
  void keep_best(int64_t count);
  int64_t weigh(const Row& row, float scale);
  void keep_mass(const Row& row, float scale, int64_t target);
  void drop_worse_than(const Candidate& last);
  int32_t draw_from_candidates(uint64_t bits) const;

  const LogitsKernels kernels_;
  const int64_t vocab_size_;
  Row raw_{};  // as the model gave it
  std::vector<float> raw_maxima_;
  std::vector<float> modified_;  // the row's copy, if the request changes it
  std::vector<float> modified_maxima_;
  std::vector<float> sorted_maxima_;
  std::vector<int64_t> block_sums_;
  std::vector<Candidate> candidates_;  // in order of ids
  std::vector<Candidate> ranking_;     // a copy to select from
};

}  // namespace pelton
