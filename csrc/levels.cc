#include "levels.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <stdexcept>

#include "cpu_features.h"

// One line PELTON_FAMILY(level, family) per object file of a kernel family, written by the build.
#define PELTON_FAMILY(level, family) extern "C" const pelton::KernelEntry* pelton_##level##_##family(int32_t* count);
#include "kernel_registry.inc"
#undef PELTON_FAMILY

namespace pelton {
namespace {

struct Export {
  const char* level;
  ExportFn entries;
};

constexpr Export kExports[] = {
#define PELTON_FAMILY(level, family) {#level, pelton_##level##_##family},
#include "kernel_registry.inc"
#undef PELTON_FAMILY
    {nullptr, nullptr},  // an array may not be empty
};

struct Requirement {
  const char* level;
  std::vector<const char*> features;  // exactly what the level's compiler flags allow the compiler to use
};

// Best last.
const std::vector<Requirement>& requirements() {
  static const std::vector<Requirement> table = {
      {"generic", {}},
#if defined(__x86_64__)
      {"avx2", {"avx2", "fma", "f16c", "bmi2"}},
      {"avx512", {"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}},
      {"avx512vnni",
       {"avx2", "fma", "f16c", "bmi2", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512vnni"}},
#elif defined(__aarch64__)
      {"neon", {"neon"}},
      {"dotprod", {"neon", "dotprod"}},
#endif
  };
  return table;
}

LevelStatus check(const Requirement& requirement) {
  std::string missing;
  for (const char* feature : requirement.features) {
    if (!has_cpu_feature(feature)) missing += (missing.empty() ? "" : ", ") + std::string(feature);
  }
  if (!missing.empty()) return {requirement.level, false, "this CPU or system lacks " + missing};
  return {requirement.level, true, ""};
}

std::map<std::string, std::vector<KernelEntry>> collect() {
  std::map<std::string, std::vector<KernelEntry>> out;
  for (const Export& exported : kExports) {
    if (exported.level == nullptr) continue;
    int32_t count = 0;
    const KernelEntry* entries = exported.entries(&count);
    std::vector<KernelEntry>& all = out[exported.level];
    all.insert(all.end(), entries, entries + count);
  }
  for (auto& [level, entries] : out) {
    std::sort(entries.begin(), entries.end(),
              [](const KernelEntry& a, const KernelEntry& b) { return std::strcmp(a.name, b.name) < 0; });
  }
  return out;
}

}  // namespace

const std::vector<LevelStatus>& levels() {
  static const std::vector<LevelStatus> statuses = [] {
    std::vector<LevelStatus> out;
    for (const Requirement& requirement : requirements()) out.push_back(check(requirement));
    return out;
  }();
  return statuses;
}

void require_level(const std::string& level) {
  for (const LevelStatus& status : levels()) {
    if (status.name != level) continue;
    if (status.usable) return;
    throw std::invalid_argument("level `" + level + "` can't be used: " + status.reason);
  }
  throw std::invalid_argument("there is no level `" + level + "` on this architecture");
}

const std::vector<KernelEntry>& kernels(const std::string& level) {
  static const std::map<std::string, std::vector<KernelEntry>> table = collect();
  static const std::vector<KernelEntry> none;
  const auto found = table.find(level);
  return found == table.end() ? none : found->second;
}

const KernelEntry* find_kernel(const std::string& level, const std::string& name) {
  for (const KernelEntry& entry : kernels(level)) {
    if (name == entry.name) return &entry;
  }
  return nullptr;
}

}  // namespace pelton
