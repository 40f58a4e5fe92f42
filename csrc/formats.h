// The weight formats: how a file stores them and how packed panels store them. Knows no instruction set.
//
// Packed, a matrix [n, k] is ceil(n / 16) panels of 16 output channels ("lanes"), K sequential, each a multiple of 64
// bytes. Lanes beyond n hold zeros.
//
//   f32   [k][16]      f16   [k][16]      bf16   [ceil(k / 2)][16][2], an odd K padded with zero
//
// Integer formats go in groups of 32 K. A group's codes are 8 vectors of 64 bytes, one per quad (4 consecutive K); byte
// 4 * lane + i of vector q is the code of lane `lane` at K offset 4q + i. They are stored as bit planes:
//
//   8 bits   8 vectors of signed codes
//   4 bits   4 vectors; vector v: quad v in the low nibbles, quad v + 4 in the high ones
//   2 bits   2 vectors; vector v: quad v + 2j in bits 2j and 2j + 1
//   1 bit    1 vector; quad j in bit j
//
// 5-bit codes are a 4-bit plane (low bits) and a 1-bit plane, 6 bits are 4 + 2, 3 bits are 2 + 1.
// A unit is the smallest piece of a panel that stands for itself:
//
//   q4_0 ... q8_0   one group:   f16 d[16], f16 m[16] where there is a minimum, codes
//   K-quants        8 groups:    f16 d[16], f16 dmin[16] where there is one,
//                                scales: per group 16 bytes, or two times 16 where a scale covers 16 K,
//                                minima: per group 16 bytes (q2_k: in the high nibbles of the scales), codes of 8
//                                groups
#pragma once

#include <cstdint>

namespace pelton {

enum class Format : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kQ4_0 = 3,
  kQ4_1 = 4,
  kQ5_0 = 5,
  kQ5_1 = 6,
  kQ8_0 = 7,
  kQ2K = 8,
  kQ3K = 9,
  kQ4K = 10,
  kQ5K = 11,
  kQ6K = 12,
};
inline constexpr int kNumFormats = 13;
inline constexpr const char* kFormatNames[kNumFormats] = {"f32",  "f16",  "bf16", "q4_0", "q4_1", "q5_0", "q5_1",
                                                          "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};

inline constexpr int kLanes = 16;
inline constexpr int kGroup = 32;  // K values that share scales in integer formats
inline constexpr int kQuads = 8;   // of a group
inline constexpr int kVectorBytes = 64;

// ---- File layout (GGUF) ----

struct BlockQ4_0 {
  uint16_t d;
  uint8_t qs[16];
};
struct BlockQ4_1 {
  uint16_t d, m;
  uint8_t qs[16];
};
struct BlockQ5_0 {
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ5_1 {
  uint16_t d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {
  uint16_t d;
  int8_t qs[32];
};
struct BlockQ2K {
  uint8_t scales[16];  // low nibble: scale, high nibble: minimum, one per 16 values
  uint8_t qs[64];
  uint16_t d, dmin;
};
struct BlockQ3K {
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  uint16_t d;
};
struct BlockQ4K {
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};
struct BlockQ5K {
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};
struct BlockQ6K {
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22, "file layout");
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34, "file layout");
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144, "file layout");
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210, "file layout");

// ---- Packed layout of the integer formats ----

enum class ScaleKind {
  kPlain,     // legacy: d and m are the scale and the minimum
  kUnsigned,  // d * u8, dmin * u8
  kSigned,    // d * s8
  kNibbles,   // q2_k: scale in the low nibble, minimum in the high one
};

// value = scale * (code - kZero) + minimum, where the minimum is m, or -dmin * mn
template <int kBits_, int kZero_, bool kHasMin_, ScaleKind kScales_, int kHalves_>
struct IntegerFormat {
  static constexpr int kBits = kBits_;
  static constexpr int kZero = kZero_;
  static constexpr bool kHasMin = kHasMin_;
  static constexpr ScaleKind kScales = kScales_;
  static constexpr int kHalves = kHalves_;  // scales per group

  static constexpr int kUnitGroups = kScales == ScaleKind::kPlain ? 1 : 8;
  static constexpr int kUnitValues = kUnitGroups * kGroup;
  static constexpr int kGroupCodeBytes = kBits * kVectorBytes;
  static constexpr bool kHasScaleBytes = kScales != ScaleKind::kPlain;

  static constexpr int kScaleOffset = kHasMin ? 4 * kLanes : 2 * kLanes;  // after d[16] and m[16]
  static constexpr int kScaleBytes = kHasScaleBytes ? kUnitGroups * kHalves * kLanes : 0;
  static constexpr int kMinOffset = kScaleOffset + kScaleBytes;
  static constexpr int kMinBytes =
      kHasScaleBytes && kHasMin && kScales != ScaleKind::kNibbles ? kUnitGroups * kLanes : 0;
  static constexpr int kCodeOffset = kMinOffset + kMinBytes;
  static constexpr int kUnitBytes = kCodeOffset + kUnitGroups * kGroupCodeBytes;
};

using PackedQ4_0 = IntegerFormat<4, 8, false, ScaleKind::kPlain, 1>;
using PackedQ4_1 = IntegerFormat<4, 0, true, ScaleKind::kPlain, 1>;
using PackedQ5_0 = IntegerFormat<5, 16, false, ScaleKind::kPlain, 1>;
using PackedQ5_1 = IntegerFormat<5, 0, true, ScaleKind::kPlain, 1>;
using PackedQ8_0 = IntegerFormat<8, 0, false, ScaleKind::kPlain, 1>;
using PackedQ2K = IntegerFormat<2, 0, true, ScaleKind::kNibbles, 2>;
using PackedQ3K = IntegerFormat<3, 4, false, ScaleKind::kSigned, 2>;
using PackedQ4K = IntegerFormat<4, 0, true, ScaleKind::kUnsigned, 1>;
using PackedQ5K = IntegerFormat<5, 0, true, ScaleKind::kUnsigned, 1>;
using PackedQ6K = IntegerFormat<6, 32, false, ScaleKind::kSigned, 2>;
static_assert(PackedQ4_0::kUnitBytes == 288 && PackedQ4_1::kUnitBytes == 320, "16 file blocks of 18 and 20 bytes");
static_assert(PackedQ5_0::kUnitBytes == 352 && PackedQ5_1::kUnitBytes == 384, "16 file blocks of 22 and 24 bytes");
static_assert(PackedQ8_0::kUnitBytes == 544, "16 file blocks of 34 bytes");
static_assert(PackedQ2K::kUnitBytes == 1344 && PackedQ6K::kUnitBytes == 3360, "16 file blocks of 84 and 210 bytes");
static_assert(PackedQ3K::kUnitBytes == 1824, "scales of 8 instead of 6 bits: 4 % more than 16 file blocks");
static_assert(PackedQ4K::kUnitBytes == 2368 && PackedQ5K::kUnitBytes == 2880, "likewise, 3 % and 2 % more");

// Internal linkage: kernel files of all levels include this, and may share no function.
namespace {

[[maybe_unused]] constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Bytes of one panel of k values per lane; k is a whole number of units.
template <class Layout>
[[maybe_unused]] constexpr int64_t integer_panel_bytes(int64_t k) {
  return round_up(k / Layout::kUnitValues * Layout::kUnitBytes, kVectorBytes);
}

// The same for any format. Formats with groups: K is a multiple of the group, of the super-block for K-quants.
[[maybe_unused]] constexpr int64_t panel_bytes(Format format, int64_t k) {
  switch (format) {
    case Format::kF32:
      return k * kLanes * 4;
    case Format::kF16:
      return round_up(k * kLanes * 2, kVectorBytes);
    case Format::kBf16:
      return (k + 1) / 2 * kLanes * 4;
    case Format::kQ4_0:
      return integer_panel_bytes<PackedQ4_0>(k);
    case Format::kQ4_1:
      return integer_panel_bytes<PackedQ4_1>(k);
    case Format::kQ5_0:
      return integer_panel_bytes<PackedQ5_0>(k);
    case Format::kQ5_1:
      return integer_panel_bytes<PackedQ5_1>(k);
    case Format::kQ8_0:
      return integer_panel_bytes<PackedQ8_0>(k);
    case Format::kQ2K:
      return integer_panel_bytes<PackedQ2K>(k);
    case Format::kQ3K:
      return integer_panel_bytes<PackedQ3K>(k);
    case Format::kQ4K:
      return integer_panel_bytes<PackedQ4K>(k);
    case Format::kQ5K:
      return integer_panel_bytes<PackedQ5K>(k);
    case Format::kQ6K:
      return integer_panel_bytes<PackedQ6K>(k);
  }
  return 0;
}

}  // namespace

}  // namespace pelton
