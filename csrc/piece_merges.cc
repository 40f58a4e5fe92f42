#include "piece_merges.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace pelton {
namespace {

// Hash of a text: a polynomial of its bytes modulo 2^64, so that the hashes of all beginnings and ends of a piece cost
// one multiplication each, however many cuts there are.
constexpr uint64_t kBase = 0x9e3779b97f4a7c15u;

// Finds pieces by hash and text. Open addressing at most half full: a vocabulary is asked for millions of parts, and
// each question is then about one cache line.
class PieceTable {
 public:
  static constexpr int32_t kNone = -1;

  explicit PieceTable(const std::vector<std::string_view>& pieces) : pieces_(pieces) {
    int bits = 1;
    while ((size_t{1} << bits) < 2 * pieces.size()) ++bits;
    shift_ = 64 - bits;
    slots_.resize(size_t{1} << bits, {0, kNone});
    for (size_t index = 0; index < pieces.size(); ++index) {
      uint64_t hash = 0;
      for (const char byte : pieces[index]) hash = hash * kBase + static_cast<uint8_t>(byte);
      Slot& slot = slots_[place(hash, pieces[index])];
      if (slot.index == kNone) slot = {hash, static_cast<int32_t>(index)};
    }
  }

  int32_t find(uint64_t hash, std::string_view text) const { return slots_[place(hash, text)].index; }

 private:
  struct Slot {
    uint64_t hash;
    int32_t index;
  };

  // Where the text is, or the empty slot where it would be.
  size_t place(uint64_t hash, std::string_view text) const {
    size_t at = hash * kBase >> shift_;
    while (slots_[at].index != kNone && (slots_[at].hash != hash || pieces_[slots_[at].index] != text)) {
      at = (at + 1) % slots_.size();
    }
    return at;
  }

  const std::vector<std::string_view>& pieces_;
  std::vector<Slot> slots_;
  int shift_;
};

bool starts_character(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; }

}  // namespace

std::vector<PieceMerge> piece_merges(const std::vector<std::string_view>& pieces, const std::vector<double>& scores) {
  if (pieces.size() != scores.size() || pieces.size() > INT32_MAX) {
    throw std::invalid_argument("`" + std::to_string(pieces.size()) + "` pieces with `" +
                                std::to_string(scores.size()) + "` scores");
  }
  const PieceTable table(pieces);
  std::vector<int32_t> order(pieces.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });

  std::vector<PieceMerge> merges;
  std::vector<uint64_t> ends;  // hash of the piece from each byte on
  for (const int32_t whole : order) {
    const std::string_view piece = pieces[whole];
    ends.assign(piece.size() + 1, 0);
    uint64_t power = 1;
    for (size_t cut = piece.size(); cut-- > 0; power *= kBase) {
      ends[cut] = ends[cut + 1] + static_cast<uint8_t>(piece[cut]) * power;
    }
    uint64_t beginning = 0;
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      beginning = beginning * kBase + static_cast<uint8_t>(piece[cut - 1]);
      if (!starts_character(piece[cut])) continue;
      const int32_t left = table.find(beginning, piece.substr(0, cut));
      if (left == PieceTable::kNone) continue;
      const int32_t right = table.find(ends[cut], piece.substr(cut));
      if (right == PieceTable::kNone) continue;
      merges.emplace_back(left, right);
    }
  }
  return merges;
}

}  // namespace pelton
