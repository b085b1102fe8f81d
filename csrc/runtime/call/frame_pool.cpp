#include "runtime/call/frame_pool.h"

namespace staticrt {

Frame::Frame(const BoundProgram& bound, const MemoryOptions& options)
    : memory(bound, options), outputs(bound) {
  const Program& program = *bound.program;
  slots.resize(program.num_values());
  for (size_t i = 0; i < program.constants().size(); ++i) {
    slots[program.first_constant() + i] = program.constants()[i];
  }
}

FramePool::FramePool(const BoundProgram& bound, const MemoryOptions& options)
    : bound_(bound), options_(options) {
  if (bound.memories.size() > 1)  // the first is the host
    idle_memory_.emplace([this](const DeviceMemory& memory) { return give_back_idle(memory); });
}

FramePool::~FramePool() {
  idle_memory_.reset();
  for (const Place& place : places_) delete place.frame.load();
}

// Threads are numbered as they come, from 1; more than there are places share some.
size_t FramePool::place_of_thread() {
  static std::atomic<size_t> threads{0};
  static constinit thread_local size_t number = 0;
  if (number == 0) number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number % kPlaces;
}

// Memory allocated while a stream is captured belongs to the graph.
bool FramePool::capturing() const {
  for (size_t i = 1; i < bound_.memories.size(); ++i)  // the first is the host
    if (bound_.memories[i]->capturing()) return true;
  return false;
}

std::unique_ptr<Frame> FramePool::take() {
  if (WithoutKeptMemory::open() || capturing()) [[unlikely]] {
    auto frame = std::make_unique<Frame>(bound_, options_);
    frame->kept = false;
    return frame;
  }
  const size_t place = place_of_thread();
  if (Frame* frame = places_[place].frame.exchange(nullptr, std::memory_order_acquire))
    return std::unique_ptr<Frame>(frame);
  std::unique_ptr<Frame> frame = take_idle();
  if (!frame) {
    frame = std::make_unique<Frame>(bound_, options_);
    frame->round = round_.load(std::memory_order_relaxed);
  }
  frame->place = place;
  return frame;
}

// Null if a new one is to be made, which is counted.
std::unique_ptr<Frame> FramePool::take_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) gather_idle();
  if (idle_.empty()) {
    ++num_frames_;
    return nullptr;
  }
  std::unique_ptr<Frame> frame = std::move(idle_.back());
  idle_.pop_back();
  return frame;
}

void FramePool::give_back(std::unique_ptr<Frame> frame) {
  const bool is_old = frame->round != round_.load(std::memory_order_relaxed);
  if (!frame->kept || is_old) [[unlikely]] {
    const std::lock_guard<std::mutex> lock(mutex_);
    hits_of_gone_frames_ += frame->hits;
    if (frame->kept) --num_frames_;
    return;
  }
  Frame* none = nullptr;
  if (places_[frame->place].frame.compare_exchange_strong(none, frame.get(), std::memory_order_release,
                                                          std::memory_order_relaxed)) {
    (void)frame.release();
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(frame));
}

void FramePool::gather_idle() const {
  const size_t own = place_of_thread();
  for (size_t i = 1; i <= kPlaces; ++i) {
    std::atomic<Frame*>& place = places_[(own + i) % kPlaces].frame;
    if (Frame* frame = place.exchange(nullptr, std::memory_order_acquire)) idle_.emplace_back(frame);
  }
}

bool FramePool::give_back_idle(const DeviceMemory& memory) {
  return with_idle([&](const auto& idle) {
    bool any = false;
    for (const auto& frame : idle) {
      any |= frame->arenas.give_back_on(memory);
      any |= frame->memory.give_back_on(memory);
    }
    return any;
  });
}

void FramePool::trim(bool all) {
  if (all) round_.fetch_add(1, std::memory_order_relaxed);
  std::vector<std::unique_ptr<Frame>> idle;  // destroyed after the lock is gone
  const std::lock_guard<std::mutex> lock(mutex_);
  gather_idle();
  idle.swap(idle_);
  num_frames_ -= static_cast<int64_t>(idle.size());
  for (const auto& frame : idle) hits_of_gone_frames_ += frame->hits;
}

int64_t FramePool::num_frames() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return num_frames_;
}

int64_t FramePool::hits() const {
  return with_idle([this](const auto& idle) {
    int64_t hits = hits_of_gone_frames_;
    for (const auto& frame : idle) hits += frame->hits;
    return hits;
  });
}

}  // namespace staticrt
