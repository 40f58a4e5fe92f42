// What texts need.
#include <nanobind/stl/vector.h>

#include <string_view>

#include "bindings.h"
#include "piece_merges.h"

namespace pelton {
namespace {

// The pairs are made of the list's own strings: a vocabulary has half a million pairs.
nb::list piece_merges_of(const nb::list& pieces, const std::vector<double>& scores) {
  std::vector<std::string_view> texts;
  texts.reserve(pieces.size());
  for (const nb::handle piece : pieces) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(piece.ptr(), &size);
    if (text == nullptr) throw nb::python_error();
    texts.emplace_back(text, static_cast<size_t>(size));
  }
  nb::list out;
  for (const auto& [left, right] : piece_merges(texts, scores)) {
    out.append(nb::make_tuple(nb::borrow(PyList_GET_ITEM(pieces.ptr(), left)),
                              nb::borrow(PyList_GET_ITEM(pieces.ptr(), right))));
  }
  return out;
}

}  // namespace

void bind_text(nb::module_& module) { module.def("piece_merges", &piece_merges_of, "pieces"_a, "scores"_a); }

}  // namespace pelton
