// Instruction-set levels and their self-tests.
#include "levels.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "cpu_features.h"
#include "self_test.h"

namespace pelton {

void bind_levels(nb::module_& module) {
  module.def("cpu_features", [] {
    std::map<std::string, bool> out;
    for (const CpuFeature& feature : cpu_features()) out[feature.name] = feature.present;
    return out;
  });
  module.def("levels", [] {
    std::vector<std::tuple<std::string, bool, std::string>> out;
    for (const LevelStatus& status : levels()) out.emplace_back(status.name, status.usable, status.reason);
    return out;
  });
  module.def(
      "kernels",
      [](const std::string& level) {
        std::vector<std::string> out;
        for (const KernelEntry& entry : kernels(level)) out.emplace_back(entry.name);
        return out;
      },
      "level"_a);
  module.def(
      "self_test",
      [](const std::string& level) {
        std::vector<std::pair<std::string, std::string>> out;
        for (const SelfTestResult& result : self_test(level, SelfTestExtent::kAll))
          out.emplace_back(result.name, result.verdict);
        return out;
      },
      "level"_a);
}

}  // namespace pelton
