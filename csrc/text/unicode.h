// What a code point is to the patterns that cut text into words, and UTF-8 between bytes and code points.
#pragma once

#include <cstdint>
#include <string_view>

namespace pelton::text {

// General categories; 0 is a code point that is not assigned.
// clang-format off
enum Category : uint8_t {
  kUnassigned, kLu, kLl, kLt, kLm, kLo, kMn, kMc, kMe, kNd, kNl, kNo, kPc, kPd, kPs, kPe,
  kPi, kPf, kPo, kSm, kSc, kSk, kSo, kZs, kZl, kZp, kCc, kCf, kCo, kNumCategories,
};
// clang-format on

inline constexpr uint8_t kCategoryBits = 31;
inline constexpr uint8_t kSpaceFlag = 1 << 5;  // white space
inline constexpr uint8_t kHanFlag = 1 << 6;    // the script Han

// Category and flags of a code point up to U+10FFFF.
uint8_t properties(uint32_t code_point);

// The character that starts at byte `at` of valid UTF-8; `at` moves to the next one.
inline uint32_t next_character(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  const uint32_t first = byte(0);
  if (first < 0x80) {
    at += 1;
    return first;
  }
  if (first < 0xe0) {
    const uint32_t code = (first & 31) << 6 | (byte(1) & 63);
    at += 2;
    return code;
  }
  if (first < 0xf0) {
    const uint32_t code = (first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    at += 3;
    return code;
  }
  const uint32_t code = (first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 | (byte(3) & 63);
  at += 4;
  return code;
}

// Where the character before `at` starts.
inline size_t previous_character(std::string_view text, size_t at) {
  do --at;
  while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return at;
}

bool is_utf8(std::string_view text);

}  // namespace pelton::text
