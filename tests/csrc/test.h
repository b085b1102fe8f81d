// A small test harness: TEST(name) { EXPECT(...); EXPECT_EQ(a, b); EXPECT_THROW(expr, Type, "part of
// message"); }
//
// Tests register themselves; main.cpp runs them all or those whose name contains argv[1].
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace staticrt::test {

struct Case {
  std::string name;
  std::function<void()> body;
};

std::vector<Case>& cases();

struct Register {
  Register(const char* name, std::function<void()> body) { cases().push_back({name, std::move(body)}); }
};

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& what) {
  std::ostringstream out;
  out << file << ":" << line << ": " << what;
  throw Failure(out.str());
}

template <class A, class B>
void expect_eq(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << text << ": got " << a << ", want " << b;
  fail(file, line, out.str());
}

}  // namespace staticrt::test

#define TEST(name)                                                           \
  static void name();                                                        \
  static const ::staticrt::test::Register name##_registration{#name, &name}; \
  static void name()
#define EXPECT(...)                                                                           \
  do {                                                                                        \
    if (!(__VA_ARGS__)) ::staticrt::test::fail(__FILE__, __LINE__, "expected " #__VA_ARGS__); \
  } while (0)
#define EXPECT_EQ(got, want) ::staticrt::test::expect_eq((got), (want), #got " == " #want, __FILE__, __LINE__)
#define EXPECT_THROW(expression, Type, part)                                                       \
  do {                                                                                             \
    bool thrown_ = false;                                                                          \
    try {                                                                                          \
      (void)(expression);                                                                          \
    } catch (const Type& error_) {                                                                 \
      thrown_ = true;                                                                              \
      if (std::string(error_.what()).find(part) == std::string::npos)                              \
        ::staticrt::test::fail(__FILE__, __LINE__,                                                 \
                               std::string("message lacks '") + (part) + "': " + error_.what());   \
    }                                                                                              \
    if (!thrown_) ::staticrt::test::fail(__FILE__, __LINE__, #expression " did not throw " #Type); \
  } while (0)
