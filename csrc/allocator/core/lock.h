// FastMutex: a mutex of one word for sections of a hundred instructions.
//
// Uncontended lock and unlock are one atomic operation each, inline; a thread that must wait sleeps in the
// kernel (std::atomic::wait). Drepper, "Futexes Are Tricky", mutex 2: 0 free, 1 held, 2 held and waited for.
// Not recursive, not fair.
#pragma once

#include <atomic>

namespace staticrt::alloc {

class FastMutex {
 public:
  [[gnu::always_inline]] void lock() {
    int expected = 0;
    if (!word_.compare_exchange_strong(expected, 1, std::memory_order_acquire)) [[unlikely]]
      wait();
  }
  [[gnu::always_inline]] void unlock() {
    if (word_.exchange(0, std::memory_order_release) == 2) [[unlikely]]
      wake();
  }

 private:
  [[gnu::noinline]] void wake() { word_.notify_one(); }
  [[gnu::noinline]] void wait() {
    while (word_.exchange(2, std::memory_order_acquire) != 0) word_.wait(2, std::memory_order_relaxed);
  }
  std::atomic<int> word_{0};
};

}  // namespace staticrt::alloc
