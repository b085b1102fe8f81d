// The thread state that a CPU operator depends on, copied from the enqueuing thread to the one that runs it.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <vector>

namespace staticrt::simulated {

// Dispatch keys that are already handled when an operator reaches its device: autograd, autocast, Python's
// modes, functorch.
c10::DispatchKeySet keys_above_devices();

class ThreadState {
 public:
  static ThreadState now();
  // Calls `work` under this state, below all keys_above_devices(); puts the thread's own state back.
  void run(const std::function<void()>& work) const;
  // Appends all of it, as numbers.
  void describe(std::vector<int64_t>& words) const;

 private:
  struct Flags {
    bool deterministic = false;
    bool deterministic_warn_only = false;
    bool autocast_cpu = false;
    bool autocast_cache = false;
    c10::ScalarType autocast_cpu_dtype = c10::ScalarType::BFloat16;
    c10::ScalarType default_dtype = c10::ScalarType::Float;
    int threads = 1;
    bool operator==(const Flags&) const = default;
  };
  static Flags flags();
  static void set(const Flags& from, const Flags& to);

  Flags flags_;
  c10::AutogradState autograd_{false, false, false, false};
};

}  // namespace staticrt::simulated
