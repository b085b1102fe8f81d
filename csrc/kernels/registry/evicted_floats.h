// Buffers of a measurement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "common/tuning.h"

namespace staticrt {

// While one lives, its thread keeps the buffers of measurements for the next ones: the kernel takes longer to
// find and clear their pages than most measurements take. The outermost one frees them.
class MeasuringMemory {
 public:
  MeasuringMemory() { ++depth_; }
  ~MeasuringMemory() {
    if (--depth_ == 0) free_ = {};
  }
  MeasuringMemory(const MeasuringMemory&) = delete;
  MeasuringMemory& operator=(const MeasuringMemory&) = delete;

  // Floats of any value but subnormal ones, with which processors compute slowly.
  static std::vector<float> take(size_t floats) {
    const auto found = std::find_if(free_.begin(), free_.end(),
                                    [&](const auto& f) { return is_kept(floats) && f.size() >= floats; });
    if (found == free_.end()) return std::vector<float>(floats, 0.5F);
    std::vector<float> taken = std::move(*found);
    free_.erase(found);
    return taken;
  }
  static void give_back(std::vector<float> floats) {
    if (depth_ > 0 && is_kept(floats.size())) free_.push_back(std::move(floats));
  }

 private:
  // Smaller ones cost little, and the largest would take much memory.
  static bool is_kept(size_t floats) {
    return floats >= tuning::kEvictingFloats / 2 && floats <= 2 * tuning::kEvictingFloats;
  }

  static inline thread_local int depth_ = 0;
  static inline thread_local std::vector<std::vector<float>> free_;
};

// Buffers of which each run of a measurement takes others: in a model, other layers have evicted weights and
// outputs from the second-level cache, and kernels that find them there are not the fastest ones elsewhere.
class EvictedFloats {
 public:
  // floats: sizes of the buffers that a run takes. They lie in one memory, as far apart as it allows, because
  // clearing the pages of a memory for each would take longer than most measurements. is_evicted: off for
  // what each run takes again, such as an input that the operator before has just written.
  explicit EvictedFloats(std::initializer_list<int64_t> floats, bool is_evicted = true)
      : step_(lines(std::max(floats))), count_(is_evicted ? tuning::kEvictingFloats / step_ : 0) {
    // Where one buffer alone evicts the others, each has a place of its own.
    const auto buffers = static_cast<int64_t>(floats.size());
    const bool is_shared = count_ >= buffers;
    if (!is_shared) count_ = 0;
    int64_t all = step_ * count_;
    for (const int64_t size : floats) {
      const auto index = static_cast<int64_t>(places_.size());
      places_.push_back(is_shared ? index * count_ / buffers * step_ : all);
      if (!is_shared) all += lines(size);
    }
    numbers_ = MeasuringMemory::take(static_cast<size_t>(all + kLine));
    first_ = numbers_.data() +
             (kLine - reinterpret_cast<uintptr_t>(numbers_.data()) / sizeof(float) % kLine) % kLine;
  }
  ~EvictedFloats() { MeasuringMemory::give_back(std::move(numbers_)); }
  EvictedFloats(const EvictedFloats&) = delete;
  EvictedFloats& operator=(const EvictedFloats&) = delete;
  // From here on another run takes its buffers.
  void advance() { ++run_; }
  char* buffer(size_t index = 0) {
    const int64_t place = places_[index];
    const int64_t moved = count_ == 0 ? place : (place + run_ * step_) % (count_ * step_);
    return reinterpret_cast<char*>(first_ + moved);
  }

 private:
  static int64_t lines(int64_t floats) { return std::max<int64_t>(1, (floats + kLine - 1) / kLine) * kLine; }
  static constexpr int64_t kLine = 16;  // floats of a cache line
  int64_t step_, count_, run_ = 0;
  std::vector<int64_t> places_;
  std::vector<float> numbers_;
  float* first_ = nullptr;
};

}  // namespace staticrt
