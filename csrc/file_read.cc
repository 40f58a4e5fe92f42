#include "file_read.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>

namespace pelton {

int read_exactly(int fd, uint8_t* target, size_t bytes, int64_t offset) noexcept {
  while (bytes > 0) {
    // Systems limit one read to about 2 GiB.
    const ssize_t count = pread(fd, target, std::min(bytes, size_t{1} << 30), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno;
    if (count == 0) return kEndOfFile;
    target += count;
    bytes -= static_cast<size_t>(count);
    offset += count;
  }
  return 0;
}

void throw_read_error(int result, int fd, int64_t end) {
  if (result != kEndOfFile) throw std::system_error(result, std::generic_category(), "reading weights");
  struct stat status{};
  if (fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), "reading weights");
  const int64_t missing = end - static_cast<int64_t>(status.st_size);
  throw EndOfFile("the file ends " + std::to_string(missing) + " bytes before the tensor does");
}

}  // namespace pelton
