// A few lines of test framework: TEST(name) registers, CHECK counts failures and goes on.
#pragma once

#include <cstdio>
#include <vector>

namespace pelton::testing {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests();
void fail(const char* file, int line, const char* condition);

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

}  // namespace pelton::testing

#define TEST(name)                                                         \
  static void name();                                                      \
  static const pelton::testing::Registration register_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) pelton::testing::fail(__FILE__, __LINE__, #condition); \
  } while (false)

#define CHECK_THROWS(expression, type)                                                    \
  do {                                                                                    \
    bool thrown = false;                                                                  \
    try {                                                                                 \
      expression;                                                                         \
    } catch (const type&) {                                                               \
      thrown = true;                                                                      \
    }                                                                                     \
    if (!thrown) pelton::testing::fail(__FILE__, __LINE__, #expression " throws " #type); \
  } while (false)
