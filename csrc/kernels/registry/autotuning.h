// Kernels that were chosen by measuring, for all shapes of this process.
//
// The same shape is measured once, and takes the same kernel from then on. Choices can be read and handed to
// another process on the same machine (an archive, a file of pinned routes), which then measures nothing.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace staticrt {

struct RouteChoice {
  std::string kind;          // "matmul", "winograd": what is chosen
  std::vector<int64_t> key;  // what it depends on: sizes, strides, threads
  int64_t choice = 0;
  auto operator<=>(const RouteChoice&) const = default;
};

// The kept choice of this kind and key if `fits` takes it, else what `decide` returns, which is kept. One
// thread decides at a time, so that no measurement disturbs another.
RouteChoice choose_route(std::string kind, std::vector<int64_t> key,
                         const std::function<bool(int64_t choice)>& fits,
                         const std::function<int64_t()>& decide);

// All choices, ordered by kind and key.
std::vector<RouteChoice> route_choices();
// From now on these shapes take these kernels; prepared programs keep theirs. A choice that does not fit its
// shape is ignored when the shape is prepared. `over`: also replaces choices that are kept already.
void pin_routes(const std::vector<RouteChoice>& choices, bool over);

// The clock of a measurement: this thread's CPU time where it works alone, so that other processes do not
// influence it; wall time where several threads work together.
int64_t measuring_clock_ns(int num_threads);

// The least time of each of several ways to compute the same, each measured for some runs or up to `most_ns`.
// They take turns, so that other work of the machine slows all of them.
std::vector<double> least_ns(const std::vector<std::function<void()>>& ways, int num_threads,
                             int64_t most_ns);

// Vector instructions in use and the processor's name: choices are valid on the same machine only.
const std::string& machine_name();

}  // namespace staticrt
