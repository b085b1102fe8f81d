// fork(2): what a child process may do with the allocators that it inherits.
//
// Host allocators keep working: their locks are taken before the fork, so that no thread that is missing in
// the child holds one or has half made a change. Devices do not survive a fork (CUDA does not support it, and
// the pages of a simulated one are shared): their drivers refuse the child's calls.
#pragma once

namespace staticrt::alloc {

class Core;

// While it exists, forks wait until no thread is inside the allocator.
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
