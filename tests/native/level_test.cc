// Every level that this machine has agrees, kernel by kernel, with the generic one.
#include <cstdio>
#include <stdexcept>

#include "check.h"
#include "levels.h"
#include "self_test.h"

using namespace pelton;

TEST(levels_agree_with_the_generic_one) {
  int num_compared = 0;
  for (const LevelStatus& level : levels()) {
    if (!level.usable) std::printf("level %s is not tested here: %s\n", level.name.c_str(), level.reason.c_str());
    if (!level.usable && level.reason.find("lacks") != std::string::npos) continue;
    for (const SelfTestResult& result : self_test(level.name, SelfTestExtent::kAll)) {
      ++num_compared;
      if (result.verdict == "ok") continue;
      std::printf("%s: %s: %s\n", level.name.c_str(), result.name.c_str(), result.verdict.c_str());
      CHECK(result.verdict == "ok");
    }
  }
  CHECK(num_compared > 0);
}

TEST(levels_start_with_generic) {
  CHECK(levels().front().name == "generic" && levels().front().usable);
  CHECK_THROWS(require_level("no such level"), std::invalid_argument);
  CHECK_THROWS(self_test("no such level", SelfTestExtent::kAll), std::invalid_argument);
  CHECK(find_kernel("generic", "no such kernel") == nullptr);
  CHECK(kernels("no such level").empty());
}

TEST(levels_have_the_same_kernels) {
  for (const LevelStatus& level : levels()) {
    const std::vector<KernelEntry>& own = kernels(level.name);
    const std::vector<KernelEntry>& generic = kernels("generic");
    CHECK(own.size() == generic.size());
    for (size_t i = 0; i < own.size() && i < generic.size(); ++i) CHECK(std::string(own[i].name) == generic[i].name);
  }
}
