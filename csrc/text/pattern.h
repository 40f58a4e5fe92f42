// Regular expressions that cut text into words: the part of Oniguruma's syntax that tokenizers are written in.
//
// Alternatives are tried in order, repetitions take as much as they can and give back: what matches is what the
// `tokenizers` library matches. Known: literals, classes with ranges, negation and &&, \p{L} \p{Lu} ... \p{Han}, \s \d,
// groups, (?i:...), lookahead (?=...) (?!...), | ? * + {m,n}, possessive ?+ *+ ++ of single characters, and $.
// Matching keeps its own stack: its depth does not depend on the text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pelton::text {

// A set of characters.
class CharacterSet {
 public:
  void add_range(uint32_t first, uint32_t last) { ranges_.push_back({first, last}); }
  void add_categories(uint32_t mask) { categories_ |= mask; }
  void add_flags(uint8_t flags) { flags_ |= flags; }
  void add_set(CharacterSet set) { sets_.push_back(std::move(set)); }
  void intersect(CharacterSet set) { limits_.push_back(std::move(set)); }
  void negate() { is_negated_ = !is_negated_; }
  // After the last change.
  void finish();

  bool has(uint32_t code) const { return code < 128 ? (ascii_[code / 64] >> code % 64 & 1) != 0 : find(code); }

 private:
  struct Range {
    uint32_t first, last;
  };
  bool find(uint32_t code) const;

  std::vector<Range> ranges_;
  std::vector<CharacterSet> sets_, limits_;
  uint32_t categories_ = 0;
  uint8_t flags_ = 0;
  bool is_negated_ = false;
  std::array<uint64_t, 2> ascii_{};
};

class Pattern {
 public:
  // Throws std::invalid_argument for a pattern beyond what is known.
  explicit Pattern(std::string_view source);

  struct Match {
    size_t begin, end;
  };
  // The first match that starts at `from` or later; begin is npos if there is none. text: valid UTF-8.
  Match find(std::string_view text, size_t from) const;

 private:
  friend class PatternParser;

  enum class Op : uint8_t { kOne, kRepeat, kPossessive, kSplit, kJump, kAhead, kNotAhead, kEndOfLine, kDone };
  // kOne, kRepeat, kPossessive: set `a`, least to most times. kSplit: try `a`, then `b`. kJump: to `a`.
  // kAhead, kNotAhead: the instructions up to `a`, which end in kDone.
  struct Step {
    Op op;
    int32_t a, b;
    int32_t least, most;
  };
  struct Choice {
    int32_t step;
    size_t at;
    size_t least;  // a repetition may give back down to here
  };

  // Where a match that starts at `at` ends, or npos. Leaves the stack as it was.
  size_t match(std::string_view text, size_t at, int32_t step, std::vector<Choice>& stack) const;

  std::vector<Step> steps_;
  std::vector<CharacterSet> sets_;
};

}  // namespace pelton::text
