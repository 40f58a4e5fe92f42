#include "gguf.h"

#include <algorithm>
#include <cstring>

namespace pelton::gguf {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are used as the file has them");

namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kMinVersion = 2;      // 1 had 32-bit counts
constexpr uint32_t kMaxVersion = 3;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
constexpr uint64_t kMaxKeys = uint64_t{1} << 16;
constexpr uint64_t kMaxNameBytes = 65535;                // the format's limit for keys
constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;  // the largest vocabularies take some 10 MB
constexpr size_t kReadBytes = size_t{1} << 20;
constexpr uint32_t kMaxDimensions = 4;

// Smallest encodings: key length, one byte of key, type, one byte of value; name length, one byte of name, dimensions,
// one size, type, offset.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

// Numbers as in ggml.h; the gaps are types that were removed from the format.
constexpr TensorType kTensorTypes[] = {
    {0, "f32", 1, 4},         {1, "f16", 1, 2},         {2, "q4_0", 32, 18},      {3, "q4_1", 32, 20},
    {6, "q5_0", 32, 22},      {7, "q5_1", 32, 24},      {8, "q8_0", 32, 34},      {9, "q8_1", 32, 36},
    {10, "q2_k", 256, 84},    {11, "q3_k", 256, 110},   {12, "q4_k", 256, 144},   {13, "q5_k", 256, 176},
    {14, "q6_k", 256, 210},   {15, "q8_k", 256, 292},   {16, "iq2_xxs", 256, 66}, {17, "iq2_xs", 256, 74},
    {18, "iq3_xxs", 256, 98}, {19, "iq1_s", 256, 50},   {20, "iq4_nl", 32, 18},   {21, "iq3_s", 256, 110},
    {22, "iq2_s", 256, 82},   {23, "iq4_xs", 256, 136}, {24, "i8", 1, 1},         {25, "i16", 1, 2},
    {26, "i32", 1, 4},        {27, "i64", 1, 8},        {28, "f64", 1, 8},        {29, "iq1_m", 256, 56},
    {30, "bf16", 1, 2},       {34, "tq1_0", 256, 54},   {35, "tq2_0", 256, 66},   {39, "mxfp4", 32, 17},
    {40, "nvfp4", 64, 36},    {41, "q1_0", 128, 18},    {42, "q2_0", 64, 18},
};

// A name from the file, fit for an error message: printable, and not longer than one can read.
std::string Quoted(std::string_view text) {
  std::string result = "`";
  for (char c : text.substr(0, 80)) result += (c >= 0x20 && c < 0x7f && c != '`') ? c : '?';
  return result + (text.size() > 80 ? "...`" : "`");
}

std::string Number(uint64_t value) { return std::to_string(value); }

}  // namespace

const TensorType* FindTensorType(uint32_t number) {
  for (const TensorType& type : kTensorTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

size_t ElementBytes(ValueType type) {
  switch (type) {
    case ValueType::kU8:
    case ValueType::kI8:
    case ValueType::kBool:
      return 1;
    case ValueType::kU16:
    case ValueType::kI16:
      return 2;
    case ValueType::kU32:
    case ValueType::kI32:
    case ValueType::kF32:
      return 4;
    case ValueType::kU64:
    case ValueType::kI64:
    case ValueType::kF64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      return 0;
  }
  return 0;
}

// Walks the header once. Positions are within the file; bytes are read as they are needed, so that a header is never
// read far beyond its end. Names are offsets until the bytes have stopped moving.
class Parser {
 public:
  Parser(Header& header, uint64_t file_bytes, const Header::ReadFn& read)
      : header_(header), file_bytes_(file_bytes), read_(read) {}

  void Parse() {
    ParseVersion();
    const uint64_t num_tensors = ParseCount("tensors", kMinTensorBytes, kMaxTensors);
    const uint64_t num_keys = ParseCount("keys", kMinKeyBytes, kMaxKeys);
    keys_.reserve(num_keys);
    tensors_.reserve(num_tensors);
    for (uint64_t i = 0; i < num_keys; ++i) ParseKey();
    for (uint64_t i = 0; i < num_tensors; ++i) ParseTensor();
    header_.bytes_.resize(position_);
    ResolveKeys();
    header_.data_offset_ = AlignUp(position_, Alignment());
    ResolveTensors();
  }

 private:
  struct Name {
    uint32_t offset;  // kMaxHeaderBytes bounds both
    uint32_t size;
  };
  struct RawKey {
    Name name;
    Value value;
  };
  struct RawTensor {
    Name name;
    Tensor tensor;  // its offset is still relative to the data
  };

  // The next `bytes` bytes are in header_.bytes_ afterwards.
  void Require(uint64_t bytes, const char* what) {
    if (bytes > file_bytes_ - position_) {
      throw MalformedError(std::string("the file ends within ") + what + ": " + Number(bytes) + " bytes at " +
                           Number(position_) + " of a file of " + Number(file_bytes_));
    }
    const uint64_t end = position_ + bytes;
    if (end > kMaxHeaderBytes) {
      throw MalformedError("the header is larger than " + Number(kMaxHeaderBytes) + " bytes");
    }
    std::vector<uint8_t>& buffer = header_.bytes_;
    const size_t filled = buffer.size();
    if (end <= filled) return;
    const size_t wanted = std::min<uint64_t>(std::max<uint64_t>(end, filled + kReadBytes), file_bytes_);
    buffer.resize(wanted);
    if (!read_(filled, buffer.data() + filled, wanted - filled)) {
      throw MalformedError("the file became shorter while it was read");
    }
  }

  template <typename T>
  T Take(const char* what) {
    Require(sizeof(T), what);
    T value;
    std::memcpy(&value, header_.bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return value;
  }

  Name TakeString(const char* what) {
    const uint64_t size = Take<uint64_t>(what);
    Require(size, what);
    const Name name{static_cast<uint32_t>(position_), static_cast<uint32_t>(size)};
    position_ += size;
    return name;
  }

  Name TakeName(const char* what) {
    const Name name = TakeString(what);
    if (name.size == 0 || name.size > kMaxNameBytes) {
      throw MalformedError(std::string("the name of ") + what + " is " + Number(name.size) + " bytes long");
    }
    return name;
  }

  std::string_view View(Name name) const {
    return {reinterpret_cast<const char*>(header_.bytes_.data()) + name.offset, name.size};
  }

  void ParseVersion() {
    if (Take<uint32_t>("the magic number") != kMagic) throw MalformedError("it does not start with `GGUF`");
    const uint32_t version = Take<uint32_t>("the version");
    if (version != 0 && (version & 0xffff) == 0) {
      throw UnsupportedError("it is a big-endian GGUF file; only little-endian ones are read");
    }
    if (version < kMinVersion || version > kMaxVersion) {
      throw UnsupportedError("it has GGUF version " + Number(version) + "; versions 2 and 3 are read");
    }
    header_.version_ = version;
  }

  uint64_t ParseCount(const char* what, uint64_t min_bytes, uint64_t max_count) {
    const uint64_t count = Take<uint64_t>("the counts");
    if (count > (file_bytes_ - position_) / min_bytes) {
      throw MalformedError("it claims " + Number(count) + " " + what + ", more than its " + Number(file_bytes_) +
                           " bytes can hold");
    }
    if (count > max_count) {
      throw UnsupportedError("it claims " + Number(count) + " " + what + "; at most " + Number(max_count) +
                             " are read");
    }
    return count;
  }

  ValueType TakeValueType(Name key) {
    const uint32_t type = Take<uint32_t>("a key's type");
    if (type > static_cast<uint32_t>(ValueType::kF64)) {
      throw MalformedError("key " + Quoted(View(key)) + " has the unknown value type " + Number(type));
    }
    return static_cast<ValueType>(type);
  }

  void ParseKey() {
    RawKey key{TakeName("a key"), {}};
    Value& value = key.value;
    value.type = value.element = TakeValueType(key.name);
    value.count = 1;
    if (value.type == ValueType::kArray) {
      value.element = TakeValueType(key.name);
      value.count = Take<uint64_t>("an array's length");
      if (value.element == ValueType::kArray) {
        throw MalformedError("key " + Quoted(View(key.name)) + " is an array of arrays");
      }
    }
    value.offset = position_;
    SkipElements(key.name, value);
    keys_.push_back(key);
  }

  void SkipElements(Name key, const Value& value) {
    const bool is_string = value.element == ValueType::kString;
    const size_t min_bytes = is_string ? sizeof(uint64_t) : ElementBytes(value.element);
    if (value.count > (file_bytes_ - position_) / min_bytes) {
      throw MalformedError("the file ends within key " + Quoted(View(key)) + ", which claims " + Number(value.count) +
                           " values");
    }
    if (is_string) {
      for (uint64_t i = 0; i < value.count; ++i) TakeString("a string");
      return;
    }
    Require(value.count * min_bytes, "a value");
    if (value.element == ValueType::kBool) CheckBools(key, value);
    position_ += value.count * min_bytes;
  }

  void CheckBools(Name key, const Value& value) {
    const uint8_t* flags = header_.data(value);
    if (std::any_of(flags, flags + value.count, [](uint8_t flag) { return flag > 1; })) {
      throw MalformedError("key " + Quoted(View(key)) + " holds a truth value that is neither 0 nor 1");
    }
  }

  void ParseTensor() {
    RawTensor raw{TakeName("a tensor"), {}};
    Tensor& tensor = raw.tensor;
    const uint32_t num_dimensions = Take<uint32_t>("a tensor's dimensions");
    if (num_dimensions == 0 || num_dimensions > kMaxDimensions) {
      throw MalformedError("tensor " + Quoted(View(raw.name)) + " has " + Number(num_dimensions) + " dimensions");
    }
    tensor.num_dimensions = static_cast<int32_t>(num_dimensions);
    for (uint32_t i = 0; i < num_dimensions; ++i) tensor.dimensions[i] = Take<uint64_t>("a tensor's sizes");
    const uint32_t type = Take<uint32_t>("a tensor's type");
    tensor.type = FindTensorType(type);
    if (tensor.type == nullptr) {
      throw UnsupportedError("tensor " + Quoted(View(raw.name)) + " has the unknown type number " + Number(type));
    }
    tensor.offset = Take<uint64_t>("a tensor's offset");
    tensor.nbytes = TensorBytes(raw.name, tensor);
    tensors_.push_back(raw);
  }

  // Sizes are bounded by the file's: a value takes at least 1/8 byte (in every type here more), so a product beyond
  // 8 * file_bytes is wrong before it can overflow.
  uint64_t TensorBytes(Name name, const Tensor& tensor) const {
    uint64_t values = 1;
    for (int32_t i = 0; i < tensor.num_dimensions; ++i) {
      const uint64_t size = tensor.dimensions[i];
      if (size == 0) throw MalformedError("tensor " + Quoted(View(name)) + " has a dimension of size 0");
      if (size > 8 * file_bytes_ / values) {
        throw MalformedError("tensor " + Quoted(View(name)) + " is larger than its file");
      }
      values *= size;
    }
    const uint64_t block_values = static_cast<uint64_t>(tensor.type->block_values);
    if (tensor.dimensions[0] % block_values != 0) {
      throw MalformedError("tensor " + Quoted(View(name)) + " has rows of " + Number(tensor.dimensions[0]) +
                           " values, not a multiple of the " + Number(block_values) + " in a block of `" +
                           tensor.type->name + "`");
    }
    return values / block_values * static_cast<uint64_t>(tensor.type->block_bytes);
  }

  void ResolveKeys() {
    header_.keys_.reserve(keys_.size());
    for (const RawKey& key : keys_) {
      const std::string_view name = View(key.name);
      if (!header_.values_.emplace(name, key.value).second) {
        throw MalformedError("key " + Quoted(name) + " occurs twice");
      }
      header_.keys_.push_back(name);
    }
  }

  uint64_t Alignment() const {
    const Value* value = header_.find("general.alignment");
    if (value == nullptr) return kDefaultAlignment;
    if (value->type != ValueType::kU32) throw MalformedError("`general.alignment` is not an unsigned 32-bit number");
    uint32_t alignment;
    std::memcpy(&alignment, header_.data(*value), sizeof(alignment));
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) {
      throw MalformedError("`general.alignment` is " + Number(alignment) + ", not a power of two");
    }
    return alignment;
  }

  static uint64_t AlignUp(uint64_t position, uint64_t alignment) {
    return (position + alignment - 1) / alignment * alignment;
  }

  void ResolveTensors() {
    header_.tensors_.reserve(tensors_.size());
    for (const RawTensor& raw : tensors_) {
      Tensor tensor = raw.tensor;
      tensor.name = View(raw.name);
      PlaceTensor(tensor);
      header_.tensors_.push_back(tensor);
    }
    CheckNames();
    CheckOverlaps();
  }

  void CheckNames() const {
    std::vector<std::string_view> names;
    names.reserve(header_.tensors_.size());
    for (const Tensor& tensor : header_.tensors_) names.push_back(tensor.name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) throw MalformedError("tensor " + Quoted(*twice) + " occurs twice");
  }

  // Makes the offset absolute.
  void PlaceTensor(Tensor& tensor) const {
    if (tensor.offset % Alignment() != 0) {
      throw MalformedError("tensor " + Quoted(tensor.name) + " is not aligned: its offset is " + Number(tensor.offset));
    }
    const uint64_t data_bytes = file_bytes_ - std::min(file_bytes_, header_.data_offset_);
    if (tensor.offset > data_bytes || tensor.nbytes > data_bytes - tensor.offset) {
      throw MalformedError("tensor " + Quoted(tensor.name) + " does not lie within the file: " + Number(tensor.nbytes) +
                           " bytes at " + Number(tensor.offset) + " of " + Number(data_bytes) + " bytes of data");
    }
    tensor.offset += header_.data_offset_;
  }

  void CheckOverlaps() const {
    std::vector<const Tensor*> order;
    order.reserve(header_.tensors_.size());
    for (const Tensor& tensor : header_.tensors_) order.push_back(&tensor);
    std::sort(order.begin(), order.end(), [](const Tensor* a, const Tensor* b) { return a->offset < b->offset; });
    for (size_t i = 1; i < order.size(); ++i) {
      if (order[i - 1]->offset + order[i - 1]->nbytes > order[i]->offset) {
        throw MalformedError("tensors " + Quoted(order[i - 1]->name) + " and " + Quoted(order[i]->name) + " overlap");
      }
    }
  }

  Header& header_;
  const uint64_t file_bytes_;
  const Header::ReadFn& read_;
  uint64_t position_ = 0;
  std::vector<RawKey> keys_;
  std::vector<RawTensor> tensors_;
};

Header::Header(uint64_t file_bytes, const ReadFn& read) { Parser(*this, file_bytes, read).Parse(); }

const Value* Header::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

std::vector<std::string_view> Header::strings(const Value& value) const {
  std::vector<std::string_view> result;
  result.reserve(value.count);
  const uint8_t* next = data(value);
  for (uint64_t i = 0; i < value.count; ++i) {
    uint64_t size;
    std::memcpy(&size, next, sizeof(size));
    next += sizeof(size);
    result.emplace_back(reinterpret_cast<const char*>(next), size);
    next += size;
  }
  return result;
}

}  // namespace pelton::gguf
