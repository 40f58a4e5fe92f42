// Text to token ids by byte-pair encoding: added tokens are cut out, the rest is cut into words, words are merged.
//
// Equal to the `tokenizers` library on all text, quirks included. Immutable: any number of threads may encode at once.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "text/added_tokens.h"
#include "text/merges.h"
#include "text/pattern.h"
#include "text/vocabulary.h"

namespace pelton::text {

struct BytePairRules {
  std::vector<std::string> patterns;  // applied one after the other: each cuts the pieces that the one before left
  bool drop_unmatched = false;        // what no pattern matches is left out, not kept as a piece
  bool byte_level = false;            // symbols are GPT-2's characters for the 256 bytes; else characters
  bool space_prefix = false;          // a stretch of text gets a space in front
  bool escape_spaces = false;         // spaces become U+2581
  bool ignore_merges = false;         // a word that is a token as a whole is not taken apart
  bool byte_fallback = false;         // a character without a token becomes tokens `<0xNN>`
  int32_t unknown_id = kNoToken;      // what else it becomes, one for a run of them; kNoToken: it is left out
};

using Merges = std::variant<std::monostate, PairMerges, ScoreMerges>;

class BytePairTokenizer {
 public:
  // merges: made for this vocabulary. Throws std::invalid_argument for an id beyond the tokens or a pattern that is not
  // known.
  BytePairTokenizer(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<AddedToken>& added,
                    BytePairRules rules, Merges merges);
  BytePairTokenizer(const BytePairTokenizer&) = delete;
  BytePairTokenizer& operator=(const BytePairTokenizer&) = delete;

  // text: valid UTF-8 of less than 2 GiB. parse_control: control tokens that the text spells are read as such.
  // Throws std::invalid_argument for text that is longer.
  std::vector<int32_t> encode(std::string_view text, bool parse_control) const;

 private:
  void encode_stretch(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const;
  std::vector<Symbol> byte_symbols(std::string_view word) const;
  std::vector<Symbol> character_symbols(std::string_view word) const;
  bool fall_back(std::string_view character, int32_t begin, std::vector<Symbol>& symbols) const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  BytePairRules rules_;
  std::vector<Pattern> patterns_;
  AddedTokens all_added_, plain_added_;
  Merges merges_;
  std::array<std::string, 256> byte_characters_;
  std::array<int32_t, 256> byte_ids_;  // of the byte's character, or of `<0xNN>`
};

}  // namespace pelton::text
