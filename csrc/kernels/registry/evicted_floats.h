// Buffers of a measurement.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/tuning.h"

namespace staticrt {

// Floats of which each run of a measurement takes others: in a model, other layers have evicted weights and
// outputs from the second-level cache, and kernels that find them there are not the fastest ones elsewhere.
class EvictedFloats {
 public:
  // is_evicted: off for what each run takes again, such as an input that the operator before has just
  // written.
  explicit EvictedFloats(int64_t floats, bool is_evicted = true)
      : step_(std::max<int64_t>(1, (floats + kLine - 1) / kLine) * kLine),
        count_(is_evicted ? std::max<int64_t>(1, tuning::kEvictingFloats / step_) : 1),
        numbers_(static_cast<size_t>(step_ * count_ + kLine), 0.5F) {
    first_ = numbers_.data() +
             (kLine - reinterpret_cast<uintptr_t>(numbers_.data()) / sizeof(float) % kLine) % kLine;
  }
  char* next() { return reinterpret_cast<char*>(first_ + step_ * (run_++ % count_)); }

 private:
  static constexpr int64_t kLine = 16;  // floats of a cache line
  int64_t step_, count_, run_ = 0;
  std::vector<float> numbers_;
  float* first_ = nullptr;
};

}  // namespace staticrt
