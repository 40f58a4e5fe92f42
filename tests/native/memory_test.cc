// Memory: zeroed, aligned, counted, and refused without a crash.
#include "memory.h"

#include <limits>
#include <utility>

#include "check.h"

using pelton::Memory;
using pelton::memory_ledger;

TEST(memory_is_zeroed_and_aligned) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{5000}, size_t{2} << 20, (size_t{5} << 20) + 1}) {
    const Memory memory(bytes, "test");
    CHECK(memory.data() != nullptr && memory.bytes() == bytes);
    const size_t alignment = bytes >= (size_t{2} << 20) ? size_t{2} << 20 : 64;
    CHECK(reinterpret_cast<uintptr_t>(memory.data()) % alignment == 0);
    for (size_t i = 0; i < bytes; i += 509) CHECK(memory.data()[i] == 0);
    if (bytes != 0) memory.data()[bytes - 1] = 1;
  }
}

TEST(memory_is_counted_by_owner_while_it_lives) {
  {
    Memory first(1000, "test a"), second(24, "test a");
    const Memory third(7, "test b");
    CHECK(memory_ledger()["test a"] == 1024 && memory_ledger()["test b"] == 7);
    const Memory moved = std::move(first);
    CHECK(first.data() == nullptr && moved.bytes() == 1000 && memory_ledger()["test a"] == 1024);
    second.release();
    second.release();
    CHECK(memory_ledger()["test a"] == 1000);
  }
  CHECK(memory_ledger().count("test a") == 0 && memory_ledger().count("test b") == 0);
}

TEST(memory_that_is_refused_is_an_error) {
  CHECK_THROWS(Memory(size_t{1} << 60, "test"), pelton::MemoryRefused);
  CHECK_THROWS(Memory(std::numeric_limits<size_t>::max(), "test"), pelton::MemoryRefused);
  CHECK(memory_ledger().count("test") == 0);
}
