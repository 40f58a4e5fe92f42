// The GGUF parser on broken headers: every truncation, every field at its extremes, and seeded random mutations of a
// small sound one. It must accept or throw its own errors, stay within its bytes, and never ask for much memory.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "gguf.h"

namespace {
thread_local size_t largest_allocation = 0;
}

// Counts what this thread allocates; otherwise as the standard ones. noinline: GCC would warn of malloc beside delete.
__attribute__((noinline)) void* operator new(size_t bytes) {
  largest_allocation = std::max(largest_allocation, bytes);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

namespace gguf = pelton::gguf;
using gguf::ValueType;

using Bytes = std::vector<uint8_t>;

struct Field {
  size_t offset;
  size_t width;
};

// A small sound file, and where its numbers are.
struct File {
  Bytes bytes;
  std::vector<Field> fields;

  template <typename T>
  void put(T value) {
    fields.push_back({bytes.size(), sizeof(T)});
    append(&value, sizeof(T));
  }
  void put(ValueType type) { put(static_cast<uint32_t>(type)); }
  void put_string(const std::string& text) {
    put<uint64_t>(text.size());
    append(text.data(), text.size());
  }
  void append(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), begin, begin + size);
  }
  void put_tensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type, uint64_t offset) {
    put_string(name);
    put<uint32_t>(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t size : dimensions) put<uint64_t>(size);
    put<uint32_t>(type);
    put<uint64_t>(offset);
  }
};

File sound_file() {
  File file;
  file.append("GGUF", 4);
  file.put<uint32_t>(3);
  file.put<uint64_t>(3);  // tensors
  file.put<uint64_t>(5);  // keys
  file.put_string("general.alignment");
  file.put(ValueType::kU32);
  file.put<uint32_t>(64);
  file.put_string("name");
  file.put(ValueType::kString);
  file.put_string("tiny");
  file.put_string("flags");
  file.put(ValueType::kArray);
  file.put(ValueType::kBool);
  file.put<uint64_t>(3);
  file.append("\1\0\1", 3);
  file.put_string("tokens");
  file.put(ValueType::kArray);
  file.put(ValueType::kString);
  file.put<uint64_t>(4);
  for (const char* token : {"a", "", "bc", "def"}) file.put_string(token);
  file.put_string("scale");
  file.put(ValueType::kF64);
  file.put<double>(0.5);
  file.put_tensor("norm", {4}, 0, 0);             // f32, 16 bytes
  file.put_tensor("weight", {32, 3}, 2, 64);      // q4_0, 54 bytes
  file.put_tensor("experts", {2, 3, 4}, 1, 128);  // f16, 48 bytes
  file.bytes.resize((file.bytes.size() + 63) / 64 * 64 + 128 + 48);
  return file;
}

// Looks at everything that a header offers. Gives what a sanitizer would miss: whether it all lies in the file.
bool is_consistent(const gguf::Header& header, uint64_t file_bytes) {
  size_t total = 0;
  for (const std::string_view key : header.keys()) {
    const gguf::Value* value = header.find(key);
    if (value == nullptr) return false;
    if (value->element == ValueType::kString) {
      for (const std::string_view text : header.strings(*value)) {
        for (const char c : text) total += static_cast<uint8_t>(c);
      }
    } else {
      const uint8_t* data = header.data(*value);
      for (size_t i = 0; i < value->count * gguf::ElementBytes(value->element); ++i) total += data[i];
    }
  }
  uint64_t tensor_bytes = 0;
  for (const gguf::Tensor& tensor : header.tensors()) {
    if (tensor.name.empty() || tensor.offset > file_bytes || tensor.nbytes > file_bytes - tensor.offset) return false;
    tensor_bytes += tensor.nbytes;  // they don't overlap, so all of them fit as well
  }
  return tensor_bytes <= file_bytes && total < std::numeric_limits<size_t>::max();
}

enum class Outcome { kAccepted, kRefused, kBroken };

// file_bytes: what the file system says, which may be more than can be read.
Outcome parse(const Bytes& bytes, uint64_t file_bytes) {
  const auto read = [&bytes](uint64_t offset, uint8_t* destination, size_t size) {
    if (offset > bytes.size() || size > bytes.size() - offset) return false;
    std::memcpy(destination, bytes.data() + offset, size);
    return true;
  };
  largest_allocation = 0;
  Outcome outcome;
  try {
    const gguf::Header header(file_bytes, read);
    outcome = is_consistent(header, file_bytes) ? Outcome::kAccepted : Outcome::kBroken;
  } catch (const gguf::MalformedError&) {
    outcome = Outcome::kRefused;
  } catch (const gguf::UnsupportedError&) {
    outcome = Outcome::kRefused;
  }
  // An error's text takes a few hundred bytes.
  return largest_allocation <= 4 * file_bytes + 512 ? outcome : Outcome::kBroken;
}

// xorshift64*: the same numbers everywhere.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 2685821657736338717u;
  }
  size_t below(size_t limit) { return static_cast<size_t>(next() % limit); }
};

const uint64_t kExtremes[] = {0,
                              1,
                              2,
                              3,
                              31,
                              33,
                              0x7f,
                              0x80,
                              0xff,
                              0xffff,
                              0x10000,
                              0x7fffffff,
                              1u << 31,
                              0xffffffff,
                              uint64_t{1} << 32,
                              uint64_t{1} << 61,
                              (uint64_t{1} << 61) + 1,
                              uint64_t{1} << 63,
                              (uint64_t{1} << 63) - 1,
                              ~uint64_t{0},
                              ~uint64_t{0} - 31};

void mutate(File& file, Random& random) {
  Bytes& bytes = file.bytes;
  switch (random.below(5)) {
    case 0:
      bytes[random.below(bytes.size())] ^= static_cast<uint8_t>(1u << random.below(8));
      break;
    case 1:
      bytes[random.below(bytes.size())] = static_cast<uint8_t>(random.next());
      break;
    case 2: {
      const Field field = file.fields[random.below(file.fields.size())];
      if (field.offset + field.width > bytes.size()) break;
      const uint64_t value = kExtremes[random.below(std::size(kExtremes))];
      std::memcpy(bytes.data() + field.offset, &value, field.width);
      break;
    }
    case 3: {  // copy a piece over another: names and records that occur twice
      const size_t size = 1 + random.below(std::min<size_t>(64, bytes.size()));
      std::memmove(bytes.data() + random.below(bytes.size() - size + 1),
                   bytes.data() + random.below(bytes.size() - size + 1), size);
      break;
    }
    default:
      bytes.resize(1 + random.below(bytes.size()));
  }
}

}  // namespace

TEST(gguf_sound_header_is_accepted) {
  const File file = sound_file();
  CHECK(parse(file.bytes, file.bytes.size()) == Outcome::kAccepted);
}

TEST(gguf_every_truncation_is_refused) {
  const File file = sound_file();
  for (size_t size = 0; size < file.bytes.size(); ++size) {
    const Bytes shorter(file.bytes.begin(), file.bytes.begin() + static_cast<ptrdiff_t>(size));
    CHECK(parse(shorter, size) == Outcome::kRefused);
  }
}

TEST(gguf_file_that_shrinks_while_it_is_read_is_refused) {
  const File file = sound_file();
  for (size_t size = 0; size < file.bytes.size(); ++size) {
    const Bytes shorter(file.bytes.begin(), file.bytes.begin() + static_cast<ptrdiff_t>(size));
    CHECK(parse(shorter, file.bytes.size()) == Outcome::kRefused);
  }
}

TEST(gguf_every_field_survives_its_extremes) {
  const File sound = sound_file();
  for (const Field field : sound.fields) {
    for (const uint64_t value : kExtremes) {
      Bytes bytes = sound.bytes;
      std::memcpy(bytes.data() + field.offset, &value, field.width);
      CHECK(parse(bytes, bytes.size()) != Outcome::kBroken);
    }
  }
}

TEST(gguf_every_byte_survives_every_value) {
  Bytes bytes = sound_file().bytes;
  for (uint8_t& byte : bytes) {
    const uint8_t original = byte;
    for (int value = 0; value < 256; ++value) {
      byte = static_cast<uint8_t>(value);
      CHECK(parse(bytes, bytes.size()) != Outcome::kBroken);
    }
    byte = original;
  }
}

TEST(gguf_random_mutations_are_survived) {
  const File sound = sound_file();
  Random random{0x9e3779b97f4a7c15u};
  const char* count = std::getenv("PELTON_FUZZ_COUNT");
  const long num_cases = count != nullptr ? std::atol(count) : 200000;
  for (long i = 0; i < num_cases; ++i) {
    File file = sound;
    for (size_t changes = 1 + random.below(4); changes > 0; --changes) mutate(file, random);
    CHECK(parse(file.bytes, file.bytes.size()) != Outcome::kBroken);
  }
}
