// What this CPU can do and the operating system lets us use. Knows nothing of levels or kernels.
#pragma once

#include <vector>

namespace pelton {

struct CpuFeature {
  const char* name;  // "avx512vnni", "dotprod": the flag's name as compilers spell it
  bool present;      // the CPU has it and the system saves its registers
};

// The features that matter here, in a fixed order. Read once.
const std::vector<CpuFeature>& cpu_features();

// False for a name that cpu_features() does not list.
bool has_cpu_feature(const char* name);

}  // namespace pelton
