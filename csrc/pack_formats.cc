// The weight formats of formats.h from file layout to panels, for find_pack_format of pack.h. Reads no file.
//
// Packing moves bits and never rounds. All of it works on quads, four codes in the four bytes of a uint32_t, since the
// file keeps consecutive K in consecutive bytes and a panel vector is sixteen quads, one per lane; and on four lanes at
// a time, since so many quads make a vector that every machine has (lane_quads.h).
#include <cstddef>
#include <cstring>

#include "formats.h"
#include "lane_quads.h"
#include "pack.h"

namespace pelton {
namespace {

static_assert(kLanes == kPanelLanes, "one panel width");

void copy_u16(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, sizeof(uint16_t)); }

// ---- One group of four lanes, the common form between file and panel ----

struct GroupCodes {
  LaneQuads quads[kQuads];  // four codes of each lane, one per byte
};

// Scatters four lanes' group into its planes; `codes` is the group's first vector at the first of the lanes.
template <class Layout>
void store_codes(uint8_t* codes, const GroupCodes& group) {
  constexpr int kBits = Layout::kBits;
  const LaneQuads* q = group.quads;
  uint8_t* plane = codes;
  const auto vector = [&](int v) { return plane + v * kVectorBytes; };
  if constexpr (kBits == 8) {
    for (int v = 0; v < 8; ++v) store_vector(vector(v), q[v]);
    return;
  }
  if constexpr (kBits >= 4) {
    for (int v = 0; v < 4; ++v) store_vector(vector(v), (q[v] & 0x0f0f0f0fu) | (q[v + 4] & 0x0f0f0f0fu) << 4);
    plane += 4 * kVectorBytes;
  }
  constexpr int kLow = kBits >= 4 ? 4 : 0;  // bits that the first plane took
  if constexpr (kBits == 2 || kBits == 3 || kBits == 6) {
    for (int v = 0; v < 2; ++v) {
      LaneQuads bits{};
      for (int j = 0; j < 4; ++j) bits |= (q[v + 2 * j] >> kLow & 0x03030303u) << 2 * j;
      store_vector(vector(v), bits);
    }
    plane += 2 * kVectorBytes;
  }
  if constexpr (kBits == 3 || kBits == 5) {
    LaneQuads bits{};
    for (int j = 0; j < 8; ++j) bits |= (q[j] >> (kBits - 1) & 0x01010101u) << j;
    store_vector(vector(0), bits);
  }
}

// ---- Reading the file's blocks: each reader transposes four lanes' block once, then gives scales, minima and codes
// ----

// Consecutive quads of each lane.
template <int kCount>
struct LoadedQuads {
  static_assert(kCount % 4 == 0, "16 bytes at a time");
  LaneQuads quads[kCount];

  LoadedQuads(const FourLanes& blocks, int64_t offset) {
    for (int v = 0; v < kCount; v += 4) load_four_quads(blocks, offset + 4 * v, quads + v);
  }
  const LaneQuads& operator[](int v) const { return quads[v]; }
};

// The legacy types' 16 bytes of nibbles: values 0-15 low, 16-31 high.
GroupCodes halves_of_nibbles(const LoadedQuads<4>& bytes) {
  GroupCodes group;
  for (int v = 0; v < 4; ++v) {
    group.quads[v] = bytes[v] & 0x0f0f0f0fu;
    group.quads[v + 4] = bytes[v] >> 4 & 0x0f0f0f0fu;
  }
  return group;
}

// The same with a fifth bit: bit i of `bits` is bit 4 of code i.
GroupCodes halves_with_fifth_bits(const LoadedQuads<4>& bytes, LaneQuads bits) {
  GroupCodes group = halves_of_nibbles(bytes);
  for (int v = 0; v < kQuads; ++v) {
    const LaneQuads four = bits >> 4 * v & 15u;
    // The multiplication puts bit i of four at bit 8 * i: copies of it 7 bits apart.
    group.quads[v] |= (four * 0x00204081u & 0x01010101u) << 4;
  }
  return group;
}

struct ReadQ4_0 {
  using Layout = PackedQ4_0;
  using Block = BlockQ4_0;
  LoadedQuads<4> qs;

  explicit ReadQ4_0(const FourLanes& blocks) : qs(blocks, offsetof(Block, qs)) {}
  GroupCodes codes(int) const { return halves_of_nibbles(qs); }
};

struct ReadQ4_1 {
  using Layout = PackedQ4_1;
  using Block = BlockQ4_1;
  static constexpr int kMinimum = offsetof(Block, m);
  LoadedQuads<4> qs;

  explicit ReadQ4_1(const FourLanes& blocks) : qs(blocks, offsetof(Block, qs)) {}
  GroupCodes codes(int) const { return halves_of_nibbles(qs); }
};

struct ReadQ5_0 {
  using Layout = PackedQ5_0;
  using Block = BlockQ5_0;
  LoadedQuads<4> qs;
  LaneQuads qh;

  explicit ReadQ5_0(const FourLanes& blocks)
      : qs(blocks, offsetof(Block, qs)), qh(load_quad(blocks, offsetof(Block, qh))) {}
  GroupCodes codes(int) const { return halves_with_fifth_bits(qs, qh); }
};

struct ReadQ5_1 {
  using Layout = PackedQ5_1;
  using Block = BlockQ5_1;
  static constexpr int kMinimum = offsetof(Block, m);
  LoadedQuads<4> qs;
  LaneQuads qh;

  explicit ReadQ5_1(const FourLanes& blocks)
      : qs(blocks, offsetof(Block, qs)), qh(load_quad(blocks, offsetof(Block, qh))) {}
  GroupCodes codes(int) const { return halves_with_fifth_bits(qs, qh); }
};

struct ReadQ8_0 {
  using Layout = PackedQ8_0;
  using Block = BlockQ8_0;
  LoadedQuads<8> qs;

  explicit ReadQ8_0(const FourLanes& blocks) : qs(blocks, offsetof(Block, qs)) {}
  GroupCodes codes(int) const {
    GroupCodes group;
    for (int v = 0; v < kQuads; ++v) group.quads[v] = qs[v];
    return group;
  }
};

// K-quants keep 128 values in 32 bytes times the number of bits: group g has its bits at position 2 * (g % 4) of the 32
// bytes of its half g / 4.
GroupCodes two_bits(const LoadedQuads<16>& bytes, int g) {
  GroupCodes group;
  for (int v = 0; v < kQuads; ++v) group.quads[v] = bytes[g / 4 * 8 + v] >> 2 * (g % 4) & 0x03030303u;
  return group;
}

// 64 values in 32 bytes: group 2i in the low nibbles, group 2i + 1 in the high ones.
GroupCodes nibbles_of_pair(const LoadedQuads<32>& bytes, int g) {
  GroupCodes group;
  for (int v = 0; v < kQuads; ++v) group.quads[v] = bytes[g / 2 * 8 + v] >> 4 * (g % 2) & 0x0f0f0f0fu;
  return group;
}

// Bit g of each of 32 bytes becomes bit `position` of the codes.
void add_bits(GroupCodes& group, const LoadedQuads<8>& bytes, int g, int position) {
  for (int v = 0; v < kQuads; ++v) group.quads[v] |= (bytes[v] >> g & 0x01010101u) << position;
}

struct ReadQ2K {
  using Layout = PackedQ2K;
  using Block = BlockQ2K;
  static constexpr int kMinimum = offsetof(Block, dmin);
  LoadedQuads<4> scales;
  LoadedQuads<16> qs;

  explicit ReadQ2K(const FourLanes& blocks)
      : scales(blocks, offsetof(Block, scales)), qs(blocks, offsetof(Block, qs)) {}
  LaneQuads four_scales(int w) const { return scales[w]; }
  GroupCodes codes(int g) const { return two_bits(qs, g); }
};

struct ReadQ3K {
  using Layout = PackedQ3K;
  using Block = BlockQ3K;
  LoadedQuads<16> qs;
  LoadedQuads<8> hmask;
  LaneQuads scales[3];

  explicit ReadQ3K(const FourLanes& blocks) : qs(blocks, offsetof(Block, qs)), hmask(blocks, offsetof(Block, hmask)) {
    for (int w = 0; w < 3; ++w) scales[w] = load_quad(blocks, offsetof(Block, scales) + 4 * w);
  }
  // Sixteen 6-bit scales: low nibbles in bytes 0-7 (scales 0-7 low, 8-15 high), upper two bits in bytes 8-11. They are
  // stored with 32 added.
  LaneQuads four_scales(int w) const {
    const LaneQuads six = (scales[w % 2] >> w / 2 * 4 & 0x0f0f0f0fu) | (scales[2] >> 2 * w & 0x03030303u) << 4;
    return (six + 0x60606060u) ^ 0x80808080u;  // minus 32 in each byte, without a borrow from its neighbour
  }
  // The third bit says whether 4 is *not* subtracted: it is the code's bit 2, and the zero point is 4.
  GroupCodes codes(int g) const {
    GroupCodes group = two_bits(qs, g);
    add_bits(group, hmask, g, 2);
    return group;
  }
};

// Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minima in 12 bytes. Those of groups 0-3 are the low six bits of
// bytes 0-3 and 4-7; those of groups 4-7 have their low nibbles in bytes 8-11 and their upper bits above the others.
struct SixBitScales {
  LaneQuads words[3];

  SixBitScales(const FourLanes& blocks, int64_t offset) {
    for (int w = 0; w < 3; ++w) words[w] = load_quad(blocks, offset + 4 * w);
  }
  LaneQuads scales(int w) const { return w == 0 ? words[0] & 0x3f3f3f3fu : upper(words[2], words[0]); }
  LaneQuads minima(int w) const { return w == 0 ? words[1] & 0x3f3f3f3fu : upper(words[2] >> 4, words[1]); }

  static LaneQuads upper(LaneQuads low, LaneQuads high) { return (low & 0x0f0f0f0fu) | (high >> 6 & 0x03030303u) << 4; }
};

struct ReadQ4K {
  using Layout = PackedQ4K;
  using Block = BlockQ4K;
  static constexpr int kMinimum = offsetof(Block, dmin);
  SixBitScales scales;
  LoadedQuads<32> qs;

  explicit ReadQ4K(const FourLanes& blocks)
      : scales(blocks, offsetof(Block, scales)), qs(blocks, offsetof(Block, qs)) {}
  LaneQuads four_scales(int w) const { return scales.scales(w); }
  LaneQuads four_minima(int w) const { return scales.minima(w); }
  GroupCodes codes(int g) const { return nibbles_of_pair(qs, g); }
};

struct ReadQ5K {
  using Layout = PackedQ5K;
  using Block = BlockQ5K;
  static constexpr int kMinimum = offsetof(Block, dmin);
  SixBitScales scales;
  LoadedQuads<32> qs;
  LoadedQuads<8> qh;

  explicit ReadQ5K(const FourLanes& blocks)
      : scales(blocks, offsetof(Block, scales)), qs(blocks, offsetof(Block, qs)), qh(blocks, offsetof(Block, qh)) {}
  LaneQuads four_scales(int w) const { return scales.scales(w); }
  LaneQuads four_minima(int w) const { return scales.minima(w); }
  GroupCodes codes(int g) const {
    GroupCodes group = nibbles_of_pair(qs, g);
    add_bits(group, qh, g, 4);
    return group;
  }
};

struct ReadQ6K {
  using Layout = PackedQ6K;
  using Block = BlockQ6K;
  LoadedQuads<4> scales;
  LoadedQuads<32> ql;
  LoadedQuads<16> qh;

  explicit ReadQ6K(const FourLanes& blocks)
      : scales(blocks, offsetof(Block, scales)), ql(blocks, offsetof(Block, ql)), qh(blocks, offsetof(Block, qh)) {}
  LaneQuads four_scales(int w) const { return scales[w]; }
  // Per 128 values: 64 bytes of nibbles (groups 0 and 1 low, 2 and 3 high) and 32 bytes of upper pairs of bits.
  GroupCodes codes(int g) const {
    GroupCodes group = two_bits(qh, g);
    for (int v = 0; v < kQuads; ++v) {
      const LaneQuads low = ql[g / 4 * 16 + g % 2 * 8 + v] >> (g % 4 < 2 ? 0 : 4) & 0x0f0f0f0fu;
      group.quads[v] = group.quads[v] << 4 | low;
    }
    return group;
  }
};

// ---- Packing ----

// Four lanes of a unit; `unit` is its start, `lane` the first of them.
template <class Read>
void pack_unit(const FourLanes& blocks, int lane, uint8_t* unit) {
  using Layout = typename Read::Layout;
  for (int i = 0; i < 4; ++i) {
    copy_u16(unit + 2 * (lane + i), blocks.lane[i] + offsetof(typename Read::Block, d));
    if constexpr (Layout::kHasMin) copy_u16(unit + 2 * (kLanes + lane + i), blocks.lane[i] + Read::kMinimum);
  }
  const Read read(blocks);
  if constexpr (Layout::kHasScaleBytes) {
    for (int w = 0; w < Layout::kScaleBytes / kLanes / 4; ++w) {
      store_bytes_apart(unit + Layout::kScaleOffset + w * 4 * kLanes + lane, kLanes, read.four_scales(w));
    }
  }
  if constexpr (Layout::kMinBytes > 0) {
    for (int w = 0; w < Layout::kMinBytes / kLanes / 4; ++w) {
      store_bytes_apart(unit + Layout::kMinOffset + w * 4 * kLanes + lane, kLanes, read.four_minima(w));
    }
  }
#pragma GCC unroll 8  // shifts by constants: a sixth quicker
  for (int g = 0; g < Layout::kUnitGroups; ++g) {
    store_codes<Layout>(unit + Layout::kCodeOffset + g * Layout::kGroupCodeBytes + 4 * lane, read.codes(g));
  }
}

// The lanes' bytes from `offset` on.
FourLanes four_lanes(const uint8_t* const* rows, int64_t offset) {
  FourLanes out;
  for (int i = 0; i < 4; ++i) out.lane[i] = rows[i] != nullptr ? rows[i] + offset : kZeroBytes;
  return out;
}

template <class Read>
void pack_integer(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  using Layout = typename Read::Layout;
  constexpr int64_t kBlockBytes = sizeof(typename Read::Block);
  static_assert(kBlockBytes <= static_cast<int64_t>(sizeof(kZeroBytes)),
                "a lane beyond the matrix is a block of zeros");
  const int64_t num_units = k / Layout::kUnitValues;
  for (int64_t u = 0; u < num_units; ++u) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      pack_unit<Read>(four_lanes(rows + lane, u * kBlockBytes), lane, panel + u * Layout::kUnitBytes);
    }
  }
  const int64_t used = num_units * Layout::kUnitBytes;
  std::memset(panel + used, 0, static_cast<size_t>(integer_panel_bytes<Layout>(k) - used));
}

// Elements first to count of `Element` bytes, one by one: panel[i][lane] = rows[lane][i].
template <class Element>
void pack_elements(const uint8_t* const* rows, int64_t first, int64_t count, uint8_t* panel) {
  for (int64_t i = first; i < count; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      Element element{};
      if (rows[lane]) std::memcpy(&element, rows[lane] + i * sizeof(Element), sizeof(Element));
      std::memcpy(panel + (i * kLanes + lane) * sizeof(Element), &element, sizeof(Element));
    }
  }
}

// The same for elements of four bytes.
void pack_quads(const uint8_t* const* rows, int64_t count, uint8_t* panel) {
  const int64_t whole = count / 4 * 4;
  for (int64_t i = 0; i < whole; i += 4) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      LaneQuads quads[4];
      load_four_quads(four_lanes(rows + lane, i * 4), 0, quads);
      for (int v = 0; v < 4; ++v) store_vector(panel + ((i + v) * kLanes + lane) * 4, quads[v]);
    }
  }
  pack_elements<uint32_t>(rows, whole, count, panel);
}

void pack_f32(const uint8_t* const* rows, int64_t k, uint8_t* panel) { pack_quads(rows, k, panel); }

void pack_f16(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  const int64_t whole = k / 8 * 8;
  for (int64_t i = 0; i < whole; i += 8) {
    for (int lane = 0; lane < kLanes; lane += 8) {
      LaneQuads a[4], b[4];
      load_four_quads(four_lanes(rows + lane, i * 2), 0, a);
      load_four_quads(four_lanes(rows + lane + 4, i * 2), 0, b);
      for (int v = 0; v < 4; ++v) {
        LaneHalves even, odd;
        split_halves(a[v], b[v], &even, &odd);
        uint8_t* out = panel + ((i + 2 * v) * kLanes + lane) * 2;
        store_vector(out, even);
        store_vector(out + kLanes * 2, odd);
      }
    }
  }
  pack_elements<uint16_t>(rows, whole, k, panel);
  const int64_t used = k * kLanes * 2;
  std::memset(panel + used, 0, static_cast<size_t>(panel_bytes(Format::kF16, k) - used));
}

void pack_bf16(const uint8_t* const* rows, int64_t k, uint8_t* panel) {
  pack_quads(rows, k / 2, panel);  // a pair along K is one quad
  if (k % 2 == 0) return;
  for (int lane = 0; lane < kLanes; ++lane) {
    uint8_t* last = panel + (k / 2 * kLanes + lane) * 4;
    std::memset(last, 0, 4);
    if (rows[lane]) copy_u16(last, rows[lane] + (k - 1) * 2);
  }
}

template <Format kFormat>
int64_t panel_bytes_of(int64_t k) {
  return panel_bytes(kFormat, k);
}

template <Format kFormat, class Read>
constexpr PackFormat integer_entry() {
  return {kFormat, Read::Layout::kUnitValues, sizeof(typename Read::Block), panel_bytes_of<kFormat>,
          pack_integer<Read>};
}

constexpr PackFormat kPackFormats[kNumFormats] = {
    {Format::kF32, 1, 4, panel_bytes_of<Format::kF32>, pack_f32},
    {Format::kF16, 1, 2, panel_bytes_of<Format::kF16>, pack_f16},
    {Format::kBf16, 1, 2, panel_bytes_of<Format::kBf16>, pack_bf16},
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
    if (name == kFormatNames[static_cast<int>(format.format)]) return &format;
  }
  return nullptr;
}

}  // namespace pelton
