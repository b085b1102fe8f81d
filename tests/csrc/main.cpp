#include <cstdio>
#include <cstring>
#include <exception>

#include "test.h"

namespace staticrt::test {
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
}  // namespace staticrt::test

int main(int argc, char** argv) {
  int passed = 0;
  int failed = 0;
  for (const auto& test : staticrt::test::cases()) {
    if (argc > 1 && !std::strstr(test.name.c_str(), argv[1])) continue;
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", test.name.c_str(), error.what());
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
