// Errors of the C++ side. Each has its own type, so that bindings can give it its Python class.
//
// Messages say what happened, where, and what to do; SRT_CHECK streams its arguments.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

namespace staticrt {

// A user's mistake: wrong argument, wrong shape, wrong configuration.
class InputError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Memory could not be had. Nothing of what asked for it is left.
class OutOfMemoryError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A broken invariant of this library: always our bug.
class InternalError : public std::logic_error {
  using std::logic_error::logic_error;
};

namespace detail {
template <class... Parts>
std::string concat(Parts&&... parts) {
  std::ostringstream out;
  (out << ... << std::forward<Parts>(parts));
  return out.str();
}
}  // namespace detail

}  // namespace staticrt

#define SRT_CHECK_AS(Type, condition, ...)                 \
  do {                                                     \
    if (!(condition)) [[unlikely]]                         \
      throw Type(::staticrt::detail::concat(__VA_ARGS__)); \
  } while (0)
#define SRT_CHECK(condition, ...) SRT_CHECK_AS(::staticrt::InputError, condition, __VA_ARGS__)
#define SRT_INTERNAL(condition, ...) SRT_CHECK_AS(::staticrt::InternalError, condition, __VA_ARGS__)
