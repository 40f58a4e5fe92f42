// The weight formats of formats.h between file layout and panels, for find_pack_format of pack.h. Reads no file.
//
// Packing moves bits and never rounds. All of it works on quads: four codes in the four bytes of a uint32_t, since the
// file keeps consecutive K in consecutive bytes and a panel vector is sixteen quads, one per lane.
#include "pack_formats.h"

#include <cstring>

#include "formats.h"
#include "half.h"
#include "pack.h"

namespace pelton {
namespace {

static_assert(kLanes == kPanelLanes, "one panel width");

uint32_t load_u32(const void* p) {
  uint32_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void store_u32(uint8_t* p, uint32_t value) { std::memcpy(p, &value, sizeof(value)); }
void store_u16(uint8_t* p, uint16_t value) { std::memcpy(p, &value, sizeof(value)); }

uint16_t load_u16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

template <class Block>
Block load_block(const uint8_t* p) {
  Block block;
  std::memcpy(&block, p, sizeof(block));
  return block;
}

// ---- One group of one lane, the common form between file and panel ----

struct GroupCodes {
  uint32_t quads[kQuads];  // four codes each, one per byte
};

// Scatters a lane's group into its planes; `codes` is the group's first vector.
template <class Layout>
void store_codes(uint8_t* codes, int lane, const GroupCodes& group) {
  constexpr int kBits = Layout::kBits;
  const uint32_t* q = group.quads;
  uint8_t* plane = codes + 4 * lane;
  const auto vector = [&](int v) { return plane + v * kVectorBytes; };
  if constexpr (kBits == 8) {
    for (int v = 0; v < 8; ++v) store_u32(vector(v), q[v]);
    return;
  }
  if constexpr (kBits >= 4) {
    for (int v = 0; v < 4; ++v) store_u32(vector(v), (q[v] & 0x0f0f0f0fu) | (q[v + 4] & 0x0f0f0f0fu) << 4);
    plane += 4 * kVectorBytes;
  }
  constexpr int kLow = kBits >= 4 ? 4 : 0;  // bits that the first plane took
  if constexpr (kBits == 2 || kBits == 3 || kBits == 6) {
    for (int v = 0; v < 2; ++v) {
      uint32_t bits = 0;
      for (int j = 0; j < 4; ++j) bits |= (q[v + 2 * j] >> kLow & 0x03030303u) << 2 * j;
      store_u32(vector(v), bits);
    }
    plane += 2 * kVectorBytes;
  }
  if constexpr (kBits == 3 || kBits == 5) {
    uint32_t bits = 0;
    for (int j = 0; j < 8; ++j) bits |= (q[j] >> (kBits - 1) & 0x01010101u) << j;
    store_u32(vector(0), bits);
  }
}

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

// ---- Reading the file's blocks. Each reader gives the unit's parts: d, m, scale and minimum bytes, codes. ----

// The legacy types' 16 bytes of nibbles: values 0-15 low, 16-31 high.
GroupCodes halves_of_nibbles(const uint8_t* qs) {
  GroupCodes group;
  for (int v = 0; v < 4; ++v) {
    const uint32_t bytes = load_u32(qs + 4 * v);
    group.quads[v] = bytes & 0x0f0f0f0fu;
    group.quads[v + 4] = bytes >> 4 & 0x0f0f0f0fu;
  }
  return group;
}

// Bit i of `bits` becomes bit 4 of code i.
void add_fifth_bits(GroupCodes& group, uint32_t bits) {
  for (int v = 0; v < kQuads; ++v) {
    const uint32_t four = bits >> 4 * v & 15;
    // The multiplication puts bit i of four at bit 8 * i: copies of it 7 bits apart.
    group.quads[v] |= (four * 0x00204081u & 0x01010101u) << 4;
  }
}

struct ReadQ4_0 {
  using Layout = PackedQ4_0;
  using Block = BlockQ4_0;
  static uint16_t d(const Block& b) { return b.d; }
  static GroupCodes codes(const Block& b, int) { return halves_of_nibbles(b.qs); }
};

struct ReadQ4_1 {
  using Layout = PackedQ4_1;
  using Block = BlockQ4_1;
  static uint16_t d(const Block& b) { return b.d; }
  static uint16_t m(const Block& b) { return b.m; }
  static GroupCodes codes(const Block& b, int) { return halves_of_nibbles(b.qs); }
};

struct ReadQ5_0 {
  using Layout = PackedQ5_0;
  using Block = BlockQ5_0;
  static uint16_t d(const Block& b) { return b.d; }
  static GroupCodes codes(const Block& b, int) {
    GroupCodes group = halves_of_nibbles(b.qs);
    add_fifth_bits(group, load_u32(b.qh));
    return group;
  }
};

struct ReadQ5_1 {
  using Layout = PackedQ5_1;
  using Block = BlockQ5_1;
  static uint16_t d(const Block& b) { return b.d; }
  static uint16_t m(const Block& b) { return b.m; }
  static GroupCodes codes(const Block& b, int) {
    GroupCodes group = halves_of_nibbles(b.qs);
    add_fifth_bits(group, load_u32(b.qh));
    return group;
  }
};

struct ReadQ8_0 {
  using Layout = PackedQ8_0;
  using Block = BlockQ8_0;
  static uint16_t d(const Block& b) { return b.d; }
  static GroupCodes codes(const Block& b, int) {
    GroupCodes group;
    for (int v = 0; v < kQuads; ++v) group.quads[v] = load_u32(b.qs + 4 * v);
    return group;
  }
};

// K-quants keep 128 values in 32 bytes times the number of bits: group g has its bits at position 2 * (g % 4) of the 32
// bytes of its half g / 4.
GroupCodes two_bits(const uint8_t* qs, int g) {
  GroupCodes group;
  for (int v = 0; v < kQuads; ++v) group.quads[v] = load_u32(qs + g / 4 * 32 + 4 * v) >> 2 * (g % 4) & 0x03030303u;
  return group;
}

struct ReadQ2K {
  using Layout = PackedQ2K;
  using Block = BlockQ2K;
  static uint16_t d(const Block& b) { return b.d; }
  static uint16_t m(const Block& b) { return b.dmin; }
  static uint8_t scale(const Block& b, int g, int half) { return b.scales[2 * g + half]; }
  static GroupCodes codes(const Block& b, int g) { return two_bits(b.qs, g); }
};

struct ReadQ3K {
  using Layout = PackedQ3K;
  using Block = BlockQ3K;
  static uint16_t d(const Block& b) { return b.d; }
  // Sixteen 6-bit scales: low nibbles in bytes 0-7 (scales 0-7 low, 8-15 high), upper two bits in bytes 8-11.
  static uint8_t scale(const Block& b, int g, int half) {
    const int s = 2 * g + half;
    const int low = b.scales[s % 8] >> (s < 8 ? 0 : 4) & 15;
    const int high = b.scales[8 + s % 4] >> 2 * (s / 4) & 3;
    return static_cast<uint8_t>((low | high << 4) - 32);
  }
  // The third bit says whether 4 is *not* subtracted: it is the code's bit 2, and the zero point is 4.
  static GroupCodes codes(const Block& b, int g) {
    GroupCodes group = two_bits(b.qs, g);
    for (int v = 0; v < kQuads; ++v) group.quads[v] |= (load_u32(b.hmask + 4 * v) >> g & 0x01010101u) << 2;
    return group;
  }
};

// Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes.
uint8_t six_bit_scale(const uint8_t* q, int g) {
  return static_cast<uint8_t>(g < 4 ? q[g] & 63 : (q[g + 4] & 15) | (q[g - 4] >> 6) << 4);
}
uint8_t six_bit_min(const uint8_t* q, int g) {
  return static_cast<uint8_t>(g < 4 ? q[g + 4] & 63 : q[g + 4] >> 4 | (q[g] >> 6) << 4);
}

// 64 values in 32 bytes: group 2i in the low nibbles, group 2i + 1 in the high ones.
GroupCodes nibbles_of_pair(const uint8_t* qs, int g) {
  GroupCodes group;
  for (int v = 0; v < kQuads; ++v) group.quads[v] = load_u32(qs + g / 2 * 32 + 4 * v) >> 4 * (g % 2) & 0x0f0f0f0fu;
  return group;
}

struct ReadQ4K {
  using Layout = PackedQ4K;
  using Block = BlockQ4K;
  static uint16_t d(const Block& b) { return b.d; }
  static uint16_t m(const Block& b) { return b.dmin; }
  static uint8_t scale(const Block& b, int g, int) { return six_bit_scale(b.scales, g); }
  static uint8_t min(const Block& b, int g) { return six_bit_min(b.scales, g); }
  static GroupCodes codes(const Block& b, int g) { return nibbles_of_pair(b.qs, g); }
};

struct ReadQ5K {
  using Layout = PackedQ5K;
  using Block = BlockQ5K;
  static uint16_t d(const Block& b) { return b.d; }
  static uint16_t m(const Block& b) { return b.dmin; }
  static uint8_t scale(const Block& b, int g, int) { return six_bit_scale(b.scales, g); }
  static uint8_t min(const Block& b, int g) { return six_bit_min(b.scales, g); }
  static GroupCodes codes(const Block& b, int g) {
    GroupCodes group = nibbles_of_pair(b.qs, g);
    for (int v = 0; v < kQuads; ++v) group.quads[v] |= (load_u32(b.qh + 4 * v) >> g & 0x01010101u) << 4;
    return group;
  }
};

struct ReadQ6K {
  using Layout = PackedQ6K;
  using Block = BlockQ6K;
  static uint16_t d(const Block& b) { return b.d; }
  static uint8_t scale(const Block& b, int g, int half) { return static_cast<uint8_t>(b.scales[2 * g + half]); }
  // Per 128 values: 64 bytes of nibbles (groups 0 and 1 low, 2 and 3 high) and 32 bytes of upper pairs of bits.
  static GroupCodes codes(const Block& b, int g) {
    const uint8_t* low = b.ql + g / 4 * 64 + g % 2 * 32;
    GroupCodes group = two_bits(b.qh, g);
    for (int v = 0; v < kQuads; ++v) {
      group.quads[v] = group.quads[v] << 4 | (load_u32(low + 4 * v) >> (g % 4 < 2 ? 0 : 4) & 0x0f0f0f0fu);
    }
    return group;
  }
};

// ---- Packing ----

template <class Read>
void pack_unit(const typename Read::Block& block, int lane, uint8_t* unit) {
  using Layout = typename Read::Layout;
  store_u16(unit + 2 * lane, Read::d(block));
  if constexpr (Layout::kHasMin) store_u16(unit + 2 * (kLanes + lane), Read::m(block));
  for (int g = 0; g < Layout::kUnitGroups; ++g) {
    if constexpr (Layout::kHasScaleBytes) {
      for (int half = 0; half < Layout::kHalves; ++half) {
        unit[Layout::kScaleOffset + (g * Layout::kHalves + half) * kLanes + lane] = Read::scale(block, g, half);
      }
    }
    if constexpr (Layout::kMinBytes > 0) unit[Layout::kMinOffset + g * kLanes + lane] = Read::min(block, g);
    store_codes<Layout>(unit + Layout::kCodeOffset + g * Layout::kGroupCodeBytes, lane, Read::codes(block, g));
  }
}

template <class Read>
void pack_integer(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  using Layout = typename Read::Layout;
  using Block = typename Read::Block;
  const int64_t num_units = k / Layout::kUnitValues;
  for (int64_t u = 0; u < num_units; ++u) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const Block block = rows[lane] ? load_block<Block>(rows[lane] + u * sizeof(Block)) : Block{};
      pack_unit<Read>(block, lane, panel + u * Layout::kUnitBytes);
    }
  }
  const int64_t used = num_units * Layout::kUnitBytes;
  std::memset(panel + used, 0, static_cast<size_t>(integer_panel_bytes<Layout>(k) - used));
}

// Elements of `Element` bytes: panel[i][lane] = rows[lane][i].
template <class Element>
void pack_elements(const uint8_t* const* rows, int64_t count, uint8_t* panel) {
  for (int64_t i = 0; i < count; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      Element element{};
      if (rows[lane]) std::memcpy(&element, rows[lane] + i * sizeof(Element), sizeof(Element));
      std::memcpy(panel + (i * kLanes + lane) * sizeof(Element), &element, sizeof(Element));
    }
  }
}

void pack_f32(const uint8_t* const* rows, int64_t k, uint8_t* panel) { pack_elements<uint32_t>(rows, k, panel); }

void pack_f16(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  pack_elements<uint16_t>(rows, k, panel);
  const int64_t used = k * kLanes * 2;
  std::memset(panel + used, 0, static_cast<size_t>(panel_bytes(Format::kF16, k) - used));
}

void pack_bf16(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  pack_elements<uint32_t>(rows, k / 2, panel);  // a pair along K is one 32-bit element
  if (k % 2 == 0) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint32_t last = rows[lane] ? load_u16(rows[lane] + (k - 1) * 2) : 0;
    store_u32(panel + (k / 2 * kLanes + lane) * 4, last);
  }
}

// ---- Unpacking: the dequantised value, with the operations and roundings of the format's definition ----

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

template <Format kFormat>
int64_t panel_bytes_of(int64_t k) {
  return panel_bytes(kFormat, k);
}

template <Format kFormat, class Read>
constexpr PackFormat integer_entry() {
  return {kFormatNames[static_cast<int>(kFormat)],
          Read::Layout::kUnitValues,
          sizeof(typename Read::Block),
          panel_bytes_of<kFormat>,
          pack_integer<Read>,
          unpack_integer<typename Read::Layout>};
}

constexpr PackFormat kPackFormats[kNumFormats] = {
    {"f32", 1, 4, panel_bytes_of<Format::kF32>, pack_f32, unpack_f32},
    {"f16", 1, 2, panel_bytes_of<Format::kF16>, pack_f16, unpack_f16},
    {"bf16", 1, 2, panel_bytes_of<Format::kBf16>, pack_bf16, unpack_bf16},
    integer_entry<Format::kQ4_0, ReadQ4_0>(),
    integer_entry<Format::kQ4_1, ReadQ4_1>(),
    integer_entry<Format::kQ5_0, ReadQ5_0>(),
    integer_entry<Format::kQ5_1, ReadQ5_1>(),
    integer_entry<Format::kQ8_0, ReadQ8_0>(),
    integer_entry<Format::kQ2K, ReadQ2K>(),
    integer_entry<Format::kQ3K, ReadQ3K>(),
    integer_entry<Format::kQ4K, ReadQ4K>(),
    integer_entry<Format::kQ5K, ReadQ5K>(),
    integer_entry<Format::kQ6K, ReadQ6K>(),
};

}  // namespace

const PackFormat* find_pack_format(const std::string& name) {
  for (const PackFormat& format : kPackFormats) {
    if (name == format.name) return &format;
  }
  return nullptr;
}

void unpack_lane(Format format, const uint8_t* panel, int64_t k, int lane, float* values) {
  float* rows[kLanes] = {};
  rows[lane] = values;
  kPackFormats[static_cast<int>(format)].unpack(panel, k, rows);
}

}  // namespace pelton
