// PlanArena: one buffer whose base address survives re-planning.
//
// Addresses are reserved once, at the largest size; pages are mapped for the current plan only. So graphs
// captured over it stay valid when the plan shrinks or grows, and between runs its pages can be given away.
// On a driver without virtual memory the buffer has its largest size from the first resize on.
//
// Arenas count against the device's limit and make room like any growth. One arena belongs to one user at
// a time; different arenas may be used from different threads.
#pragma once

#include <map>

#include "allocator/core/allocator.h"

namespace staticrt::alloc {

class PlanArena {
 public:
  explicit PlanArena(DeviceAllocator& device);
  ~PlanArena();
  PlanArena(const PlanArena&) = delete;
  PlanArena& operator=(const PlanArena&) = delete;

  // Reserves addresses for up to `max_bytes`. REQUIRES: called once, before resize.
  Status reserve(Bytes max_bytes);
  // Maps at least `bytes` from the base on and unmaps whole pages behind it. Waits for `stream`, which
  // last used the arena, if pages leave. oom: nothing has changed. Ends hibernation.
  Status resize(Bytes bytes, StreamId stream = kDefaultStream);
  // Unmaps all pages after `stream`'s work has ended; the base stays. Without virtual memory: unsupported.
  Status hibernate(StreamId stream = kDefaultStream);
  Status wake() { return resize(size_); }

  Addr base() const { return base_; }
  Bytes size() const { return size_; }      // as last asked for
  Bytes mapped() const { return mapped_; }  // 0 while hibernated
  bool hibernated() const { return mapped_ == 0 && size_ != 0; }

 private:
  void release();
  Status grow(Bytes bytes);
  Status shrink(Bytes bytes, StreamId stream);
  void account(Bytes before);

  Core& core_;
  Addr base_ = kNullAddr;
  Bytes max_ = 0, size_ = 0, mapped_ = 0;
  std::map<Addr, Page> pages_;
};

}  // namespace staticrt::alloc
