#include "levels.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>

#include "cpu_features.h"
#include "self_test.h"

// One line PELTON_FAMILY(level, family, built) per kernel family of a level, written by the build. built: the level
// whose object it is, this one or its base.
#define PELTON_FAMILY(level, family, built) \
  extern "C" const pelton::KernelEntry* pelton_##built##_##family(int32_t* count);
#include "kernel_registry.inc"
#undef PELTON_FAMILY

namespace pelton {
namespace {

struct Export {
  const char* level;
  ExportFn entries;
};

constexpr Export kExports[] = {
#define PELTON_FAMILY(level, family, built) {#level, pelton_##built##_##family},
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

std::string missing_features(const Requirement& requirement) {
  std::string missing;
  for (const char* feature : requirement.features) {
    if (!has_cpu_feature(feature)) missing += (missing.empty() ? "" : ", ") + std::string(feature);
  }
  return missing.empty() ? "" : "this CPU or system lacks " + missing;
}

// The first disagreement, empty if there is none.
std::string failed_self_test(const std::string& level) {
  for (const SelfTestResult& result : self_test(level, SelfTestExtent::kAtLoad)) {
    if (result.verdict != "ok") return "self-test `" + result.name + "`: " + result.verdict;
  }
  return "";
}

// Why a level can't be used, empty if it can. Tests the level once.
const std::string& reason_against(const Requirement& requirement) {
  static std::mutex mutex;
  static std::map<std::string, std::string> reasons;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [entry, is_new] = reasons.try_emplace(requirement.level);
  if (is_new) {
    entry->second = missing_features(requirement);
    // The generic level is what the others are held against.
    const bool is_generic = requirement.features.empty();
    if (entry->second.empty() && !is_generic) entry->second = failed_self_test(requirement.level);
  }
  return entry->second;
}

[[noreturn]] void refuse(const std::string& level, const std::string& reason) {
  throw std::invalid_argument("level `" + level + "` can't be used: " + reason);
}

const Requirement& known_level(const std::string& level) {
  for (const Requirement& requirement : requirements()) {
    if (level == requirement.level) return requirement;
  }
  throw std::invalid_argument("there is no level `" + level + "` on this architecture");
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

std::vector<LevelStatus> levels() {
  std::vector<LevelStatus> out;
  bool has_best = false;
  const std::vector<Requirement>& table = requirements();
  for (auto requirement = table.rbegin(); requirement != table.rend(); ++requirement) {
    const std::string reason = has_best ? missing_features(*requirement) : reason_against(*requirement);
    out.push_back({requirement->level, reason.empty(), reason});
    has_best = has_best || reason.empty();
  }
  std::reverse(out.begin(), out.end());
  return out;
}

void require_level(const std::string& level) {
  const std::string& reason = reason_against(known_level(level));
  if (!reason.empty()) refuse(level, reason);
}

void require_features(const std::string& level) {
  const std::string reason = missing_features(known_level(level));
  if (!reason.empty()) refuse(level, reason);
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
