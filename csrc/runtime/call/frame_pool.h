// The frames of an executable: a call takes one and gives it back; as many exist as calls ran at once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "device/idle_memory.h"
#include "runtime/call/frame.h"

namespace staticrt {

// The frame that a thread gave back last is kept in a place that other threads seldom touch, so that threads
// that run one program do not contend. A thread whose place is empty takes any idle frame under the lock
// before it makes a new one, so that a change of threads costs no memory. Under WithoutKeptMemory, and while
// a stream of the program's devices is captured, each call has a frame of its own.
class FramePool {
 public:
  FramePool(const BoundProgram& bound, const MemoryOptions& options);
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  std::unique_ptr<Frame> take();
  void give_back(std::unique_ptr<Frame> frame);

  // Calls visit(frames) on all frames that no call holds, those this thread ran last at the end; they are
  // not handed out meanwhile.
  template <class Visit>
  auto with_idle(Visit&& visit) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    gather_idle();
    return visit(idle_);
  }

  // Destroys the idle frames; with `all`, those that calls hold as well, once they are given back.
  void trim(bool all = false);
  int64_t num_frames() const;
  // Calls that found their signature prepared, in frames that are idle or gone.
  int64_t hits() const;

 private:
  static constexpr size_t kPlaces = 16;
  struct alignas(64) Place {  // of a cache line each
    std::atomic<Frame*> frame{nullptr};
  };

  static size_t place_of_thread();
  bool capturing() const;
  std::unique_ptr<Frame> take_idle();
  void gather_idle() const;  // REQUIRES: mutex_ is held
  bool give_back_idle(const DeviceMemory& memory);

  const BoundProgram& bound_;
  const MemoryOptions options_;
  mutable std::array<Place, kPlaces> places_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Frame>> idle_;
  std::atomic<uint64_t> round_{0};  // frames of earlier rounds are destroyed when they are given back
  int64_t num_frames_ = 0;
  int64_t hits_of_gone_frames_ = 0;
  std::optional<IdleMemory> idle_memory_;  // none: the program uses the host's alone
};

}  // namespace staticrt
