#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <utility>

namespace pelton {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

struct Ledger {
  std::mutex mutex;
  std::map<std::string, int64_t> bytes;
};

// Never destroyed: memory may be given back while the process ends.
Ledger& ledger() {
  static Ledger* instance = new Ledger;
  return *instance;
}

void record(const std::string& owner, int64_t change) {
  Ledger& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  const auto line = book.bytes.try_emplace(owner, 0).first;
  line->second += change;
  if (line->second == 0) book.bytes.erase(line);
}

// Null if the system refuses.
uint8_t* map_pages(size_t bytes) {
  void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<uint8_t*>(address);
}

// Maps one huge page more than needed and gives back what lies before the first boundary and after the end.
uint8_t* map_huge_pages(size_t bytes) {
  uint8_t* start = map_pages(bytes + kHugePage);
  if (start == nullptr) return nullptr;
  const size_t before = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
  if (before != 0) munmap(start, before);
  uint8_t* aligned = start + before;
  munmap(aligned + bytes, kHugePage - before);
#if defined(MADV_HUGEPAGE)
  madvise(aligned, bytes, MADV_HUGEPAGE);  // a wish: without it the pages are small and all else is the same
#endif
  return aligned;
}

}  // namespace

Memory::Memory(size_t bytes, const std::string& owner) : owner_(owner) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) throw MemoryRefused(bytes, owner);
  const size_t page = bytes >= kHugePage ? kHugePage : static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t mapped = (std::max<size_t>(bytes, 1) + page - 1) / page * page;
  data_ = bytes >= kHugePage ? map_huge_pages(mapped) : map_pages(mapped);
  if (data_ == nullptr) throw MemoryRefused(bytes, owner);
  bytes_ = bytes;
  mapped_ = mapped;
  record(owner_, static_cast<int64_t>(bytes_));
}

void Memory::release() noexcept {
  if (data_ == nullptr) return;
  munmap(data_, mapped_);
  record(owner_, -static_cast<int64_t>(bytes_));
  data_ = nullptr;
  bytes_ = mapped_ = 0;
}

void Memory::swap(Memory& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  owner_.swap(other.owner_);
}

std::map<std::string, int64_t> memory_ledger() {
  Ledger& book = ledger();
  const std::lock_guard<std::mutex> lock(book.mutex);
  return book.bytes;
}

}  // namespace pelton
