// Sizes shared by the per-level passes over one row of logits (logits.cc) and the sampler that reads what they find.
#pragma once

#include <cstdint>

namespace pelton {

// A row is looked at in blocks of this many tokens. One maximum per block lets a search for the best few skip most of
// the row: 32,000 tokens give 125 maxima, more than a usual top_k.
inline constexpr int64_t kLogitBlock = 256;

inline constexpr int64_t num_logit_blocks(int64_t vocab_size) { return (vocab_size + kLogitBlock - 1) / kLogitBlock; }

// Probability masses are integers, in units of 2^-42 of the likeliest token's: sums are exact, so they don't depend on
// order, threads or level. A token below one unit (2.3e-13) can't be drawn. 2^20 tokens sum up to at most 2^62.
inline constexpr float kUnitsPerMass = 4398046511104.0f;  // 2^42
inline constexpr int64_t kMaxVocabSize = int64_t{1} << 20;

}  // namespace pelton
