// Large anonymous memory with an owner: zeroed, in 2 MiB pages where the system allows, counted in one ledger.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <new>
#include <string>

namespace pelton {

// The system refuses so much memory. Says how much, and for whom.
class MemoryRefused : public std::bad_alloc {
 public:
  MemoryRefused(size_t bytes, const std::string& owner)
      : message_("the system refuses " + std::to_string(bytes) + " bytes for `" + owner + "`") {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// One mapping, owned. Aligned to 2 MiB when it is at least that large, else to a page.
class Memory {
 public:
  Memory() = default;
  // owner: the ledger's line. Throws MemoryRefused.
  Memory(size_t bytes, const std::string& owner);
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { release(); }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Gives the memory back; data() is null and bytes() 0 from then on.
  void release() noexcept;

 private:
  void swap(Memory& other) noexcept;

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;   // asked for
  size_t mapped_ = 0;  // whole pages
  std::string owner_;
};

// Bytes of live Memory by owner.
std::map<std::string, int64_t> memory_ledger();

}  // namespace pelton
