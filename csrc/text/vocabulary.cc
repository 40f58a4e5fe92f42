#include "text/vocabulary.h"

#include <stdexcept>

namespace pelton::text {
namespace {

uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0;
  for (const char byte : text) hash = extend_hash(hash, byte);
  return hash;
}

}  // namespace

Vocabulary::Vocabulary(const std::vector<std::string_view>& tokens) {
  if (tokens.size() > INT32_MAX) throw std::invalid_argument("a vocabulary has at most 2^31 - 1 tokens");
  int bits = 1;
  while ((size_t{1} << bits) < 2 * tokens.size()) ++bits;
  shift_ = 64 - bits;
  slots_.resize(size_t{1} << bits, {0, kNoToken});
  size_t bytes = 0;
  for (const std::string_view token : tokens) bytes += token.size();
  arena_.reserve(bytes);
  starts_.reserve(tokens.size() + 1);
  starts_.push_back(0);
  for (const std::string_view token : tokens) {
    arena_ += token;
    starts_.push_back(arena_.size());
    const uint64_t hash = hash_of(token);
    Slot& slot = slots_[place(hash, token)];
    if (slot.id == kNoToken) slot = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(starts_.size()) - 2};
  }
}

int32_t Vocabulary::find(std::string_view text) const { return find(hash_of(text), text); }

int32_t Vocabulary::find(uint64_t hash, std::string_view text) const { return slots_[place(hash, text)].id; }

size_t Vocabulary::place(uint64_t hash, std::string_view wanted) const {
  size_t at = hash * kHashBase >> shift_;
  while (slots_[at].id != kNoToken &&
         (slots_[at].hash != static_cast<uint32_t>(hash >> 32) || text(slots_[at].id) != wanted)) {
    at = (at + 1) & (slots_.size() - 1);
  }
  return at;
}

}  // namespace pelton::text
