#include "text/added_tokens.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "text/unicode.h"

namespace pelton::text {

AddedTokens::AddedTokens(const Vocabulary& vocabulary, std::vector<AddedToken> tokens)
    : vocabulary_(vocabulary), tokens_(std::move(tokens)), first_(257) {
  const auto text = [&](const AddedToken& token) { return vocabulary_.text(token.id); };
  tokens_.erase(std::remove_if(tokens_.begin(), tokens_.end(), [&](const auto& token) { return text(token).empty(); }),
                tokens_.end());
  std::sort(tokens_.begin(), tokens_.end(), [&](const auto& a, const auto& b) { return text(a) < text(b); });
  for (size_t byte = 0; byte < 257; ++byte) {
    first_[byte] = static_cast<size_t>(
        std::partition_point(tokens_.begin(), tokens_.end(),
                             [&](const auto& token) { return static_cast<uint8_t>(text(token)[0]) < byte; }) -
        tokens_.begin());
  }
}

// Narrows the range of tokens that begin like the text, byte by byte.
const AddedToken* AddedTokens::longest_at(std::string_view text, size_t at) const {
  const auto byte = static_cast<uint8_t>(text[at]);
  auto low = tokens_.begin() + static_cast<ptrdiff_t>(first_[byte]);
  auto high = tokens_.begin() + static_cast<ptrdiff_t>(first_[byte + size_t{1}]);
  const AddedToken* found = nullptr;
  for (size_t depth = 1; low != high; ++depth) {
    if (vocabulary_.text(low->id).size() == depth) found = &*low++;
    if (at + depth >= text.size()) break;
    const auto wanted = static_cast<uint8_t>(text[at + depth]);
    const auto next = [&](const AddedToken& token) { return static_cast<uint8_t>(vocabulary_.text(token.id)[depth]); };
    low = std::partition_point(low, high, [&](const auto& token) { return next(token) < wanted; });
    high = std::partition_point(low, high, [&](const auto& token) { return next(token) == wanted; });
  }
  return found;
}

size_t AddedTokens::space_before(std::string_view text, size_t at, size_t limit) {
  while (at > limit) {
    const size_t start = previous_character(text, at);
    size_t next = start;
    if ((properties(next_character(text, next)) & kSpaceFlag) == 0) break;
    at = start;
  }
  return std::max(at, limit);
}

size_t AddedTokens::space_after(std::string_view text, size_t at) {
  while (at < text.size()) {
    size_t next = at;
    if ((properties(next_character(text, next)) & kSpaceFlag) == 0) break;
    at = next;
  }
  return at;
}

}  // namespace pelton::text
