#include "text/byte_pair_tokenizer.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "text/unicode.h"

namespace pelton::text {
namespace {

constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

// GPT-2's table: printable Latin-1 stands for itself, the other 68 bytes are U+0100 onward in order.
std::array<std::string, 256> byte_characters() {
  std::array<std::string, 256> out;
  uint32_t other = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    const uint32_t code = is_printable ? byte : other++;
    if (code < 0x80) {
      out[byte] = {static_cast<char>(code)};
    } else {
      out[byte] = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    }
  }
  return out;
}

std::vector<AddedToken> plain(std::vector<AddedToken> tokens) {
  tokens.erase(std::remove_if(tokens.begin(), tokens.end(), [](const auto& token) { return token.is_control; }),
               tokens.end());
  return tokens;
}

const std::vector<AddedToken>& checked(const std::vector<AddedToken>& added, int32_t num_tokens) {
  for (const AddedToken& token : added) {
    if (token.id < 0 || token.id >= num_tokens) {
      throw std::invalid_argument("there is no token `" + std::to_string(token.id) + "`");
    }
  }
  return added;
}

// Replaces the text's pieces by what the pattern cuts them into, as Oniguruma's iteration does: an empty match cuts,
// but not right after another match.
void cut(const Pattern& pattern, bool drop_unmatched, std::vector<std::string_view>& pieces) {
  std::vector<std::string_view> out;
  for (const std::string_view piece : pieces) {
    const auto add = [&](size_t begin, size_t end) {
      if (end > begin) out.push_back(piece.substr(begin, end - begin));
    };
    size_t done = 0, from = 0;
    std::optional<size_t> last_end;
    while (from <= piece.size()) {
      const Pattern::Match match = pattern.find(piece, from);
      if (match.begin == std::string_view::npos) break;
      if (match.begin == match.end && last_end == match.end) {
        if (from >= piece.size()) break;
        next_character(piece, from);
        continue;
      }
      if (!drop_unmatched) add(done, match.begin);
      add(match.begin, match.end);
      from = done = match.end;
      last_end = match.end;
    }
    if (!drop_unmatched) add(done, piece.size());
  }
  pieces = std::move(out);
}

}  // namespace

BytePairTokenizer::BytePairTokenizer(std::shared_ptr<const Vocabulary> vocabulary, const std::vector<AddedToken>& added,
                                     BytePairRules rules, Merges merges)
    : vocabulary_(std::move(vocabulary)),
      rules_(std::move(rules)),
      patterns_(rules_.patterns.begin(), rules_.patterns.end()),
      all_added_(*vocabulary_, checked(added, vocabulary_->size())),
      plain_added_(*vocabulary_, plain(added)),
      merges_(std::move(merges)),
      byte_characters_(byte_characters()) {
  if (rules_.unknown_id != kNoToken && (rules_.unknown_id < 0 || rules_.unknown_id >= vocabulary_->size())) {
    throw std::invalid_argument("there is no token `" + std::to_string(rules_.unknown_id) + "`");
  }
  for (int byte = 0; byte < 256; ++byte) {
    char spelled[8];
    std::snprintf(spelled, sizeof spelled, "<0x%02X>", byte);
    byte_ids_[byte] = vocabulary_->find(rules_.byte_level ? byte_characters_[byte] : spelled);
  }
}

std::vector<int32_t> BytePairTokenizer::encode(std::string_view text, bool parse_control) const {
  if (text.size() > INT32_MAX / 4) throw std::invalid_argument("a text has less than 512 MiB");
  std::vector<int32_t> ids;
  const AddedTokens& added = parse_control ? all_added_ : plain_added_;
  added.cut(
      text, [&](std::string_view stretch) { encode_stretch(stretch, ids); }, [&](int32_t id) { ids.push_back(id); });
  return ids;
}

void BytePairTokenizer::encode_stretch(std::string_view text, std::vector<int32_t>& ids) const {
  std::string changed;
  if (rules_.space_prefix || rules_.escape_spaces) {
    if (rules_.space_prefix) changed += kSpaceMark;
    for (const char byte : text) {
      if (rules_.escape_spaces && byte == ' ') {
        changed += kSpaceMark;
      } else {
        changed += byte;
      }
    }
    text = changed;
  }
  std::vector<std::string_view> words = {text};
  for (const Pattern& pattern : patterns_) cut(pattern, rules_.drop_unmatched, words);
  for (const std::string_view word : words) encode_word(word, ids);
}

void BytePairTokenizer::encode_word(std::string_view word, std::vector<int32_t>& ids) const {
  if (rules_.ignore_merges) {
    std::string spelled;
    if (rules_.byte_level) {
      for (const char byte : word) spelled += byte_characters_[static_cast<uint8_t>(byte)];
    }
    const int32_t id = vocabulary_->find(rules_.byte_level ? spelled : word);
    if (id != kNoToken) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol> symbols = rules_.byte_level ? byte_symbols(word) : character_symbols(word);
  if (const auto* pairs = std::get_if<PairMerges>(&merges_)) {
    merge_symbols(*pairs, symbols, ids);
  } else if (const auto* scores = std::get_if<ScoreMerges>(&merges_)) {
    merge_symbols(ScoreMerges::Word(*scores, word), symbols, ids);
  } else {
    for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
  }
}

// A byte whose character is no token is left out, and its neighbours are neighbours.
std::vector<Symbol> BytePairTokenizer::byte_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t at = 0; at < word.size(); ++at) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(word[at])];
    const auto begin = static_cast<int32_t>(at);
    if (id != kNoToken) symbols.push_back({id, begin, begin + 1, 0, 0});
  }
  return symbols;
}

// A run of unknown characters ends only before a character that is a token, or with the word: tokens for bytes in
// between come first.
std::vector<Symbol> BytePairTokenizer::character_symbols(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  std::optional<Symbol> unknown;
  const auto end_run = [&] {
    if (unknown.has_value()) symbols.push_back(*unknown);
    unknown.reset();
  };
  for (size_t at = 0; at < word.size();) {
    const auto begin = static_cast<int32_t>(at);
    next_character(word, at);
    const auto end = static_cast<int32_t>(at);
    const std::string_view character = word.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    const int32_t id = vocabulary_->find(character);
    if (id != kNoToken) {
      end_run();
      symbols.push_back({id, begin, end, 0, 0});
    } else if (!(rules_.byte_fallback && fall_back(character, begin, symbols)) && rules_.unknown_id != kNoToken) {
      if (!unknown.has_value()) unknown = Symbol{rules_.unknown_id, begin, end, 0, 0};
      unknown->end = end;
    }
  }
  end_run();
  return symbols;
}

// False, and nothing added, unless every byte has a token.
bool BytePairTokenizer::fall_back(std::string_view character, int32_t begin, std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(character.begin(), character.end(), [&](char byte) { return id_of(byte) == kNoToken; })) return false;
  for (const char byte : character) {
    symbols.push_back({id_of(byte), begin, begin + 1, 0, 0});
    ++begin;
  }
  return true;
}

}  // namespace pelton::text
