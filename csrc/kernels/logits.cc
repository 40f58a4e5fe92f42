// Passes over one row of logits for the sampler: block maxima, and exponentials with their exact sums.
//
// Formula: mass[i] = floor(exp((x[i] - best) * scale) * 2^42), with `best` the row's maximum and scale = 1 /
// temperature. Both passes read the row once and are bound by memory (or L2) for a vocabulary of 10^5 tokens; a block
// of 256 floats stays in L1 between its loops. Rows are independent, so threads take rows and a pass is one piece.
#include "kernels/logits.h"

#include "kernel_table.h"
#include "vec/vec.h"

namespace pelton {
namespace PELTON_LEVEL {
namespace {

constexpr int kLanes = 16;

int64_t one_piece(const Node&, const Step&) { return 1; }

inline int64_t block_size(int64_t begin, int64_t size) {
  return size - begin < kLogitBlock ? size - begin : kLogitBlock;
}

// The last vector of a row, its missing lanes filled with the row's last value: neither a maximum nor a test for
// finite values can see them.
inline F32 load_tail(const float* x, int64_t count) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = x[i < count ? i : count - 1];
  return f32_load(lanes);
}

// `logits.maxima`: P0 x [S0], P1 maxima out [blocks], P2 poison out [1]; S0 vocabulary.
// poison is NaN if any logit is not finite, else 0; the maxima mean nothing if a logit is NaN.
void maxima(const Node& node, const Step&, int64_t, Scratch&) {
  const auto* x = static_cast<const float*>(node.pointer[0]);
  auto* block_maxima = static_cast<float*>(node.pointer[1]);
  const int64_t size = node.size[0];
  F32 poison = f32_zero();
  for (int64_t begin = 0; begin < size; begin += kLogitBlock) {
    const int64_t count = block_size(begin, size);
    const float* block = x + begin;
    F32 best = f32_set(-__builtin_inff());
    for (int64_t i = 0; i < count; i += kLanes) {
      const F32 value = i + kLanes <= count ? f32_load(block + i) : load_tail(block + i, count - i);
      best = max(best, value);
      poison = fma(value, f32_zero(), poison);  // 0 * infinity and 0 * NaN are NaN
    }
    block_maxima[begin / kLogitBlock] = f32_reduce_max(best);
  }
  *static_cast<float*>(node.pointer[2]) = f32_reduce_add(poison);
}

// `logits.masses`: P0 x [S0], P1 masses out [S0] int64 or null, P2 block sums out [blocks] int64; S0 vocabulary;
// V0 best, V1 scale. -infinity gets mass 0.
void masses(const Node& node, const Step&, int64_t, Scratch&) {
  const auto* x = static_cast<const float*>(node.pointer[0]);
  auto* out = static_cast<int64_t*>(node.pointer[1]);
  auto* block_sums = static_cast<int64_t*>(node.pointer[2]);
  const int64_t size = node.size[0];
  const F32 best = f32_set(node.value[0]);
  const F32 scale = f32_set(node.value[1]);
  const F32 unit = f32_set(kUnitsPerMass);
  const F32 lowest = f32_set(-64.0f);  // its mass is 0 (exp(-64) = 1.6e-28), and exp never meets an infinity
  float lanes[kLogitBlock];
  for (int64_t begin = 0; begin < size; begin += kLogitBlock) {
    const int64_t count = block_size(begin, size);
    const float* block = x + begin;
    for (int64_t i = 0; i < count; i += kLanes) {
      const F32 value = i + kLanes <= count ? f32_load(block + i) : load_tail(block + i, count - i);
      f32_store(lanes + i, mul(f32_exp(max(mul(sub(value, best), scale), lowest)), unit));
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += static_cast<int64_t>(lanes[i]);
    block_sums[begin / kLogitBlock] = sum;
    if (out != nullptr) {
      for (int64_t i = 0; i < count; ++i) out[begin + i] = static_cast<int64_t>(lanes[i]);
    }
  }
}

const KernelEntry kEntries[] = {
    {"logits.maxima", maxima, one_piece},
    {"logits.masses", masses, one_piece},
};

}  // namespace

PELTON_EXPORT_KERNELS(logits, kEntries)

}  // namespace PELTON_LEVEL
}  // namespace pelton
