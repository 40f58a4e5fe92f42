#include "text/unicode.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <vector>

namespace pelton::text {
namespace {

constexpr uint32_t kRuns[] = {
#include "text/unicode_runs.inc"
};
constexpr uint32_t kNumCodePoints = 0x110000;

// Two stages: most blocks of 256 code points are alike, and share one.
struct Table {
  std::array<uint16_t, kNumCodePoints / 256> block;
  std::vector<uint8_t> values;

  Table() {
    std::array<uint8_t, 256> next{};
    size_t run = 0;
    for (uint32_t code = 0; code < kNumCodePoints; ++code) {
      while (run + 1 < std::size(kRuns) && kRuns[run + 1] >> 8 <= code) ++run;
      next[code % 256] = static_cast<uint8_t>(kRuns[run]);
      if (code % 256 == 255) block[code / 256] = add(next);
    }
  }

  uint16_t add(const std::array<uint8_t, 256>& next) {
    const size_t count = values.size() / 256;
    for (size_t known = count; known-- > 0;) {
      if (std::equal(next.begin(), next.end(), values.begin() + static_cast<ptrdiff_t>(256 * known))) {
        return static_cast<uint16_t>(known);
      }
    }
    values.insert(values.end(), next.begin(), next.end());
    return static_cast<uint16_t>(count);
  }
};

}  // namespace

uint8_t properties(uint32_t code_point) {
  static const Table table;
  return table.values[256 * table.block[code_point / 256] + code_point % 256];
}

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto first = static_cast<uint8_t>(text[at]);
    const size_t length = first < 0x80   ? 1
                          : first < 0xc2 ? 0
                          : first < 0xe0 ? 2
                          : first < 0xf0 ? 3
                          : first < 0xf5 ? 4
                                         : 0;
    if (length == 0 || text.size() - at < length) return false;
    for (size_t i = 1; i < length; ++i) {
      if ((static_cast<uint8_t>(text[at + i]) & 0xc0) != 0x80) return false;
    }
    const size_t start = at;
    const uint32_t code = next_character(text, at);
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[at - start] || code >= kNumCodePoints || (code >= 0xd800 && code < 0xe000)) return false;
  }
  return true;
}

}  // namespace pelton::text
