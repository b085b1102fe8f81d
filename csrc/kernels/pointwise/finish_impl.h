// FinishArgs on vectors, included once per instruction set.
#pragma once

#include <limits>

#include "kernels/pointwise/vector_impl.h"
#include "kernels/registry/finish.h"

namespace staticrt {
namespace {

inline bool only_clamps(const FinishArgs& f) {
  return !f.scale && !f.shift && !f.residual;
}

// Finishes vectors of the columns from n on; load(p) reads one. A step that is left out computes with numbers
// that change no element, which costs less than a branch.
template <class Load>
class Finishing {
 public:
  Finishing(const FinishArgs& f, int64_t n, const Load& load)
      : load_(load),
        residual_(f.residual),
        scale_(f.scale ? load(f.scale + n) : simd::splat(1)),
        shift_(f.shift ? load(f.shift + n) : -simd::Vec{}),
        low_(f.clamps ? f.low : -kInfinity),
        high_(f.clamps ? f.high : kInfinity) {}

  // Of y, whose first lane is element `at` of the output.
  simd::Vec operator()(simd::Vec y, int64_t at) const {
    y = y * scale_ + shift_;
    if (residual_) y += load_(residual_ + at);
    return clamped(y);
  }
  simd::Vec clamped(simd::Vec y) const { return simd::at_most(simd::at_least(y, low_), high_); }

 private:
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Load load_;
  const float* const residual_;
  const simd::Vec scale_, shift_;
  const float low_, high_;
};

}  // namespace
}  // namespace staticrt
