// Tokenizers and their patterns.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "text/byte_pair_tokenizer.h"
#include "text/pattern.h"

namespace pelton {
namespace {

using text::AddedToken;
using text::BytePairTokenizer;
using text::Pattern;

std::string_view view_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) throw nb::python_error();
  return {data, static_cast<size_t>(size)};
}

std::vector<std::string_view> views_of(const nb::tuple& texts) {
  std::vector<std::string_view> out;
  out.reserve(nb::len(texts));
  for (const nb::handle text : texts) out.push_back(view_of(text));
  return out;
}

nb::str to_str(std::string_view text) { return nb::str(text.data(), text.size()); }

// tokens and merges are tuples: what native code reads without the interpreter stays as it is.
void make_tokenizer(BytePairTokenizer* self, const nb::tuple& tokens,
                    const std::vector<std::tuple<int32_t, bool, bool, bool>>& added, std::vector<std::string> patterns,
                    const std::optional<nb::tuple>& merges, const std::vector<double>& scores,
                    const std::vector<int32_t>& no_pieces, bool byte_level, bool space_prefix, bool escape_spaces,
                    bool drop_unmatched, bool ignore_merges, bool byte_fallback, std::optional<int32_t> unknown_id) {
  const std::vector<std::string_view> token_views = views_of(tokens);
  const std::vector<std::string_view> merge_views = merges ? views_of(*merges) : std::vector<std::string_view>();
  std::vector<AddedToken> added_tokens;
  for (const auto& [id, is_control, before, after] : added) added_tokens.push_back({id, is_control, before, after});
  const nb::gil_scoped_release release;
  text::BytePairRules rules;
  rules.patterns = std::move(patterns);
  rules.drop_unmatched = drop_unmatched;
  rules.byte_level = byte_level;
  rules.space_prefix = space_prefix;
  rules.escape_spaces = escape_spaces;
  rules.ignore_merges = ignore_merges;
  rules.byte_fallback = byte_fallback;
  rules.unknown_id = unknown_id.value_or(text::kNoToken);
  new (self) BytePairTokenizer(token_views, added_tokens, std::move(rules));
  try {
    if (merges) {
      self->set_merges(merge_views);
    } else {
      self->set_scores(scores, no_pieces);
    }
  } catch (...) {
    self->~BytePairTokenizer();
    throw;
  }
}

std::vector<int32_t> encode(const BytePairTokenizer& self, const nb::str& text, bool parse_control) {
  const std::string_view view = view_of(text);
  const nb::gil_scoped_release release;
  return self.encode(view, parse_control);
}

nb::object token(const BytePairTokenizer& self, int64_t id) {
  if (id < 0 || id >= self.vocabulary().size()) return nb::none();
  return to_str(self.vocabulary().text(static_cast<int32_t>(id)));
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

void bind_text(nb::module_& module) {
  nb::class_<BytePairTokenizer>(module, "BytePairTokenizer")
      .def("__init__", &make_tokenizer, "tokens"_a, nb::kw_only(), "added"_a, "patterns"_a, "merges"_a.none(),
           "scores"_a, "no_pieces"_a, "byte_level"_a, "space_prefix"_a, "escape_spaces"_a, "drop_unmatched"_a,
           "ignore_merges"_a, "byte_fallback"_a, "unknown_id"_a.none())
      .def_prop_ro("num_tokens", [](const BytePairTokenizer& self) { return self.vocabulary().size(); })
      .def("encode", &encode, "text"_a, "parse_control"_a)
      .def("token", &token, "token_id"_a);
  module.def("pattern_matches", &matches, "pattern"_a, "text"_a);
}

}  // namespace pelton
