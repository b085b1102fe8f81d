// Runs the tests that registered themselves: all, or those whose name contains argv[1]. `-v` before it prints
// each name first.
//
// A run that is ended from outside, or by a call of exit(), says in which test.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "test.h"

namespace staticrt::test {
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
}  // namespace staticrt::test

namespace {

const char* running = nullptr;

void say_where(const char* how) {
  if (running == nullptr) return;
  for (const char* part : {"\nended by ", how, " in test ", running, "\n"})
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) return;
}

void on_signal(int number) {
  say_where(number == SIGTERM   ? "SIGTERM"
            : number == SIGINT  ? "SIGINT"
            : number == SIGABRT ? "SIGABRT"
                                : "a signal");
  signal(number, SIG_DFL);
  raise(number);
}

}  // namespace

int main(int argc, char** argv) {
  const bool verbose = argc > 1 && std::strcmp(argv[1], "-v") == 0;
  const char* filter = argc > 1 + verbose ? argv[1 + verbose] : "";
  // Crashes too, but where a sanitizer has put its own handler, which says more.
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGXCPU}) {
    struct sigaction was{};
    if (sigaction(number, nullptr, &was) == 0 && was.sa_handler == SIG_DFL) signal(number, on_signal);
  }
  std::atexit([] { say_where("exit()"); });
  int passed = 0;
  int failed = 0;
  for (const auto& test : staticrt::test::cases()) {
    if (!std::strstr(test.name.c_str(), filter)) continue;
    running = test.name.c_str();
    if (verbose) std::printf("%s\n", running), std::fflush(stdout);
    try {
      test.body();
      ++passed;
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED %s: %s\n", test.name.c_str(), error.what());
      std::fflush(stdout);
    }
  }
  running = nullptr;
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
