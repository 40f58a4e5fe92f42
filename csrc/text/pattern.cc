#include "text/pattern.h"

#include "text/unicode.h"

namespace pelton::text {

bool CharacterSet::find(uint32_t code) const {
  const uint8_t found = properties(code);
  bool result = (categories_ >> (found & kCategoryBits) & 1) != 0 || (found & flags_) != 0;
  for (size_t i = 0; !result && i < ranges_.size(); ++i) {
    result = ranges_[i].first <= code && code <= ranges_[i].last;
  }
  for (size_t i = 0; !result && i < sets_.size(); ++i) result = sets_[i].has(code);
  for (size_t i = 0; result && i < limits_.size(); ++i) result = limits_[i].has(code);
  return result != is_negated_;
}

void CharacterSet::finish() {
  for (uint32_t code = 0; code < 128; ++code) {
    if (find(code)) ascii_[code / 64] |= uint64_t{1} << code % 64;
  }
}

Pattern::Match Pattern::find(std::string_view text, size_t from) const {
  std::vector<Choice> stack;
  for (size_t at = from;; next_character(text, at)) {
    const size_t end = match(text, at, 0, stack);
    if (end != std::string_view::npos) return {at, end};
    if (at >= text.size()) return {std::string_view::npos, 0};
  }
}

size_t Pattern::match(std::string_view text, size_t at, int32_t step, std::vector<Choice>& stack) const {
  const size_t base = stack.size();
  for (;;) {
    bool is_right = true;
    const Step& now = steps_[step];
    switch (now.op) {
      case Op::kDone:
        stack.resize(base);
        return at;
      case Op::kJump:
        step = now.a;
        break;
      case Op::kSplit:
        stack.push_back({now.b, at, at});
        step = now.a;
        break;
      case Op::kOne:
        is_right = at < text.size() && sets_[now.a].has(next_character(text, at));
        ++step;
        break;
      case Op::kRepeat:
      case Op::kPossessive: {
        const CharacterSet& set = sets_[now.a];
        size_t least = at;
        int32_t count = 0;
        while (at < text.size() && count != now.most) {
          size_t next = at;
          if (!set.has(next_character(text, next))) break;
          at = next;
          if (++count == now.least) least = at;
        }
        is_right = count >= now.least;
        ++step;
        if (is_right && now.op == Op::kRepeat && at > least) stack.push_back({step, at, least});
        break;
      }
      case Op::kAhead:
      case Op::kNotAhead:
        is_right = (match(text, at, step + 1, stack) != std::string_view::npos) == (now.op == Op::kAhead);
        step = now.a;
        break;
      case Op::kEndOfLine:
        is_right = at == text.size() || text[at] == '\n';
        ++step;
        break;
    }
    if (is_right) continue;
    if (stack.size() == base) return std::string_view::npos;
    Choice& choice = stack.back();
    step = choice.step;
    if (choice.at > choice.least) {
      at = choice.at = previous_character(text, choice.at);
      if (choice.at == choice.least) stack.pop_back();
    } else {
      at = choice.at;
      stack.pop_back();
    }
  }
}

}  // namespace pelton::text
