// Patterns and the tokenizer on text that nobody would write: no read or write goes astray, and nothing is lost.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "text/byte_pair_tokenizer.h"
#include "text/pattern.h"
#include "text/unicode.h"

using namespace pelton::text;

namespace {

struct Random {
  uint64_t state;
  uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state >> 33) % limit;
  }
};

const char* const kCharacters[] = {"a",      "B",          "s",      "'",      "1",         " ",
                                   "\n",     "\r",         "!",      "<",      "\u00e9",    "\u0301",
                                   "\u4e2d", "\U0001f600", "\u3000", "\u017f", "\U0010ffff"};

std::string text_of(Random& random, uint32_t length) {
  std::string out;
  for (uint32_t i = 0; i < length; ++i) out += kCharacters[random.below(std::size(kCharacters))];
  return out;
}

const char* const kWords =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";

}  // namespace

TEST(text_is_cut_without_loss) {
  const Pattern pattern(kWords);
  Random random{1};
  for (int i = 0; i < 300; ++i) {
    const std::string text = text_of(random, random.below(80));
    std::string whole;
    for (size_t from = 0; from < text.size();) {
      const Pattern::Match match = pattern.find(text, from);
      CHECK(match.begin == from && match.end > match.begin && match.end <= text.size());
      if (match.end <= from) break;
      whole += text.substr(match.begin, match.end - match.begin);
      from = match.end;
    }
    CHECK(whole == text);
  }
}

// Either a pattern is refused or it matches within the text.
TEST(text_patterns_of_random_characters_are_safe) {
  const char* const kParts[] = {"(",   ")",    "[", "]",   "^",        "\\",     "p{L}", "{",  "}",   "1",
                                ",",   "|",    "?", "*",   "+",        "a",      "-",    "&&", "(?:", "(?!",
                                "(?=", "(?i:", "$", "\\s", "\\p{Han}", "\u00e9", "b",    "{2}"};
  Random random{2};
  int num_known = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string source;
    for (uint32_t part = random.below(9); part-- > 0;) source += kParts[random.below(std::size(kParts))];
    const std::string text = text_of(random, 12);
    try {
      const Pattern::Match match = Pattern(source).find(text, 0);
      CHECK(match.begin == std::string::npos || (match.begin <= match.end && match.end <= text.size()));
      ++num_known;
    } catch (const std::invalid_argument&) {
    }
  }
  CHECK(num_known > 1000);
}

TEST(text_is_utf8_as_unicode_defines_it) {
  for (const char* good : {"", "a", "\u00e9", "\u0800", "\uffff", "\U00010000", "\U0010ffff"}) CHECK(is_utf8(good));
  for (const char* bad : {"\x80", "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8"}) {
    CHECK(!is_utf8(bad));
  }
}

TEST(text_tokens_spell_the_text) {
  std::vector<std::string> tokens = {"<s>", "<a", "B<"};
  for (const char* character : kCharacters) tokens.emplace_back(character);
  for (int byte = 0; byte < 256; ++byte) {
    char spelled[8];
    std::snprintf(spelled, sizeof spelled, "<0x%02X>", byte);
    tokens.emplace_back(spelled);
  }
  for (const char* piece : {"aB", "BaB", "aBaB", "ss", "sss", "\u00e9a", "11", "1111"}) tokens.emplace_back(piece);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::vector<double> scores;
  for (size_t i = 0; i < views.size(); ++i) scores.push_back(static_cast<double>(i % 7));
  BytePairRules rules;
  rules.byte_fallback = true;
  rules.unknown_id = 0;
  const auto vocabulary = std::make_shared<const Vocabulary>(views);
  const BytePairTokenizer tokenizer(vocabulary,
                                    {{0, true, false, false}, {1, false, true, false}, {2, false, false, true}}, rules,
                                    ScoreMerges(*vocabulary, scores, {0}));
  Random random{3};
  for (int i = 0; i < 300; ++i) {
    const std::string text = text_of(random, random.below(100));
    std::string spelled;
    for (const int32_t id : tokenizer.encode(text, i % 2 == 0)) spelled += vocabulary->text(id);
    CHECK(spelled.size() <= text.size());  // spaces beside added tokens are swallowed
  }
}
