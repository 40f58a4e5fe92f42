// The levels that were built in, what each needs of the CPU, and the kernels that each exports.
#pragma once

#include <string>
#include <vector>

#include "kernel_table.h"

namespace pelton {

struct LevelStatus {
  std::string name;
  bool usable;
  std::string reason;  // why not; empty if usable
};

// Every level of this architecture, best last. A level is usable if the CPU and the system have what it needs and its
// self-test agrees with the generic level. The test takes milliseconds, so it runs once per process for a level that
// is going to be used: here for the best ones until one agrees, in require_level for the level that is asked for.
std::vector<LevelStatus> levels();

// Throws std::invalid_argument, naming the reason, unless the level is usable.
void require_level(const std::string& level);

// The same, of the CPU and the system alone: what a self-test needs.
void require_features(const std::string& level);

// All kernels of a level, sorted by name. Empty for an unknown level.
const std::vector<KernelEntry>& kernels(const std::string& level);

// Null if the level has no such kernel.
const KernelEntry* find_kernel(const std::string& level, const std::string& name);

}  // namespace pelton
