// Tokens that are found in text as they stand, before anything else happens to it: control and user-defined tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocabulary.h"

namespace pelton::text {

struct AddedToken {
  int32_t id;
  bool is_control;
  bool takes_space_before, takes_space_after;
};

// A set of them. Of those that begin at one place the longest is found.
class AddedTokens {
 public:
  AddedTokens(const Vocabulary& vocabulary, std::vector<AddedToken> tokens);

  // Cuts the text: calls stretch(part) for ordinary text that is not empty, and token(id), in order.
  template <class Stretch, class Token>
  void cut(std::string_view text, const Stretch& stretch, const Token& token) const {
    size_t done = 0;
    for (size_t at = 0; at < text.size();) {
      const AddedToken* found = longest_at(text, at);
      if (found == nullptr) {
        ++at;
        continue;
      }
      size_t begin = at, end = at + vocabulary_.text(found->id).size();
      at = end;
      if (begin < done) continue;  // its beginning was space after another
      if (found->takes_space_before) begin = space_before(text, begin, done);
      if (found->takes_space_after) end = space_after(text, end);
      if (begin > done) stretch(text.substr(done, begin - done));
      token(found->id);
      done = end;
    }
    if (done < text.size()) stretch(text.substr(done));
  }

 private:
  const AddedToken* longest_at(std::string_view text, size_t at) const;
  static size_t space_before(std::string_view text, size_t at, size_t limit);
  static size_t space_after(std::string_view text, size_t at);

  const Vocabulary& vocabulary_;
  std::vector<AddedToken> tokens_;  // by text
  std::vector<size_t> first_;       // [byte]: where those that begin with it begin
};

}  // namespace pelton::text
