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

// Eight independent chains, so that the additions never hold up the loads.
uint64_t sum_words(const uint8_t* data, size_t bytes) {
  uint64_t sums[8] = {};
  for (size_t at = 0; at + 64 <= bytes; at += 64) {
    uint64_t words[8];
    std::memcpy(words, data + at, sizeof words);
    for (int i = 0; i < 8; ++i) sums[i] += words[i];
  }
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
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
