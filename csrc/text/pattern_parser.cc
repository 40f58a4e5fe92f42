// From a pattern's text to its steps: recursive descent over what pattern.h says is known.
#include <stdexcept>
#include <utility>

#include "text/pattern.h"
#include "text/unicode.h"

namespace pelton::text {
namespace {

constexpr int32_t kNoLimit = -1;
constexpr int32_t kMaxRepeats = 1000;
constexpr size_t kMaxSteps = 100'000;
constexpr int kMaxDepth = 50;

constexpr const char* kCategoryNames[kNumCategories] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                                        "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                                        "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};

// Categories whose name starts so: "L", "Lu".
uint32_t categories_named(std::string_view name) {
  uint32_t mask = 0;
  for (int i = kUnassigned + 1; i < kNumCategories; ++i) {
    if (!name.empty() && std::string_view(kCategoryNames[i]).substr(0, name.size()) == name) mask |= uint32_t{1} << i;
  }
  return mask;
}

bool is_letter(uint32_t code) { return (code | 32) >= 'a' && (code | 32) <= 'z'; }

}  // namespace

class PatternParser {
 public:
  PatternParser(std::string_view source, Pattern& pattern) : source_(source), pattern_(pattern) {}

  void parse() {
    alternatives();
    if (at_ != source_.size()) refuse("a `)` too many");
    emit({Op::kDone, 0, 0, 0, 0});
  }

 private:
  using Op = Pattern::Op;
  using Step = Pattern::Step;

  [[noreturn]] void refuse(const std::string& what) const {
    throw std::invalid_argument("pattern `" + std::string(source_) + "`: " + what + ", at byte " + std::to_string(at_));
  }

  bool at_end() const { return at_ >= source_.size(); }
  bool sees(std::string_view text) const { return source_.substr(at_, text.size()) == text; }
  bool take(std::string_view text) {
    if (!sees(text)) return false;
    at_ += text.size();
    return true;
  }
  uint32_t take_character() {
    if (at_end()) refuse("it ends too early");
    return next_character(source_, at_);
  }

  int32_t here() const { return static_cast<int32_t>(pattern_.steps_.size()); }
  int32_t emit(Step step) {
    if (pattern_.steps_.size() >= kMaxSteps) refuse("it is too large");
    pattern_.steps_.push_back(step);
    return here() - 1;
  }
  // Makes room for a step in front of those from `first` on.
  void insert(int32_t first, Step step) {
    emit(step);
    auto& steps = pattern_.steps_;
    for (size_t i = steps.size() - 1; i > static_cast<size_t>(first); --i) steps[i] = shifted(steps[i - 1], first, 1);
    steps[first] = step;
  }
  // A copy that has moved, with its jumps inside.
  static Step shifted(Step step, int32_t first, int32_t by) {
    const bool jumps =
        step.op == Op::kSplit || step.op == Op::kJump || step.op == Op::kAhead || step.op == Op::kNotAhead;
    if (jumps && step.a >= first) step.a += by;
    if (step.op == Op::kSplit && step.b >= first) step.b += by;
    return step;
  }

  // Returns whether it can match nothing.
  bool alternatives() {
    if (++depth_ > kMaxDepth) refuse("it is nested too deeply");
    const int32_t first = here();
    bool can_be_empty = sequence();
    if (take("|")) {
      insert(first, {Op::kSplit, first + 1, 0, 0, 0});
      const int32_t jump = emit({Op::kJump, 0, 0, 0, 0});
      pattern_.steps_[first].b = here();
      can_be_empty |= alternatives();
      pattern_.steps_[jump].a = here();
    }
    --depth_;
    return can_be_empty;
  }

  bool sequence() {
    bool can_be_empty = true;
    while (!at_end() && !sees("|") && !sees(")")) can_be_empty &= item();
    return can_be_empty;
  }

  bool item() {
    if (take("$")) {
      emit({Op::kEndOfLine, 0, 0, 0, 0});
      return true;
    }
    if (sees("(")) return group();
    CharacterSet set = character_set();
    set.finish();
    pattern_.sets_.push_back(std::move(set));
    const auto index = static_cast<int32_t>(pattern_.sets_.size()) - 1;
    int32_t least = 1, most = 1;
    if (!repetition(least, most)) {
      emit({Op::kOne, index, 0, 1, 1});
      return false;
    }
    if (sees("+") && source_[at_ - 1] == '}') refuse("a repetition of a repetition");
    emit({take("+") ? Op::kPossessive : Op::kRepeat, index, 0, least, most});
    return least == 0;
  }

  bool repetition(int32_t& least, int32_t& most) {
    if (take("?")) {
      least = 0;
    } else if (take("*")) {
      least = 0, most = kNoLimit;
    } else if (take("+")) {
      most = kNoLimit;
    } else if (take("{")) {
      least = number();
      most = least;
      if (take(",")) most = sees("}") ? kNoLimit : number();
      if (!take("}") || (most != kNoLimit && most < least)) refuse("a malformed repetition");
    } else {
      return false;
    }
    if (sees("?")) refuse("repetitions that take little are not known");
    return true;
  }

  int32_t number() {
    int32_t value = 0;
    const size_t start = at_;
    while (!at_end() && source_[at_] >= '0' && source_[at_] <= '9' && value <= kMaxRepeats) {
      value = 10 * value + (source_[at_++] - '0');
    }
    if (at_ == start || value > kMaxRepeats) refuse("a malformed number");
    return value;
  }

  bool group() {
    const bool was_caseless = is_caseless_;
    const int32_t first = here();
    take("(");
    bool can_be_empty;
    if (sees("?=") || sees("?!")) {
      const Op op = take("?=") ? Op::kAhead : (take("?!"), Op::kNotAhead);
      emit({op, 0, 0, 0, 0});
      alternatives();
      emit({Op::kDone, 0, 0, 0, 0});
      pattern_.steps_[first].a = here();
      can_be_empty = true;
    } else {
      if (take("?i:")) {
        is_caseless_ = true;
      } else if (!take("?:") && sees("?")) {
        refuse("a group of a kind that is not known");
      }
      can_be_empty = alternatives();
    }
    if (!take(")")) refuse("a `(` is not closed");
    is_caseless_ = was_caseless;
    int32_t least = 1, most = 1;
    if (!repetition(least, most)) return can_be_empty;
    if (sees("+")) refuse("possessive groups are not known");
    if (can_be_empty) refuse("what repeats could be empty");
    repeat(first, least, most);
    return least == 0;
  }

  // The steps from `first` on, `least` to `most` times.
  void repeat(int32_t first, int32_t least, int32_t most) {
    const std::vector<Step> body(pattern_.steps_.begin() + first, pattern_.steps_.end());
    pattern_.steps_.resize(static_cast<size_t>(first));
    const auto copy = [&] {
      const int32_t by = here() - first;
      for (const Step& step : body) emit(shifted(step, first, by));
    };
    for (int32_t i = 0; i < least; ++i) copy();
    if (most == kNoLimit) {
      const int32_t loop = emit({Op::kSplit, here() + 1, 0, 0, 0});
      copy();
      emit({Op::kJump, loop, 0, 0, 0});
      pattern_.steps_[loop].b = here();
      return;
    }
    std::vector<int32_t> splits;
    for (int32_t i = least; i < most; ++i) {
      splits.push_back(emit({Op::kSplit, here() + 1, 0, 0, 0}));
      copy();
    }
    for (const int32_t split : splits) pattern_.steps_[split].b = here();
  }

  CharacterSet character_set() {
    if (take("[")) return bracket();
    CharacterSet set;
    if (sees("\\")) {
      uint32_t literal;
      if (!escape(set, literal)) add_literal(set, literal);
      return set;
    }
    const uint32_t code = take_character();
    if (code < 128 && std::string_view(".^*+?{}]").find(static_cast<char>(code)) != std::string_view::npos) {
      refuse("`" + std::string(1, static_cast<char>(code)) + "` is not known here");
    }
    add_literal(set, code);
    return set;
  }

  // A simple fold: no pattern has letters whose other case is outside ASCII but these two.
  void add_literal(CharacterSet& set, uint32_t code) const {
    set.add_range(code, code);
    if (!is_caseless_) return;
    if (code >= 128) refuse("characters beyond ASCII are not known without regard to case");
    if (!is_letter(code)) return;
    set.add_range(code ^ 32, code ^ 32);
    if ((code | 32) == 's') set.add_range(0x17f, 0x17f);
    if ((code | 32) == 'k') set.add_range(0x212a, 0x212a);
  }

  static void add_properties(CharacterSet& set, uint32_t categories, uint8_t flags, bool is_negated) {
    CharacterSet inner;
    CharacterSet& target = is_negated ? inner : set;
    target.add_categories(categories);
    target.add_flags(flags);
    if (!is_negated) return;
    inner.negate();
    inner.finish();
    set.add_set(std::move(inner));
  }

  // After a backslash: true if it was a set, which has been added; false if it is a literal.
  bool escape(CharacterSet& set, uint32_t& literal) {
    take("\\");
    const uint32_t code = take_character();
    switch (code) {
      case 's':
      case 'S':
      case 'd':
      case 'D': {
        const bool is_space = (code | 32) == 's';
        add_properties(set, is_space ? 0 : uint32_t{1} << kNd, is_space ? kSpaceFlag : 0, code < 'a');
        return true;
      }
      case 'p':
      case 'P': {
        if (!take("{")) refuse("a property without a name");
        const size_t end = source_.find('}', at_);
        if (end == std::string_view::npos) refuse("a property that does not end");
        const std::string_view name = source_.substr(at_, end - at_);
        const uint8_t flags = name == "Han" ? kHanFlag : 0;
        const uint32_t categories = flags != 0 ? 0 : categories_named(name);
        if (flags == 0 && categories == 0) refuse("a property that is not known");
        at_ = end + 1;
        add_properties(set, categories, flags, code == 'P');
        return true;
      }
      case 'n':
        literal = '\n';
        return false;
      case 'r':
        literal = '\r';
        return false;
      case 't':
        literal = '\t';
        return false;
      default:
        if (code >= 128 || is_letter(code) || (code >= '0' && code <= '9')) refuse("an escape that is not known");
        literal = code;
        return false;
    }
  }

  CharacterSet bracket() {
    if (++depth_ > kMaxDepth) refuse("it is nested too deeply");
    CharacterSet set;
    const bool is_negated = take("^");
    bool is_first = true;
    for (; is_first || !take("]"); is_first = false) {
      if (take("&&")) {
        if (is_negated) refuse("`&&` in a negated class is not known");
        if (!take("[")) refuse("`&&` without a class");
        set.intersect(bracket());
        if (!sees("]")) refuse("a class that goes on after `&&`");
        continue;
      }
      if (sees("[:")) refuse("POSIX classes are not known");
      if (take("[")) {
        set.add_set(bracket());
        continue;
      }
      uint32_t low, high;
      if (sees("\\")) {
        if (escape(set, low)) continue;
      } else {
        low = take_character();
      }
      const bool is_range = sees("-") && source_.size() - at_ > 1 && source_[at_ + 1] != ']';
      if (!is_range) {
        add_literal(set, low);
        continue;
      }
      take("-");
      if (sees("\\")) {
        CharacterSet unused;
        if (escape(unused, high)) refuse("a range that ends in a class");
      } else {
        high = take_character();
      }
      if (high < low) refuse("a range from high to low");
      if (is_caseless_) refuse("ranges are not known without regard to case");
      set.add_range(low, high);
    }
    if (is_negated) set.negate();
    set.finish();
    --depth_;
    return set;
  }

  std::string_view source_;
  Pattern& pattern_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_caseless_ = false;
};

Pattern::Pattern(std::string_view source) {
  if (!is_utf8(source)) throw std::invalid_argument("a pattern is not UTF-8");
  PatternParser(source, *this).parse();
}

}  // namespace pelton::text
