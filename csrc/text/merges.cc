#include "text/merges.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace pelton::text {
namespace {

constexpr int32_t kNone = -1;

int32_t known(const Vocabulary& vocabulary, std::string_view text, size_t merge) {
  const int32_t id = vocabulary.find(text);
  if (id == kNoToken) {
    throw std::invalid_argument("token `" + std::string(text) + "` of merge " + std::to_string(merge) +
                                " is not in the vocabulary");
  }
  return id;
}

}  // namespace

PairMerges::PairMerges(const Vocabulary& vocabulary, const std::vector<std::string_view>& merges) {
  if (merges.size() > INT32_MAX) throw std::invalid_argument("there are at most 2^31 - 1 merges");
  int bits = 1;
  while ((size_t{1} << bits) < 2 * merges.size()) ++bits;
  shift_ = 64 - bits;
  slots_.resize(size_t{1} << bits, {kNoToken, kNoToken, {0, kNoToken}});
  std::string whole;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const size_t space = merges[rank].find(' ', 1);
    if (space == std::string_view::npos) {
      throw std::invalid_argument("merge " + std::to_string(rank) + " is `" + std::string(merges[rank]) +
                                  "`, not two tokens");
    }
    const std::string_view left = merges[rank].substr(0, space), right = merges[rank].substr(space + 1);
    whole.assign(left).append(right);
    const int32_t left_id = known(vocabulary, left, rank), right_id = known(vocabulary, right, rank);
    slots_[place(left_id, right_id)] = {
        left_id, right_id, {static_cast<uint32_t>(rank), known(vocabulary, whole, rank)}};
  }
}

Merge PairMerges::find(const Symbol& left, const Symbol& right) const { return slots_[place(left.id, right.id)].merge; }

size_t PairMerges::place(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  uint64_t mixed = key * kHashBase;
  mixed ^= mixed >> 32;
  size_t at = mixed * kHashBase >> shift_;
  while (slots_[at].merge.id != kNoToken && (slots_[at].left != left || slots_[at].right != right)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

ScoreMerges::ScoreMerges(const Vocabulary& vocabulary, const std::vector<double>& scores,
                         const std::vector<int32_t>& no_pieces)
    : vocabulary_(&vocabulary), ranks_(scores.size(), kNoPiece) {
  const auto count = static_cast<size_t>(vocabulary.size());
  if (scores.size() != count) {
    throw std::invalid_argument("`" + std::to_string(count) + "` tokens with `" + std::to_string(scores.size()) +
                                "` scores");
  }
  std::vector<int32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
  size_t longest = 0;
  for (size_t rank = 0; rank < count; ++rank) {
    ranks_[order[rank]] = static_cast<uint32_t>(rank);
    longest = std::max(longest, vocabulary.text(order[rank]).size());
  }
  for (const int32_t id : no_pieces) {
    if (id < 0 || static_cast<size_t>(id) >= count) {
      throw std::invalid_argument("there is no token `" + std::to_string(id) + "`");
    }
    ranks_[id] = kNoPiece;
  }
  powers_.assign(longest + 1, 1);
  for (size_t i = 1; i <= longest; ++i) powers_[i] = powers_[i - 1] * kHashBase;
}

ScoreMerges::Word::Word(const ScoreMerges& rule, std::string_view text) : rule_(rule), text_(text) {
  hashes_.reserve(text.size() + 1);
  hashes_.push_back(0);
  for (const char byte : text) hashes_.push_back(extend_hash(hashes_.back(), byte));
}

Merge ScoreMerges::Word::find(const Symbol& left, const Symbol& right) const {
  constexpr Merge kNoMerge = {0, kNoToken};
  const auto& ranks = rule_.ranks_;
  const auto length = static_cast<size_t>(right.end - left.begin);
  if (length >= rule_.powers_.size() || ranks[left.id] == kNoPiece || ranks[right.id] == kNoPiece) return kNoMerge;
  const uint64_t hash = hashes_[right.end] - hashes_[left.begin] * rule_.powers_[length];
  const int32_t id = rule_.vocabulary_->find(hash, text_.substr(static_cast<size_t>(left.begin), length));
  return id == kNoToken || ranks[id] == kNoPiece ? kNoMerge : Merge{ranks[id], id};
}

template <class Rule>
void merge_symbols(const Rule& rule, std::vector<Symbol>& symbols, std::vector<int32_t>& ids) {
  struct Candidate {
    Merge merge;
    int32_t left;
    // A heap has its greatest on top.
    bool operator<(const Candidate& other) const {
      return merge.rank != other.merge.rank ? merge.rank > other.merge.rank : left > other.left;
    }
  };
  std::vector<Candidate> heap;
  const auto consider = [&](int32_t left) {
    if (left == kNone || symbols[left].next == kNone) return;
    const Merge merge = rule.find(symbols[left], symbols[symbols[left].next]);
    if (merge.id == kNoToken) return;
    heap.push_back({merge, left});
    std::push_heap(heap.begin(), heap.end());
  };
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[i].previous = i - 1;
    symbols[i].next = i + 1 < count ? i + 1 : kNone;
  }
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[best.left];
    // It may be out of date: one of the two was joined with another neighbour.
    if (left.id == kNoToken || left.next == kNone) continue;
    Symbol& right = symbols[left.next];
    if (rule.find(left, right).id != best.merge.id) continue;
    left.id = best.merge.id;
    left.end = right.end;
    left.next = right.next;
    right.id = kNoToken;
    if (left.next != kNone) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNoToken) ids.push_back(symbol.id);
  }
}

template void merge_symbols(const PairMerges&, std::vector<Symbol>&, std::vector<int32_t>&);
template void merge_symbols(const ScoreMerges::Word&, std::vector<Symbol>&, std::vector<int32_t>&);

}  // namespace pelton::text
