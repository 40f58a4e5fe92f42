#include "cpu_features.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace pelton {
namespace {

#if defined(__x86_64__)

struct Leaf {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf cpuid(uint32_t leaf, uint32_t subleaf) {
  Leaf out;
  if (__get_cpuid_count(leaf, subleaf, &out.eax, &out.ebx, &out.ecx, &out.edx) == 0) return Leaf{};
  return out;
}

// XCR0: the register states that the system saves on a switch (Intel SDM volume 1, 13.3). Inline assembly, because
// the intrinsic needs a compiler flag of its own.
uint64_t enabled_states() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

std::vector<CpuFeature> detect() {
  const Leaf one = cpuid(1, 0), seven = cpuid(7, 0), seven_1 = cpuid(7, 1);
  const auto bit = [](uint32_t word, int index) { return ((word >> index) & 1) != 0; };
  const uint64_t states = bit(one.ecx, 27) ? enabled_states() : 0;  // OSXSAVE: xgetbv exists
  const bool ymm = (states & 0x06) == 0x06 && bit(one.ecx, 28);     // SSE and AVX state
  const bool zmm = ymm && (states & 0xe0) == 0xe0;                  // mask registers, upper halves, zmm16-31
  return {
      {"avx2", ymm && bit(seven.ebx, 5)},        {"fma", ymm && bit(one.ecx, 12)},
      {"f16c", ymm && bit(one.ecx, 29)},         {"bmi2", bit(seven.ebx, 8)},
      {"avxvnni", ymm && bit(seven_1.eax, 4)},   {"avx512f", zmm && bit(seven.ebx, 16)},
      {"avx512bw", zmm && bit(seven.ebx, 30)},   {"avx512dq", zmm && bit(seven.ebx, 17)},
      {"avx512vl", zmm && bit(seven.ebx, 31)},   {"avx512cd", zmm && bit(seven.ebx, 28)},
      {"avx512vnni", zmm && bit(seven.ecx, 11)}, {"avx512bf16", zmm && bit(seven_1.eax, 5)},
  };
}

#elif defined(__aarch64__) && defined(__linux__)

std::vector<CpuFeature> detect() {
  // Bits of the kernel's arch/arm64/include/uapi/asm/hwcap.h, which old C libraries do not name.
  const unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
  const auto bit = [](unsigned long word, int index) { return ((word >> index) & 1) != 0; };
  return {
      {"neon", bit(hwcap, 1)}, {"fp16", bit(hwcap, 10)},  {"dotprod", bit(hwcap, 20)},
      {"sve", bit(hwcap, 22)}, {"i8mm", bit(hwcap2, 13)}, {"bf16", bit(hwcap2, 14)},
  };
}

#elif defined(__aarch64__) && defined(__APPLE__)

std::vector<CpuFeature> detect() {
  const auto has = [](const char* key) {
    int32_t value = 0;
    size_t size = sizeof value;
    return sysctlbyname(key, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  return {
      {"neon", true},
      {"fp16", has("hw.optional.arm.FEAT_FP16")},
      {"dotprod", has("hw.optional.arm.FEAT_DotProd")},
      {"i8mm", has("hw.optional.arm.FEAT_I8MM")},
      {"bf16", has("hw.optional.arm.FEAT_BF16")},
  };
}

#else

std::vector<CpuFeature> detect() { return {}; }

#endif

}  // namespace

const std::vector<CpuFeature>& cpu_features() {
  static const std::vector<CpuFeature> features = detect();
  return features;
}

bool has_cpu_feature(const char* name) {
  for (const CpuFeature& feature : cpu_features()) {
    if (std::strcmp(feature.name, name) == 0) return feature.present;
  }
  return false;
}

}  // namespace pelton
