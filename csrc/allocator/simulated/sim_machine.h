// What simulated devices of one machine share: a lock, the numbers of streams, and which device can access
// the memory of which.
//
// Thread safety: the mutex. The devices hold it around every call.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "allocator/simulated/sim_streams.h"

namespace staticrt::alloc {

class SimDriver;

// A recursive mutex that can be locked in a child of fork(2). A std::recursive_mutex cannot: a thread that
// does not exist in the child may hold it, and it identifies its owner by a number that a fork changes.
class SimMutex {
 public:
  void lock() {
    if (!mine()) held_->lock();
    take();
  }
  bool try_lock() {
    if (!mine() && !held_->try_lock()) return false;
    take();
    return true;
  }
  void unlock() {
    if (--depth_ > 0) return;
    own(std::thread::id());
    held_->unlock();
  }
  // Around a fork: the thread that forks holds the mutex if it gets it in time, so that the child finds
  // nothing half changed.
  void before_fork();
  void after_fork(bool in_child);

 private:
  // A thread finds its own number only if it has put it there.
  bool mine() const { return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  void own(std::thread::id owner) { owner_.store(owner, std::memory_order_relaxed); }
  void take() {
    own(std::this_thread::get_id());
    ++depth_;
  }
  std::unique_ptr<std::mutex> held_ = std::make_unique<std::mutex>();
  std::atomic<std::thread::id> owner_;
  int depth_ = 0;
  bool held_for_fork_ = false;
};

struct SimMachine {
  SimMachine();
  ~SimMachine();
  SimMachine(const SimMachine&) = delete;
  SimMachine& operator=(const SimMachine&) = delete;

  SimMutex mutex;
  SimClocks clocks;
  std::map<int, SimDriver*> devices;               // alive, by index
  std::set<std::pair<int, int>> unreachable = {};  // pairs without a way between them, the lower index first

  // The lowest address from `from` on where `size_bytes` belong to no device. REQUIRES: the mutex.
  Addr free_addresses(Addr from, Bytes size_bytes) const;
  bool reaches(int device, int other) const { return unreachable.count(std::minmax(device, other)) == 0; }
};

}  // namespace staticrt::alloc
