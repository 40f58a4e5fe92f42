// The header of a GGUF file, parsed from bytes that nobody vouches for. Knows nothing of Python and of what models
// mean.
//
// File: "GGUF", u32 version, u64 tensors, u64 keys; keys (string, u32 type, value); tensors (string, u32 dimensions,
// u64 sizes fastest first, u32 type, u64 offset); padding to `general.alignment`; data. Little endian throughout.
//
// Every count is checked against the bytes that are left before anything is reserved for it, so the memory used is
// bounded by a small multiple of the header's own size. The bytes are kept, and values are views into them: the
// strings of a vocabulary cost nothing until somebody asks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace pelton::gguf {

// The file breaks the format, or ends too early.
struct MalformedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The file may be sound, but this reader can't tell: a version or a tensor type that it doesn't know.
struct UnsupportedError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class ValueType : uint32_t {
  kU8 = 0,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// How a tensor's values are stored: rows of blocks of `block_values` values in `block_bytes` bytes.
struct TensorType {
  uint32_t number;
  const char* name;
  int32_t block_values;
  int32_t block_bytes;
};
// Null for a number that no type has.
const TensorType* FindTensorType(uint32_t number);

// A key's value. For an array, `element` is its type and the elements follow one another from `offset` on.
struct Value {
  ValueType type;
  ValueType element;
  uint64_t count;   // 1 unless an array
  uint64_t offset;  // of the first element within the header's bytes
};

struct Tensor {
  std::string_view name;
  int32_t num_dimensions;
  uint64_t dimensions[4];  // fastest first, as the file has them
  const TensorType* type;
  uint64_t offset;  // from the start of the file
  uint64_t nbytes;
};

class Header {
 public:
  // Copies `bytes` bytes from `offset` of the file; false if it ends before. May throw.
  using ReadFn = std::function<bool(uint64_t offset, uint8_t* destination, size_t bytes)>;

  // Throws MalformedError, UnsupportedError, or what `read` throws.
  Header(uint64_t file_bytes, const ReadFn& read);
  Header(const Header&) = delete;  // views point into bytes_
  Header& operator=(const Header&) = delete;

  uint32_t version() const { return version_; }
  uint64_t data_offset() const { return data_offset_; }
  const std::vector<std::string_view>& keys() const { return keys_; }  // in the file's order
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const Value* find(std::string_view key) const;

  // A value's elements; the value must be one of this header's, of that type.
  const uint8_t* data(const Value& value) const { return bytes_.data() + value.offset; }
  std::vector<std::string_view> strings(const Value& value) const;

 private:
  friend class Parser;
  std::vector<uint8_t> bytes_;
  uint32_t version_ = 0;
  uint64_t data_offset_ = 0;
  std::vector<std::string_view> keys_;
  std::map<std::string_view, Value> values_;  // no hash table: whoever wrote the file chose the keys
  std::vector<Tensor> tensors_;
};

// Bytes of one element; 0 for strings and arrays, whose size varies.
size_t ElementBytes(ValueType type);

}  // namespace pelton::gguf
