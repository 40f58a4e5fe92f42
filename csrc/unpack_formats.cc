// From panels back to values: the dequantised value, with the operations and roundings of the format's definition.
#include "unpack_formats.h"

#include <cstring>

#include "formats.h"
#include "half.h"

namespace pelton {
namespace {

uint32_t load_u32(const void* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// One group of one lane: four codes in each quad, one per byte.
struct GroupCodes {
  uint32_t quads[kQuads];
};

template <class Layout>
GroupCodes load_codes(const uint8_t* codes, int lane) {
  constexpr int kBits = Layout::kBits;
  GroupCodes group{};
  uint32_t* q = group.quads;
  const uint8_t* plane = codes + 4 * lane;
  const auto vector = [&](int v) { return load_u32(plane + v * kVectorBytes); };
  if constexpr (kBits == 8) {
    for (int v = 0; v < 8; ++v) q[v] = vector(v);
    return group;
  }
  if constexpr (kBits >= 4) {
    for (int v = 0; v < 8; ++v) q[v] = vector(v & 3) >> (v & 4) & 0x0f0f0f0fu;
    plane += 4 * kVectorBytes;
  }
  constexpr int kLow = kBits >= 4 ? 4 : 0;
  if constexpr (kBits == 2 || kBits == 3 || kBits == 6) {
    for (int v = 0; v < 8; ++v) q[v] |= (vector(v & 1) >> (v & 6) & 0x03030303u) << kLow;
    plane += 2 * kVectorBytes;
  }
  if constexpr (kBits == 3 || kBits == 5) {
    for (int v = 0; v < 8; ++v) q[v] |= (vector(0) >> v & 0x01010101u) << (kBits - 1);
  }
  return group;
}

template <class Layout>
void unpack_unit(const uint8_t* unit, int lane, float* values) {
  const float d = float_from_f16(load_u16(unit + 2 * lane));
  const float m = Layout::kHasMin ? float_from_f16(load_u16(unit + 2 * (kLanes + lane))) : 0.0f;
  for (int g = 0; g < Layout::kUnitGroups; ++g) {
    const GroupCodes group = load_codes<Layout>(unit + Layout::kCodeOffset + g * Layout::kGroupCodeBytes, lane);
    for (int i = 0; i < kGroup; ++i) {
      const uint8_t byte = static_cast<uint8_t>(group.quads[i / 4] >> 8 * (i % 4));
      const int code = Layout::kBits == 8 ? static_cast<int8_t>(byte) : byte - Layout::kZero;
      if constexpr (!Layout::kHasScaleBytes) {
        const float scaled = d * static_cast<float>(code);
        *values++ = Layout::kHasMin ? scaled + m : scaled;
        continue;
      }
      const int half = Layout::kHalves == 1 ? 0 : i / 16;
      const uint8_t s = unit[Layout::kScaleOffset + (g * Layout::kHalves + half) * kLanes + lane];
      const int scale = Layout::kScales == ScaleKind::kSigned    ? static_cast<int8_t>(s)
                        : Layout::kScales == ScaleKind::kNibbles ? s & 15
                                                                 : s;
      const float scaled = d * static_cast<float>(scale) * static_cast<float>(code);
      if constexpr (Layout::kHasMin) {
        const int min = Layout::kScales == ScaleKind::kNibbles ? s >> 4 : unit[Layout::kMinOffset + g * kLanes + lane];
        *values++ = scaled - m * static_cast<float>(min);
      } else {
        *values++ = scaled;
      }
    }
  }
}

template <class Layout>
void unpack_integer(const uint8_t* panel, int64_t k, float* const* rows) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (rows[lane] == nullptr) continue;
    for (int64_t u = 0; u < k / Layout::kUnitValues; ++u) {
      unpack_unit<Layout>(panel + u * Layout::kUnitBytes, lane, rows[lane] + u * Layout::kUnitValues);
    }
  }
}

template <class Value>
void unpack_elements(int64_t k, float* const* rows, Value value) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (rows[lane] == nullptr) continue;
    for (int64_t i = 0; i < k; ++i) rows[lane][i] = value(i, lane);
  }
}

void unpack_f32(const uint8_t* panel, int64_t k, float* const* rows) {
  unpack_elements(k, rows,
                  [=](int64_t i, int lane) { return float_from_bits(load_u32(panel + (i * kLanes + lane) * 4)); });
}

void unpack_f16(const uint8_t* panel, int64_t k, float* const* rows) {
  unpack_elements(k, rows,
                  [=](int64_t i, int lane) { return float_from_f16(load_u16(panel + (i * kLanes + lane) * 2)); });
}

void unpack_bf16(const uint8_t* panel, int64_t k, float* const* rows) {
  unpack_elements(k, rows, [=](int64_t i, int lane) {
    return float_from_bf16(load_u16(panel + (i / 2 * kLanes + lane) * 4 + i % 2 * 2));
  });
}

}  // namespace

void unpack_panel(Format format, const uint8_t* panel, int64_t k, float* const* rows) {
  switch (format) {
    case Format::kF32:
      return unpack_f32(panel, k, rows);
    case Format::kF16:
      return unpack_f16(panel, k, rows);
    case Format::kBf16:
      return unpack_bf16(panel, k, rows);
    case Format::kQ4_0:
      return unpack_integer<PackedQ4_0>(panel, k, rows);
    case Format::kQ4_1:
      return unpack_integer<PackedQ4_1>(panel, k, rows);
    case Format::kQ5_0:
      return unpack_integer<PackedQ5_0>(panel, k, rows);
    case Format::kQ5_1:
      return unpack_integer<PackedQ5_1>(panel, k, rows);
    case Format::kQ8_0:
      return unpack_integer<PackedQ8_0>(panel, k, rows);
    case Format::kQ2K:
      return unpack_integer<PackedQ2K>(panel, k, rows);
    case Format::kQ3K:
      return unpack_integer<PackedQ3K>(panel, k, rows);
    case Format::kQ4K:
      return unpack_integer<PackedQ4K>(panel, k, rows);
    case Format::kQ5K:
      return unpack_integer<PackedQ5K>(panel, k, rows);
    case Format::kQ6K:
      return unpack_integer<PackedQ6K>(panel, k, rows);
  }
}

void unpack_lane(Format format, const uint8_t* panel, int64_t k, int lane, float* values) {
  float* rows[kLanes] = {};
  rows[lane] = values;
  unpack_panel(format, panel, k, rows);
}

}  // namespace pelton
