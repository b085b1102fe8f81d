#include "allocator/core/fork.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "allocator/core/core.h"

namespace staticrt::alloc {
namespace {

std::atomic<int> forks{0};

struct Guarded {
  std::mutex mutex;
  std::vector<Core*> cores;
};
Guarded& guarded() {
  static auto* all = new Guarded;
  return *all;
}

// In the order of Note [Locks].
void before_fork() {
  guarded().mutex.lock();
  for (Core* core : guarded().cores) {
    core->growth_mutex.lock();
    core->caches->pause();
    core->mutex.lock();
    core->driver.before_fork();
  }
}

void let_go() {
  for (auto at = guarded().cores.rbegin(); at != guarded().cores.rend(); ++at) {
    Core& core = **at;
    core.driver.after_fork();
    core.mutex.unlock();
    core.caches->resume();
    core.growth_mutex.unlock();
  }
  guarded().mutex.unlock();
}

void in_child() {
  forks.fetch_add(1, std::memory_order_relaxed);
  for (Core* core : guarded().cores) core->delivering = false;  // the child has no such thread
  let_go();
}

void watch_forks() {
  static const int watching = pthread_atfork(before_fork, let_go, in_child);
  (void)watching;
}

}  // namespace

ForkGuard::ForkGuard(Core& core) : core_(core) {
  watch_forks();
  const std::lock_guard lock(guarded().mutex);
  guarded().cores.push_back(&core_);
}

ForkGuard::~ForkGuard() {
  const std::lock_guard lock(guarded().mutex);
  std::erase(guarded().cores, &core_);
}

int forks_so_far() {
  watch_forks();
  return forks.load(std::memory_order_relaxed);
}

}  // namespace staticrt::alloc
