// Memory planning: live ranges and sizes in, arena offsets out.
//
// A pure function of its arguments: no torch, CUDA, Python, globals, clock or hash order. Ties are
// broken by id, so the same specs give the same bytes on any machine.
//
// Words: LB is the largest sum of rounded sizes live at one moment; no plan is smaller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/error.h"

namespace staticrt::planner {

// One managed value: live on [begin, end) in node indices, size_bytes long. Its id is its index.
struct Spec {
  int64_t begin, end, size_bytes;
};

// Invariants (validate.h checks them without the planner's code):
// (1) offsets are >= 0 and multiples of the alignment; specs live together share no byte.
// (2) offset + rounded size <= arena_bytes, which is a multiple of the alignment.
// (3) LB <= lower_bound <= arena_bytes, and no plan is smaller than lower_bound.
// (4) proved_optimal is true exactly if lower_bound == arena_bytes.
struct Plan {
  std::vector<int64_t> offsets;
  int64_t arena_bytes = 0;
  int64_t lower_bound = 0;
  bool proved_optimal = false;
};

// A budget of search nodes, never of time. More effort never gives a larger arena.
enum class Effort {
  kFast,        // the greedy portfolio alone
  kDefault,     // milliseconds
  kHigh,        // seconds
  kExhaustive,  // as long as a minute or so on hard instances
};

// Specs that make no plan: which, and what to do about it.
class PlanError : public InputError {
 public:
  PlanError(const std::string& message, const std::string& at, const std::string& fix)
      : InputError(message + "\n  at:  " + at + "\n  fix: " + fix), message_(message), at_(at), fix_(fix) {}
  const std::string& message() const { return message_; }
  const std::string& at() const { return at_; }
  const std::string& fix() const { return fix_; }

 private:
  std::string message_, at_, fix_;
};

// Offsets for all specs. A spec of size 0 gets offset 0 and takes no room; no specs, no arena.
//
// The arena is never larger than that of storage groups or of any greedy pass tried.
// Throws PlanError: empty range, negative size, alignment that is not a power of two, sizes whose sum
// passes int64.
Plan plan(std::span<const Spec> specs, int64_t alignment = 64, Effort effort = Effort::kDefault);

}  // namespace staticrt::planner
