// Arrays of strings that stay native: a vocabulary and its merges are half a million, and Python needs few of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"

namespace pelton {

// Valid UTF-8, all of it. The views point into what `owner` keeps alive: a header, or the strings of a tuple.
struct Strings {
  std::vector<std::string_view> views;
  nb::object owner;
};

// The string's own bytes, for as long as it lives. Throws what Python does for a lone surrogate.
std::string_view view_of(nb::handle text);
// Throws UnicodeDecodeError, a ValueError, for bytes that are not UTF-8.
nb::object to_str(std::string_view text);

}  // namespace pelton
