// fork(2): what a child process may do with the allocators it was born with.
//
// Host allocators work on: their locks are taken before the fork, so that no other thread, which the child
// does not have, holds one or is half-way through a change. Devices do not survive a fork (CUDA says so, and
// the pages of a simulated one are shared): their drivers refuse the child's calls.
#pragma once

namespace staticrt::alloc {

class Core;

// While it lives, forks wait until nobody is inside the allocator.
class ForkGuard {
 public:
  explicit ForkGuard(Core& core);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

 private:
  Core& core_;
};

// How many forks lie between the first process and this one.
int forks_so_far();

}  // namespace staticrt::alloc
