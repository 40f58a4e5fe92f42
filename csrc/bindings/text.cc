// Tokenizers and their patterns.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "strings.h"
#include "text/byte_pair_tokenizer.h"
#include "text/pattern.h"
#include "text/vocabulary.h"

namespace pelton {
namespace {

using text::AddedToken;
using text::BytePairTokenizer;
using text::Pattern;
using text::Vocabulary;

void make_strings(Strings* self, const nb::tuple& texts) {
  std::vector<std::string_view> views;
  views.reserve(nb::len(texts));
  for (const nb::handle text : texts) views.push_back(view_of(text));
  new (self) Strings{std::move(views), texts};
}

nb::object string_at(const Strings& self, int64_t index) {
  if (index < 0 || index >= static_cast<int64_t>(self.views.size())) throw nb::index_error("no such string");
  return to_str(self.views[static_cast<size_t>(index)]);
}

void make_vocabulary(Vocabulary* self, const Strings& tokens) {
  const nb::gil_scoped_release release;
  new (self) Vocabulary(tokens.views);
}

// The first id whose text another one has before it, and that one.
std::optional<std::pair<int32_t, int32_t>> repeated(const Vocabulary& self) {
  const nb::gil_scoped_release release;
  for (int32_t id = 0; id < self.size(); ++id) {
    const int32_t first = self.find(self.text(id));
    if (first != id) return std::pair(first, id);
  }
  return std::nullopt;
}

std::optional<int32_t> find(const Vocabulary& self, const nb::str& text) {
  const int32_t id = self.find(view_of(text));
  return id == text::kNoToken ? std::nullopt : std::optional(id);
}

nb::object token(const Vocabulary& self, int64_t id) {
  if (id < 0 || id >= self.size()) return nb::none();
  return to_str(self.text(static_cast<int32_t>(id)));
}

using AddedTuple = std::tuple<int32_t, bool, bool, bool>;

void make_tokenizer(BytePairTokenizer* self, std::shared_ptr<Vocabulary> vocabulary,
                    const std::vector<AddedTuple>& added, std::vector<std::string> patterns, const Strings* merges,
                    const std::vector<double>& scores, const std::vector<int32_t>& no_pieces, bool byte_level,
                    bool space_prefix, bool escape_spaces, bool drop_unmatched, bool ignore_merges, bool byte_fallback,
                    std::optional<int32_t> unknown_id) {
  const nb::gil_scoped_release release;
  std::vector<AddedToken> added_tokens;
  for (const auto& [id, is_control, before, after] : added) added_tokens.push_back({id, is_control, before, after});
  text::BytePairRules rules;
  rules.patterns = std::move(patterns);
  rules.drop_unmatched = drop_unmatched;
  rules.byte_level = byte_level;
  rules.space_prefix = space_prefix;
  rules.escape_spaces = escape_spaces;
  rules.ignore_merges = ignore_merges;
  rules.byte_fallback = byte_fallback;
  rules.unknown_id = unknown_id.value_or(text::kNoToken);
  text::Merges rule;
  if (merges != nullptr) {
    rule.emplace<text::PairMerges>(*vocabulary, merges->views);
  } else {
    rule.emplace<text::ScoreMerges>(*vocabulary, scores, no_pieces);
  }
  new (self) BytePairTokenizer(std::move(vocabulary), added_tokens, std::move(rules), std::move(rule));
}

std::vector<int32_t> encode(const BytePairTokenizer& self, const nb::str& text, bool parse_control) {
  const std::string_view view = view_of(text);
  const nb::gil_scoped_release release;
  return self.encode(view, parse_control);
}

// What a pattern matches, one match after the other (for tests).
std::vector<std::string> matches(const std::string& pattern, const std::string& text) {
  const Pattern compiled(pattern);
  std::vector<std::string> out;
  for (size_t from = 0; from < text.size();) {
    const Pattern::Match match = compiled.find(text, from);
    if (match.begin == std::string_view::npos) break;
    if (match.begin == match.end) throw std::invalid_argument("the pattern matches nothing at all");
    out.push_back(text.substr(match.begin, match.end - match.begin));
    from = match.end;
  }
  return out;
}

}  // namespace

std::string_view view_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

nb::object to_str(std::string_view text) {
  nb::object result = nb::steal(PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "strict"));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

void bind_text(nb::module_& module) {
  nb::class_<Strings>(module, "Strings")
      .def("__init__", &make_strings, "texts"_a)
      .def("__len__", [](const Strings& self) { return self.views.size(); })
      .def("__getitem__", &string_at, "index"_a);
  nb::class_<Vocabulary>(module, "Vocabulary")
      .def("__init__", &make_vocabulary, "tokens"_a)
      .def("__len__", &Vocabulary::size)
      .def("text", &token, "token_id"_a)
      .def("find", &find, "text"_a)
      .def("repeated", &repeated);
  nb::class_<BytePairTokenizer>(module, "BytePairTokenizer")
      .def("__init__", &make_tokenizer, "vocabulary"_a, nb::kw_only(), "added"_a, "patterns"_a, "merges"_a.none(),
           "scores"_a, "no_pieces"_a, "byte_level"_a, "space_prefix"_a, "escape_spaces"_a, "drop_unmatched"_a,
           "ignore_merges"_a, "byte_fallback"_a, "unknown_id"_a.none())
      .def("encode", &encode, "text"_a, "parse_control"_a);
  module.def("pattern_matches", &matches, "pattern"_a, "text"_a);
}

}  // namespace pelton
