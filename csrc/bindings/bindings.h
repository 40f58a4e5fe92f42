// The module pelton._native. The files of this folder are the only ones that know Python: one per room, each checks
// what Python hands it and releases the interpreter while native code works. pelton/_native.pyi says the same for
// readers and for mypy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "memory.h"

namespace pelton {

namespace nb = nanobind;
using namespace nb::literals;
using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

void bind_gguf(nb::module_& module);
void bind_levels(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_program(nb::module_& module);
void bind_runner(nb::module_& module);
void bind_team(nb::module_& module);
void bind_text(nb::module_& module);
void bind_weights(nb::module_& module);

// A Memory that knows how many look into it: Python views, and native objects that outlive a call.
struct Buffer {
  Memory memory;
  int num_views = 0;

  // Throws std::invalid_argument for a negative size.
  static Buffer allocate(int64_t nbytes, const std::string& owner);
  // Throws nb::buffer_error while anybody looks into it.
  void close();
  // The part that a native function will write or read. Throws std::out_of_range.
  uint8_t* checked_range(int64_t offset, int64_t nbytes) const;
};

// Keeps a buffer from being closed while native code points into it. The buffer itself must be kept alive beside it.
class OpenBuffer {
 public:
  explicit OpenBuffer(Buffer* buffer) : buffer_(buffer) {
    if (buffer_ != nullptr) ++buffer_->num_views;
  }
  OpenBuffer(OpenBuffer&& other) noexcept : buffer_(other.buffer_) { other.buffer_ = nullptr; }
  OpenBuffer& operator=(OpenBuffer&&) = delete;
  ~OpenBuffer() {
    if (buffer_ != nullptr) --buffer_->num_views;
  }

  uint8_t* data() const { return buffer_ == nullptr ? nullptr : buffer_->memory.data(); }

 private:
  Buffer* buffer_;
};

}  // namespace pelton
