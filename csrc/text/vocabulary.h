// Token texts by id and ids by text. Knows nothing of how text becomes tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pelton::text {

inline constexpr int32_t kNoToken = -1;

// Hash of a text: a polynomial of its bytes modulo 2^64, so that the hash of any part of a text follows from those of
// its beginnings. A collision costs time, never a wrong answer: texts are compared.
inline constexpr uint64_t kHashBase = 0x9e3779b97f4a7c15u;
inline uint64_t extend_hash(uint64_t hash, char byte) { return hash * kHashBase + static_cast<uint8_t>(byte) + 1; }

class Vocabulary {
 public:
  // tokens: UTF-8; copied. Of two alike the first is found. Throws std::invalid_argument beyond 2^31 - 1 tokens.
  explicit Vocabulary(const std::vector<std::string_view>& tokens);

  int32_t size() const { return static_cast<int32_t>(starts_.size()) - 1; }
  std::string_view text(int32_t id) const {
    return std::string_view(arena_).substr(starts_[id], starts_[id + 1] - starts_[id]);
  }
  int32_t find(std::string_view text) const;
  int32_t find(uint64_t hash, std::string_view text) const;

 private:
  struct Slot {
    uint32_t hash;  // its upper half
    int32_t id;
  };

  // Where the text is, or the empty slot where it would be.
  size_t place(uint64_t hash, std::string_view text) const;

  std::string arena_;
  std::vector<size_t> starts_;
  std::vector<Slot> slots_;  // open addressing, at most half full
  int shift_;
};

}  // namespace pelton::text
