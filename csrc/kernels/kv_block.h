// One layer's part of a block of the KV cache (16 tokens): where a key or value lies, and how it is stored.
//
//   keys    [kv_head][head_dim][16 tokens]   one vector is one dimension of all tokens: scores need no horizontal sum
//   values  [kv_head][16 tokens][head_dim]   one vector is 16 dimensions of one token: outputs need none either
//
// Both are kv_heads * head_dim * 16 elements, without padding. Elements: bf16, f16 or f32 by KvType.
// Slots of tokens that are not written yet may hold anything.
#pragma once

#include <cstring>

#include "../step.h"
#include "../vec/vec.h"

namespace pelton::PELTON_LEVEL {
namespace {

constexpr int kMaxHeadDim = 256;

enum KvType : int64_t { kKvBf16 = 0, kKvF16 = 1, kKvF32 = 2 };

struct Bf16 {
  using Type = uint16_t;
  static F32 load(const Type* from) { return f32_load_bf16(from); }
  static void store(Type* to, F32 x) { f32_store_bf16(to, x); }
};
struct F16 {
  using Type = uint16_t;
  static F32 load(const Type* from) { return f32_load_f16(from); }
  static void store(Type* to, F32 x) { f32_store_f16(to, x); }
};
struct Float {
  using Type = float;
  static F32 load(const Type* from) { return f32_load(from); }
  static void store(Type* to, F32 x) { f32_store(to, x); }
};

// The first `lanes` elements, the other lanes zero, without reading further.
template <class Element>
inline F32 load_some(const typename Element::Type* from, int64_t lanes) {
  typename Element::Type copy[16] = {};
  for (int64_t i = 0; i < lanes; ++i) copy[i] = from[i];
  return Element::load(copy);
}

template <class Element>
inline int64_t kv_head_bytes(int64_t head_dim) {
  return head_dim * kBlockTokens * static_cast<int64_t>(sizeof(typename Element::Type));
}

// Where the block with the tokens [block * 16, block * 16 + 16) of a sequence starts.
inline uint8_t* block_address(const Step& step, const SequenceRows& sequence, int64_t group, int64_t block) {
  return step.kv_pool + static_cast<size_t>(sequence.tables[group][block]) * kOffsetUnit;
}

// Position in its sequence, which is its place in the cache, of a body row.
inline int64_t cache_position(const SequenceRows& sequence, int64_t row) {
  return sequence.context + row - sequence.first_row;
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
