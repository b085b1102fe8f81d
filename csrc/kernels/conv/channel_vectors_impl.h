// Vectors of neighbouring channels, for kernels that are included once per instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/pointwise/finish_impl.h"

namespace staticrt {
namespace {

constexpr int64_t kLanes = STATICRT_LANES;
using simd::Vec;

template <bool whole>
inline Vec load(const float* p, [[maybe_unused]] int64_t n) {
  if constexpr (whole) return *reinterpret_cast<const Vec*>(p);
  Vec x = {};
  std::memcpy(&x, p, static_cast<size_t>(n) * sizeof(float));
  return x;
}
template <bool whole>
inline void store(float* p, Vec x, [[maybe_unused]] int64_t n) {
  if constexpr (whole) {
    *reinterpret_cast<Vec*>(p) = x;
  } else {
    std::memcpy(p, &x, static_cast<size_t>(n) * sizeof(float));
  }
}

// Of n channels from c on.
template <bool whole>
inline auto finishing(const FinishArgs& f, int64_t c, int64_t n) {
  return Finishing(f, c, [n](const float* p) { return load<whole>(p, n); });
}

// Calls f(whole, c, n) for vectors of channels that cover them all; the last two may overlap.
template <class F>
inline void each_vector(int64_t channels, const F& f) {
  if (channels < kLanes) return f(std::false_type(), 0, channels);
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) f(std::true_type(), c, kLanes);
  if (c < channels) f(std::true_type(), channels - kLanes, kLanes);
}

}  // namespace
}  // namespace staticrt
