#include "sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/logits.h"
#include "levels.h"
#include "philox.h"

namespace pelton {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// `bits` scaled to [0, total): every value is met by 2^64 / total of them, give or take one.
int64_t scale_bits(uint64_t bits, int64_t total) {
  return static_cast<int64_t>((static_cast<unsigned __int128>(bits) * static_cast<uint64_t>(total)) >> 64);
}

// The smallest integer mass that is at least `share` of `total`.
int64_t share_of(double share, int64_t total) {
  return static_cast<int64_t>(std::ceil(share * static_cast<double>(total)));
}

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high)) {
    throw std::invalid_argument("`" + std::string(name) + "` is `" + std::to_string(value) + "`, not within [" +
                                std::to_string(low) + ", " + std::to_string(high) + "]");
  }
}

const KernelEntry* require_kernel(const std::string& level, const std::string& name) {
  const KernelEntry* entry = find_kernel(level, name);
  if (entry == nullptr) throw std::invalid_argument("level `" + level + "` has no kernel `" + name + "`");
  return entry;
}

void run_pass(const KernelEntry& entry, const Node& node) {
  Scratch no_scratch{};
  entry.run(node, Step{}, 0, no_scratch);
}

}  // namespace

void check_sampling(const Sampling& sampling, int64_t vocab_size) {
  constexpr double kSmallest = std::numeric_limits<float>::min();
  check_range("temperature", sampling.temperature, 0.0, 100.0);
  check_range("top_p", sampling.top_p, kSmallest, 1.0);
  check_range("min_p", sampling.min_p, 0.0, 1.0);
  check_range("repetition_penalty", sampling.repetition_penalty, kSmallest, 100.0);
  check_range("presence_penalty", sampling.presence_penalty, -2.0, 2.0);
  check_range("frequency_penalty", sampling.frequency_penalty, -2.0, 2.0);
  check_range("logprobs", sampling.num_logprobs, -1, kMaxLogprobs);
  check_range("prompt_logprobs", sampling.num_prompt_logprobs, -1, kMaxLogprobs);
  for (const auto& [token_id, bias] : sampling.logit_bias) {
    check_range("logit_bias key", token_id, 0, static_cast<double>(vocab_size - 1));
    check_range("logit_bias", bias, -100.0, 100.0);
  }
}

TokenCounts::Entry& TokenCounts::entry(int32_t token_id) {
  const auto [place, is_new] = index_.try_emplace(token_id, entries_.size());
  if (is_new) entries_.push_back({token_id, 0});
  return entries_[place->second];
}

LogitsKernels::LogitsKernels(const std::string& level)
    : maxima_(require_kernel(level, "logits.maxima")), masses_(require_kernel(level, "logits.masses")) {}

bool LogitsKernels::maxima(const float* logits, int64_t size, float* block_maxima) const {
  float poison = 0.0f;
  Node node{};
  node.pointer[0] = const_cast<float*>(logits);
  node.pointer[1] = block_maxima;
  node.pointer[2] = &poison;
  node.size[0] = size;
  run_pass(*maxima_, node);
  return !std::isnan(poison);
}

void LogitsKernels::masses(const float* logits, int64_t size, float best, float scale, int64_t* masses,
                           int64_t* block_sums) const {
  Node node{};
  node.pointer[0] = const_cast<float*>(logits);
  node.pointer[1] = masses;
  node.pointer[2] = block_sums;
  node.size[0] = size;
  node.value[0] = best;
  node.value[1] = scale;
  run_pass(*masses_, node);
}

Sampler::Sampler(const LogitsKernels& kernels, int64_t vocab_size)
    : kernels_(kernels),
      vocab_size_(vocab_size),
      raw_maxima_(num_logit_blocks(vocab_size)),
      modified_maxima_(num_logit_blocks(vocab_size)),
      block_sums_(num_logit_blocks(vocab_size)) {
  sorted_maxima_.reserve(raw_maxima_.size());
  modified_.reserve(vocab_size);
  candidates_.reserve(vocab_size);
  ranking_.reserve(vocab_size);
}

const char* Sampler::load(const float* logits) {
  const bool is_finite = kernels_.maxima(logits, vocab_size_, raw_maxima_.data());
  raw_ = {logits, raw_maxima_.data(), *std::max_element(raw_maxima_.begin(), raw_maxima_.end())};
  if (is_finite) return nullptr;
  // -infinity is a probability of 0 and does no harm.
  for (int64_t i = 0; i < vocab_size_; ++i) {
    if (std::isnan(logits[i])) return "the model's logits hold NaN";
    if (logits[i] == kInfinity) return "the model's logits hold infinity";
  }
  return raw_.best == -kInfinity ? "every logit of the model is -infinity" : nullptr;
}

const char* Sampler::draw(const DrawRequest& request, int32_t* token_id) {
  const Sampling& sampling = *request.sampling;
  Row row = raw_;
  if (request.token_mask != nullptr || request.num_output < sampling.min_tokens || !sampling.logit_bias.empty() ||
      sampling.has_penalties()) {
    modify(request);
    kernels_.maxima(modified_.data(), vocab_size_, modified_maxima_.data());
    row = {modified_.data(), modified_maxima_.data(),
           *std::max_element(modified_maxima_.begin(), modified_maxima_.end())};
    if (row.best == -kInfinity) return "no token is allowed";
    if (row.best == kInfinity) return "the penalties made a logit infinite";
  }
  const float temperature = static_cast<float>(sampling.temperature);
  if (temperature == 0.0f) {
    *token_id = likeliest(row);
    return nullptr;
  }
  // Capped, so that a difference of 0 stays 0.
  const float scale = std::min(1.0f / temperature, std::numeric_limits<float>::max());
  const uint64_t bits = draw_bits(sampling.seed, sampling.choice, static_cast<uint64_t>(request.position));
  const bool has_top_k = sampling.top_k > 0 && sampling.top_k < vocab_size_;
  if (!has_top_k && sampling.min_p == 0.0 && sampling.top_p == 1.0) {
    *token_id = draw_from_row(row, scale, bits);
  } else {
    select(row, sampling, scale);
    *token_id = draw_from_candidates(bits);
  }
  return nullptr;
}

void Sampler::logprobs(int32_t token_id, int32_t count, Logprobs* out) {
  count = static_cast<int32_t>(std::min<int64_t>(count, vocab_size_));
  const double log_sum = std::log(static_cast<double>(measure_blocks(raw_, 1.0f)) / kUnitsPerMass);
  const auto put = [&](int32_t id) {
    out->token_ids[out->count] = id;
    out->values[out->count] = static_cast<float>(static_cast<double>(raw_.logits[id]) - raw_.best - log_sum);
    ++out->count;
  };
  out->count = 0;
  put(token_id);
  const Candidate chosen{raw_.logits[token_id], token_id, 0};
  out->rank = 1;
  for (int64_t block = 0, begin = 0; begin < vocab_size_; ++block, begin += kLogitBlock) {
    if (raw_.block_maxima[block] < chosen.logit) continue;
    const int64_t end = std::min(begin + kLogitBlock, vocab_size_);
    for (int64_t i = begin; i < end; ++i) {
      out->rank += is_better({raw_.logits[i], static_cast<int32_t>(i), 0}, chosen);
    }
  }
  if (count == 0) return;
  gather(raw_, cut_for_best(raw_, count));
  std::partial_sort(candidates_.begin(), candidates_.begin() + count, candidates_.end(), is_better);
  for (int32_t i = 0; i < count; ++i) put(candidates_[i].token_id);
}

bool Sampler::is_better(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.token_id < b.token_id);
}

void Sampler::modify(const DrawRequest& request) {
  const Sampling& sampling = *request.sampling;
  modified_.assign(raw_.logits, raw_.logits + vocab_size_);
  if (request.token_mask != nullptr) {
    for (int64_t i = 0; i < vocab_size_; ++i) {
      const bool is_allowed = (request.token_mask[i / 32] >> (i % 32) & 1u) != 0;
      modified_[i] = is_allowed ? modified_[i] : -kInfinity;  // without a branch: masks are hard to predict
    }
  }
  for (const auto& [token_id, bias] : sampling.logit_bias) modified_[token_id] += static_cast<float>(bias);
  if (request.num_output < sampling.min_tokens) {
    for (const int32_t token_id : sampling.stop_token_ids) {
      // An id beyond the vocabulary can't be drawn anyway.
      if (token_id >= 0 && token_id < vocab_size_) modified_[token_id] = -kInfinity;
    }
  }
  if (!sampling.has_penalties()) return;
  const auto repetition = static_cast<float>(sampling.repetition_penalty);
  const auto frequency = static_cast<float>(sampling.frequency_penalty);
  const auto presence = static_cast<float>(sampling.presence_penalty);
  for (const TokenCounts::Entry& entry : request.counts->entries()) {
    float& logit = modified_[entry.token_id];
    logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (entry.num_output == 0) continue;
    logit -= frequency * static_cast<float>(entry.num_output);
    logit -= presence;
  }
}

int32_t Sampler::likeliest(const Row& row) const {
  const int64_t block = std::find(row.block_maxima, row.block_maxima + block_sums_.size(), row.best) - row.block_maxima;
  const float* begin = row.logits + block * kLogitBlock;
  return static_cast<int32_t>(std::find(begin, row.logits + vocab_size_, row.best) - row.logits);
}

// Fills block_sums_ and returns their sum.
int64_t Sampler::measure_blocks(const Row& row, float scale) {
  kernels_.masses(row.logits, vocab_size_, row.best, scale, nullptr, block_sums_.data());
  int64_t total = 0;
  for (const int64_t sum : block_sums_) total += sum;
  return total;
}

int32_t Sampler::draw_from_row(const Row& row, float scale, uint64_t bits) {
  int64_t rest = scale_bits(bits, measure_blocks(row, scale));
  size_t block = 0;
  for (; rest >= block_sums_[block]; ++block) rest -= block_sums_[block];
  // The block's masses once more: they are the same integers, so the walk ends within it.
  const int64_t begin = static_cast<int64_t>(block) * kLogitBlock;
  const int64_t count = std::min(kLogitBlock, vocab_size_ - begin);
  std::array<int64_t, kLogitBlock> masses;
  int64_t sum = 0;
  kernels_.masses(row.logits + begin, count, row.best, scale, masses.data(), &sum);
  int64_t i = 0;
  for (; rest >= masses[i]; ++i) rest -= masses[i];
  return static_cast<int32_t>(begin + i);
}

// Leaves in candidates_, weighed, what top_k, min_p and top_p allow.
void Sampler::select(const Row& row, const Sampling& sampling, float scale) {
  const auto cut_at = [&](double log_share) { return static_cast<float>(row.best + log_share / scale); };
  const bool has_top_k = sampling.top_k > 0 && sampling.top_k < vocab_size_;
  if (has_top_k || sampling.min_p > 0.0) {
    float cut = sampling.min_p > 0.0 ? cut_at(std::log(sampling.min_p)) : -kInfinity;
    if (has_top_k) cut = std::max(cut, cut_for_best(row, sampling.top_k));
    gather(row, cut);
    if (has_top_k) keep_best(sampling.top_k);
    const int64_t total = weigh(row, scale);
    if (sampling.top_p < 1.0) keep_mass(row, scale, share_of(sampling.top_p, total));
    return;
  }
  // top_p alone is a part of the whole row's mass: look among the likeliest first, then further down.
  const int64_t target = share_of(sampling.top_p, measure_blocks(row, scale));
  for (const double log_share : {-6.0, -9.0, -12.0, -std::numeric_limits<double>::infinity()}) {
    gather(row, cut_at(log_share));
    if (weigh(row, scale) >= target) break;
  }
  keep_mass(row, scale, target);
}

// A logit that at least `count` tokens reach: as many blocks have a maximum of at least that.
float Sampler::cut_for_best(const Row& row, int64_t count) {
  sorted_maxima_.assign(row.block_maxima, row.block_maxima + block_sums_.size());
  if (count > static_cast<int64_t>(sorted_maxima_.size())) return -kInfinity;
  const auto place = sorted_maxima_.begin() + (count - 1);
  std::nth_element(sorted_maxima_.begin(), place, sorted_maxima_.end(), std::greater<float>());
  return *place;
}

void Sampler::gather(const Row& row, float cut) {
  candidates_.clear();
  for (int64_t block = 0, begin = 0; begin < vocab_size_; ++block, begin += kLogitBlock) {
    if (row.block_maxima[block] < cut) continue;
    const int64_t end = std::min(begin + kLogitBlock, vocab_size_);
    for (int64_t i = begin; i < end; ++i) {
      if (row.logits[i] >= cut) candidates_.push_back({row.logits[i], static_cast<int32_t>(i), 0});
    }
  }
}

void Sampler::keep_best(int64_t count) {
  if (static_cast<int64_t>(candidates_.size()) <= count) return;
  ranking_.assign(candidates_.begin(), candidates_.end());
  std::nth_element(ranking_.begin(), ranking_.begin() + (count - 1), ranking_.end(), is_better);
  drop_worse_than(ranking_[count - 1]);
}

// Gives every candidate its mass and returns the sum.
int64_t Sampler::weigh(const Row& row, float scale) {
  std::array<float, kLogitBlock> logits;
  std::array<int64_t, kLogitBlock> masses;
  int64_t total = 0;
  for (size_t begin = 0; begin < candidates_.size(); begin += kLogitBlock) {
    const size_t count = std::min<size_t>(kLogitBlock, candidates_.size() - begin);
    int64_t sum = 0;
    for (size_t i = 0; i < count; ++i) logits[i] = candidates_[begin + i].logit;
    kernels_.masses(logits.data(), static_cast<int64_t>(count), row.best, scale, masses.data(), &sum);
    for (size_t i = 0; i < count; ++i) candidates_[begin + i].mass = masses[i];
    total += sum;
  }
  return total;
}

// Keeps the fewest best candidates whose mass is at least `target`. The last of them is sought in steps of 1/32 nat,
// each better than the next, and then, in the step where it lies, by halving.
void Sampler::keep_mass(const Row& row, float scale, int64_t target) {
  constexpr int kStepsPerNat = 32;
  constexpr int kNumSteps = 32 * kStepsPerNat;  // beyond 32 nats there is no mass
  const auto step_of = [&](const Candidate& candidate) {
    return static_cast<int>(std::min((row.best - candidate.logit) * scale * kStepsPerNat, kNumSteps - 1.0f));
  };
  std::array<int64_t, kNumSteps> step_masses{};
  for (const Candidate& candidate : candidates_) step_masses[step_of(candidate)] += candidate.mass;
  int64_t mass = 0;  // of the candidates before the range; less than target
  int last_step = 0;
  while (last_step < kNumSteps - 1 && mass + step_masses[last_step] < target) mass += step_masses[last_step++];
  ranking_.clear();
  for (const Candidate& candidate : candidates_) {
    if (step_of(candidate) == last_step) ranking_.push_back(candidate);
  }
  if (ranking_.empty()) return;  // rounding put the target above the whole mass
  auto first = ranking_.begin(), last = ranking_.end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, is_better);
    int64_t half = 0;
    for (auto i = first; i != middle; ++i) half += i->mass;
    if (mass + half >= target) {
      last = middle;
    } else {
      mass += half;
      first = middle;
    }
  }
  drop_worse_than(*first);
}

void Sampler::drop_worse_than(const Candidate& last) {
  const auto is_worse = [&last](const Candidate& candidate) { return is_better(last, candidate); };
  candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), is_worse), candidates_.end());
}

int32_t Sampler::draw_from_candidates(uint64_t bits) const {
  int64_t total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.mass;
  int64_t rest = scale_bits(bits, total);
  auto candidate = candidates_.begin();
  for (; rest >= candidate->mass; ++candidate) rest -= candidate->mass;
  return candidate->token_id;
}

}  // namespace pelton
