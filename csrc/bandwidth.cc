#include "bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>

namespace pelton {
namespace {

constexpr size_t kPiece = size_t{256} << 10;
constexpr int kPasses = 3;

// Sixteen bytes: what every 64-bit machine loads at once without further flags.
using Words = uint64_t __attribute__((vector_size(16)));

// Eight independent chains, so that the additions never hold up the loads.
uint64_t sum_words(const uint8_t* data, size_t bytes) {
  constexpr size_t kChains = 8;
  Words sums[kChains] = {};
  const auto* words = reinterpret_cast<const Words*>(data);  // memory is aligned to a page
  for (size_t at = 0; at + kChains <= bytes / sizeof(Words); at += kChains) {
    for (size_t i = 0; i < kChains; ++i) sums[i] += words[at + i];
  }
  Words total = sums[0];
  for (size_t i = 1; i < kChains; ++i) total += sums[i];
  return total[0] + total[1];
}

}  // namespace

double read_bandwidth(Team& team, size_t bytes) {
  if (bytes < (size_t{1} << 20)) throw std::invalid_argument("a bandwidth needs at least 1 MiB");
  using Clock = std::chrono::steady_clock;
  const Memory memory(bytes, "bandwidth");
  const int64_t pieces = static_cast<int64_t>(bytes / kPiece);
  // Written first: untouched pages are one page of zeros, which would be read from the cache.
  team.run_pieces(pieces, [&](int64_t piece, Scratch&) { std::memset(memory.data() + piece * kPiece, 1, kPiece); });
  std::atomic<uint64_t> total{0};  // keeps the reads from being optimised away
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const Clock::time_point start = Clock::now();
    team.run_pieces(pieces, [&](int64_t piece, Scratch&) {
      total.fetch_add(sum_words(memory.data() + piece * kPiece, kPiece), std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, static_cast<double>(pieces) * kPiece / seconds);
  }
  return best;
}

}  // namespace pelton
