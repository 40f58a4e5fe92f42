// Runs every test of this program, or those whose name contains the first argument.
#include <cstring>

#include "check.h"

namespace pelton::testing {
namespace {
int num_failures = 0;
}

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

void fail(const char* file, int line, const char* condition) {
  ++num_failures;
  std::printf("%s:%d: not true: %s\n", file, line, condition);
}

}  // namespace pelton::testing

int main(int argc, char** argv) {
  using namespace pelton::testing;
  int num_run = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::strstr(test.name, argv[1]) == nullptr) continue;
    const int before = num_failures;
    test.run();
    ++num_run;
    if (num_failures != before) std::printf("FAILED %s\n", test.name);
  }
  std::printf("%d tests, %d failed checks\n", num_run, num_failures);
  return num_failures == 0 && num_run > 0 ? 0 : 1;
}
