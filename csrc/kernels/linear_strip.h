// Weights on their way from panels to products: a chunk of one panel, expanded for this level.
//
// A product of many rows should unpack each code once, and a product of one row must do what the other does. So both
// work in two steps, panel by panel: expand a chunk of kChunkGroups * 32 K into a strip (here), then multiply the strip
// with all rows (linear_integer.h, linear_float.h). A strip of 4-bit codes is 8 groups * (8 vectors of 64 bytes +
// scales and minima of 64 bytes each) = 5 KiB; two of them, the activations of a tile and the row sums stay in 32 KiB
// of L1. For one row of 4-bit codes, expanding costs about 35 instructions per group of 16 * 32 weights (288 bytes or
// more) and the product 45 (AVX-512BW): 14 bytes per cycle at 4 instructions per cycle, more than one core reads from
// memory.
#pragma once

#include "../formats.h"
#include "../vec/vec.h"

namespace pelton::PELTON_LEVEL {
namespace {

inline constexpr int kChunkGroups = 8;
inline constexpr int kStripPanels = 2;  // panels that are worked on together: 32 outputs
inline constexpr int kStripColumns = kStripPanels * kLanes;

template <int kNumber>
struct Index {
  static constexpr int value = kNumber;
};

// f(Index<0>), f(Index<1>), ... f(Index<kCount - 1>), in straight line code.
template <int kCount, int kFirst = 0, class Function>
PELTON_INLINE void unroll(const Function& function) {
  if constexpr (kFirst < kCount) {
    function(Index<kFirst>{});
    unroll<kCount, kFirst + 1>(function);
  }
}

// One chunk of one panel. Formats that differ only in how the file stores scales share a strip type, hence a product.
template <int kBits_, int kZero_, bool kHasMin_, int kHalves_, bool kExact_>
struct Strip {
  static constexpr int kHalves = kHalves_;
  static constexpr bool kHasMin = kHasMin_;
  static constexpr bool kExact = kExact_;
  static constexpr bool kWide = kUseWide<kBits_, kExact_>;
  using DotType = Dot<kBits_, kWide>;
  // Signed codes have their zero point subtracted here. Unsigned ones leave it to the product; stored 8-bit codes are
  // signed, and become unsigned by a shift of 128.
  static constexpr int kZero = DotType::kSigned ? 0 : (kBits_ == 8 ? 128 : kZero_);
  static constexpr int kSubtract = DotType::kSigned ? kZero_ : (kBits_ == 8 ? 128 : 0);  // modulo 256

  alignas(64) uint8_t codes[kChunkGroups][kQuads][DotType::kCodeBytes];
  alignas(64) float scale[kChunkGroups][kHalves][kLanes];
  alignas(64) float min[kHasMin ? kChunkGroups : 1][kHalves][kLanes];
};

template <class Layout, bool kExact>
using StripOf = Strip<Layout::kBits, Layout::kZero, Layout::kHasMin, Layout::kHalves, kExact>;

// Codes of quad kQuad from the planes of one group (see formats.h).
template <int kBits, int kQuad>
PELTON_INLINE U8 load_quad_codes(const uint8_t* planes) {
  constexpr int kLow = kBits >= 4 ? 4 : 0;
  const uint8_t* upper = planes + kLow * kVectorBytes;
  const auto nibbles = [&]() PELTON_INLINE_LAMBDA {
    return u8_bits<(kQuad < 4 ? 0 : 4), 0x0f>(u8_load(planes + kQuad % 4 * kVectorBytes));
  };
  // The two bits at 2j, moved to bit kLow.
  const auto pairs = [&]() PELTON_INLINE_LAMBDA {
    return u8_bits<(kQuad & 6) - kLow, (3 << kLow)>(u8_load(upper + kQuad % 2 * kVectorBytes));
  };
  const auto bit = [&](const uint8_t* plane) PELTON_INLINE_LAMBDA {
    return u8_bits<kQuad - (kBits - 1), (1 << (kBits - 1))>(u8_load(plane));
  };
  if constexpr (kBits == 8) return u8_load(planes + kQuad * kVectorBytes);
  if constexpr (kBits == 6) return u8_or(nibbles(), pairs());
  if constexpr (kBits == 5) return u8_or(nibbles(), bit(upper));
  if constexpr (kBits == 4) return nibbles();
  if constexpr (kBits == 3) return u8_or(pairs(), bit(planes + 2 * kVectorBytes));
  if constexpr (kBits == 2) return pairs();
}

// Scales and minima of group g of a unit. d * scale is exact: 11 + 8 bits at most.
template <class Layout, class StripType>
PELTON_INLINE void expand_scales(const uint8_t* unit, int g, int target, StripType& strip) {
  const F32 d = f32_load_f16(reinterpret_cast<const uint16_t*>(unit));
  const auto dmin = [&]()
                        PELTON_INLINE_LAMBDA { return f32_load_f16(reinterpret_cast<const uint16_t*>(unit) + kLanes); };
  if constexpr (Layout::kScales == ScaleKind::kPlain) {
    f32_store(strip.scale[target][0], d);
    if constexpr (Layout::kHasMin) f32_store(strip.min[target][0], dmin());
  } else {
    unroll<Layout::kHalves>([&](auto half) PELTON_INLINE_LAMBDA {
      const int h = half.value;
      const uint8_t* bytes = unit + Layout::kScaleOffset + (g * Layout::kHalves + h) * kLanes;
      I32 scale;
      if constexpr (Layout::kScales == ScaleKind::kSigned) {
        scale = i32_load_i8(reinterpret_cast<const int8_t*>(bytes));
      } else {
        scale = i32_load_u8(bytes);
      }
      I32 min = i32_zero();
      if constexpr (Layout::kScales == ScaleKind::kNibbles) {
        min = i32_shr(scale, 4);
        scale = sub(scale, i32_shl(min, 4));
      } else if constexpr (Layout::kHasMin) {
        min = i32_load_u8(unit + Layout::kMinOffset + g * kLanes);
      }
      f32_store(strip.scale[target][h], mul(d, f32_from_i32(scale)));
      if constexpr (Layout::kHasMin) {
        f32_store(strip.min[target][h], sub(f32_zero(), mul(dmin(), f32_from_i32(min))));
      }
    });
  }
}

// Expands groups [first, first + count) of a panel; first is a multiple of kChunkGroups. `ahead`: how many bytes
// further the weights lie that will be wanted one chunk later.
template <class Layout, class StripType>
PELTON_INLINE void expand_chunk(const uint8_t* panel, int64_t first, int count, int64_t ahead, StripType& strip) {
  using DotType = typename StripType::DotType;
  for (int g = 0; g < count; ++g) {
    const int in_unit = Layout::kUnitGroups == 1 ? 0 : g;
    const int64_t unit_index = Layout::kUnitGroups == 1 ? first + g : first / Layout::kUnitGroups;
    const uint8_t* unit = panel + unit_index * Layout::kUnitBytes;
    const uint8_t* planes = unit + Layout::kCodeOffset + in_unit * Layout::kGroupCodeBytes;
    expand_scales<Layout>(unit, in_unit, g, strip);
    unroll<Layout::kBits>([&](auto vector)
                              PELTON_INLINE_LAMBDA { prefetch(planes + ahead + vector.value * kVectorBytes); });
    unroll<kQuads>([&](auto quad) PELTON_INLINE_LAMBDA {
      constexpr int kQuad = decltype(quad)::value;
      U8 codes = load_quad_codes<Layout::kBits, kQuad>(planes);
      if constexpr (StripType::kSubtract != 0) codes = u8_sub(codes, u8_set(StripType::kSubtract));
      DotType::expand(strip.codes[g][kQuad], codes);
    });
  }
}

}  // namespace
}  // namespace pelton::PELTON_LEVEL
