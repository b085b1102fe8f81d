#include "allocator/simulated/sim_machine.h"

#include <pthread.h>

#include <chrono>

#include "allocator/simulated/driver_sim.h"

namespace staticrt::alloc {
namespace {

struct Machines {
  std::mutex mutex;
  std::set<SimMachine*> alive;
};
Machines& machines() {
  static auto* all = new Machines;
  return *all;
}

void before_fork() {
  machines().mutex.lock();
  for (SimMachine* machine : machines().alive) machine->mutex.before_fork();
}
void after_fork(bool in_child) {
  for (SimMachine* machine : machines().alive) machine->mutex.after_fork(in_child);
  machines().mutex.unlock();
}

}  // namespace

void SimMutex::before_fork() {
  // At most 200 ms: another thread may hold it while it waits for a lock of this thread, such as the GIL.
  for (int tries = 0; tries < 200 && !held_for_fork_; ++tries) {
    held_for_fork_ = try_lock();
    if (!held_for_fork_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void SimMutex::after_fork(bool in_child) {
  if (std::exchange(held_for_fork_, false)) return unlock();
  if (!in_child) return;
  (void)held_.release();  // no thread of the child can unlock it
  held_ = std::make_unique<std::mutex>();
  own(std::thread::id());
  depth_ = 0;
}

SimMachine::SimMachine() {
  static const int watching =
      pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  (void)watching;
  const std::lock_guard lock(machines().mutex);
  machines().alive.insert(this);
}

Addr SimMachine::free_addresses(Addr from, Bytes size_bytes) const {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& [index, device] : devices)
      if (from < device->end() && device->base() < from + size_bytes) {
        from = device->end();
        moved = true;
      }
  }
  return from;
}

SimMachine::~SimMachine() {
  const std::lock_guard lock(machines().mutex);
  machines().alive.erase(this);
}

}  // namespace staticrt::alloc
