// Reading exact ranges of a file. pread, never a mapping: a file that shrinks under a mapping kills the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace pelton {

// The file ends before the bytes that were asked for.
struct EndOfFile : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads [offset, offset + bytes) into target, whatever pread splits it into. Returns 0, an errno value, or kEndOfFile.
// Does not throw: workers of a team use it.
inline constexpr int kEndOfFile = -1;
int read_exactly(int fd, uint8_t* target, size_t bytes, int64_t offset) noexcept;

// Throws for a result of read_exactly other than 0: EndOfFile, naming how many bytes are missing to `end`, or
// std::system_error.
void throw_read_error(int result, int fd, int64_t end);

}  // namespace pelton
