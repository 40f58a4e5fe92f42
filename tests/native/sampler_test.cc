// The sampler under the sanitizers and on every level that this machine has, aarch64 under emulation included. What it
// should choose is tested from Python; here, that it stays within its memory and that all levels choose the same.
#include "sampler.h"

#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>

#include "check.h"
#include "kernels/logits.h"
#include "levels.h"
#include "philox.h"

using pelton::DrawRequest;
using pelton::LevelStatus;
using pelton::LogitsKernels;
using pelton::Logprobs;
using pelton::Sampler;
using pelton::Sampling;
using pelton::TokenCounts;

namespace {

// Around vectors of 16 and blocks of 256.
constexpr int64_t kVocabSizes[] = {1, 2, 15, 16, 17, 255, 256, 257, 1000, 5000};

std::vector<float> random_row(std::mt19937& random, int64_t vocab_size) {
  // Not std::normal_distribution: its values differ between standard libraries.
  std::vector<float> row(vocab_size);
  const float spread = 1.0f + static_cast<float>(random() % 20);
  for (float& logit : row) logit = spread * (static_cast<float>(random()) / 4294967296.0f - 0.5f);
  if (random() % 3 == 0) {
    for (float& logit : row) logit = std::round(logit);  // ties
  }
  return row;
}

Sampling random_sampling(std::mt19937& random, int64_t vocab_size) {
  Sampling out;
  const double temperatures[] = {0.0, 1e-30, 0.7, 1.0, 100.0};
  out.temperature = temperatures[random() % 5];
  if (random() % 2 == 0) out.top_k = static_cast<int64_t>(random() % 300);
  if (random() % 2 == 0) out.top_p = (1 + random() % 999) / 1000.0;
  if (random() % 2 == 0) out.min_p = (random() % 1001) / 1000.0;
  if (random() % 3 == 0) out.repetition_penalty = 1.3;
  if (random() % 3 == 0) out.frequency_penalty = -1.5;
  out.seed = random();
  out.logit_bias.emplace_back(static_cast<int32_t>(random() % vocab_size), 2.0);
  return out;
}

// A token and what was reported for it.
struct Drawn {
  int32_t token_id = -1;
  Logprobs logprobs;

  bool operator==(const Drawn& other) const {
    return token_id == other.token_id && logprobs.count == other.logprobs.count &&
           logprobs.token_ids == other.logprobs.token_ids && logprobs.values == other.logprobs.values &&
           logprobs.rank == other.logprobs.rank;
  }
};

std::vector<Drawn> draw_many(const std::string& level) {
  std::mt19937 random(1);
  std::vector<Drawn> out;
  for (const int64_t vocab_size : kVocabSizes) {
    Sampler sampler(LogitsKernels(level), vocab_size);
    for (int i = 0; i < 60; ++i) {
      const std::vector<float> row = random_row(random, vocab_size);
      const Sampling sampling = random_sampling(random, vocab_size);
      check_sampling(sampling, vocab_size);
      TokenCounts counts;
      for (int token = 0; token < 5; ++token) counts.add_output(static_cast<int32_t>(random() % vocab_size));
      std::vector<uint32_t> mask((vocab_size + 31) / 32);
      for (uint32_t& word : mask) word = random() | 1u;  // token 0 at least
      const DrawRequest request{&sampling, &counts, i % 2 == 0 ? nullptr : mask.data(), i, 5};
      Drawn& drawn = out.emplace_back();
      CHECK(sampler.load(row.data()) == nullptr);
      CHECK(sampler.draw(request, &drawn.token_id) == nullptr);
      CHECK(drawn.token_id >= 0 && drawn.token_id < vocab_size);
      sampler.logprobs(drawn.token_id, i % (pelton::kMaxLogprobs + 1), &drawn.logprobs);
    }
  }
  return out;
}

}  // namespace

TEST(sampler_draws_the_same_on_every_level) {
  const std::vector<Drawn> expected = draw_many("generic");
  for (const LevelStatus& level : pelton::levels()) {
    if (level.usable) CHECK(draw_many(level.name) == expected);
  }
}

TEST(sampler_tells_broken_rows) {
  Sampler sampler(LogitsKernels("generic"), 300);
  for (const int64_t place : {0, 255, 256, 299}) {
    std::vector<float> row(300);
    row[place] = std::numeric_limits<float>::quiet_NaN();
    CHECK(sampler.load(row.data()) != nullptr);
    row[place] = std::numeric_limits<float>::infinity();
    CHECK(sampler.load(row.data()) != nullptr);
    row[place] = -std::numeric_limits<float>::infinity();
    CHECK(sampler.load(row.data()) == nullptr);
  }
}

TEST(sampler_sums_the_largest_vocabulary_without_overflow) {
  Sampler sampler(LogitsKernels("generic"), pelton::kMaxVocabSize);
  const std::vector<float> row(pelton::kMaxVocabSize, 1.0f);
  Sampling sampling;
  sampling.seed = 3;
  for (const double top_p : {1.0, 0.9999999}) {
    sampling.top_p = top_p;
    int32_t token_id = -1;
    CHECK(sampler.load(row.data()) == nullptr);
    CHECK(sampler.draw({&sampling, nullptr, nullptr, 0, 0}, &token_id) == nullptr);
    CHECK(token_id >= 0 && token_id < pelton::kMaxVocabSize);
  }
}

TEST(sampling_out_of_range_is_refused) {
  Sampling sampling;
  sampling.top_p = 0.0;
  CHECK_THROWS(check_sampling(sampling, 10), std::invalid_argument);
  sampling.top_p = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS(check_sampling(sampling, 10), std::invalid_argument);
  sampling.top_p = 1.0;
  sampling.logit_bias.emplace_back(10, 1.0);
  CHECK_THROWS(check_sampling(sampling, 10), std::invalid_argument);
}

TEST(philox_gives_the_published_answers) {
  using pelton::PhiloxCounter;
  CHECK((pelton::philox({0, 0, 0, 0}, {0, 0}) == PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((pelton::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
         PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}
