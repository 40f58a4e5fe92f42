// How the symbols of a word become tokens: adjacent pairs are joined, the best one first, as long as one can be.
//
// Two rules say which pairs. `PairMerges`: a list of pairs in order (byte-level BPE). `ScoreMerges`: any pair whose
// text together is a piece, the best score first (SentencePiece); pairs are looked up by text, since a vocabulary of
// 262,144 pieces has 514,906 pairs. Of equals the leftmost goes first. The time is n log n in the length of the word.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace pelton::text {

struct Symbol {
  int32_t id;
  int32_t begin, end;  // of its text, where the rule looks
  int32_t previous, next;
};

struct Merge {
  uint32_t rank;  // the least goes first
  int32_t id;     // kNoToken: the pair is none
};

class PairMerges {
 public:
  // merges: "left right", best first; a token may itself begin with a space. Of a pair given twice the last counts.
  // Throws std::invalid_argument for a merge whose tokens are not in the vocabulary.
  PairMerges(const Vocabulary& vocabulary, const std::vector<std::string_view>& merges);

  Merge find(const Symbol& left, const Symbol& right) const;

 private:
  struct Slot {
    int32_t left, right;
    Merge merge;
  };
  size_t place(int32_t left, int32_t right) const;

  std::vector<Slot> slots_;  // open addressing, at most half full; merge.id is kNoToken in an empty one
  int shift_;
};

class ScoreMerges {
 public:
  // vocabulary: must outlive this. scores: of each token. no_pieces: tokens that no merge has (control, unknown and
  // byte tokens: text makes none). Throws std::invalid_argument unless there is one score for each, or for an id beyond
  // the tokens.
  ScoreMerges(const Vocabulary& vocabulary, const std::vector<double>& scores, const std::vector<int32_t>& no_pieces);

  // The text of one word, which must outlive its merging.
  class Word {
   public:
    Word(const ScoreMerges& rule, std::string_view text);
    Merge find(const Symbol& left, const Symbol& right) const;

   private:
    const ScoreMerges& rule_;
    std::string_view text_;
    std::vector<uint64_t> hashes_;  // of the text up to each byte
  };

 private:
  static constexpr uint32_t kNoPiece = UINT32_MAX;
  const Vocabulary* vocabulary_;
  std::vector<uint32_t> ranks_;  // kNoPiece: no merge has it
  std::vector<uint64_t> powers_;
};

// Joins the symbols, whose previous and next are set here, and appends the ids that are left. Rule: find(left, right).
template <class Rule>
void merge_symbols(const Rule& rule, std::vector<Symbol>& symbols, std::vector<int32_t>& ids);

extern template void merge_symbols(const PairMerges&, std::vector<Symbol>&, std::vector<int32_t>&);
extern template void merge_symbols(const ScoreMerges::Word&, std::vector<Symbol>&, std::vector<int32_t>&);

}  // namespace pelton::text
