// Indices of either width, and elements fetched by them.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstring>

#include "kernels/registry/prepare_args.h"

namespace staticrt {

inline bool is_index(const TensorMeta& t) {
  return (t.dtype == at::ScalarType::Long || t.dtype == at::ScalarType::Int) && t.is_contiguous();
}

struct Indices {
  Operand where;
  bool wide;
  int64_t operator()(char* const* bases, int64_t i) const {
    return wide ? reinterpret_cast<const int64_t*>(where.at(bases))[i]
                : reinterpret_cast<const int32_t*>(where.at(bases))[i];
  }
};

inline Indices indices_of(const TensorOperand& t) {
  return {t.where, t.meta.dtype == at::ScalarType::Long};
}

// to[i] = from[index[i]], in units of `size` bytes at any alignment.
template <size_t size>
void gather_elements(const char* from, char* to, const Indices& index, char* const* bases, int64_t begin,
                     int64_t end) {
  constexpr auto kSize = static_cast<int64_t>(size);
  const auto gather = [&](const auto* at) {
    for (int64_t i = begin; i < end; ++i) std::memcpy(to + i * kSize, from + at[i] * kSize, size);
  };
  if (index.wide) {
    gather(reinterpret_cast<const int64_t*>(index.where.at(bases)));
  } else {
    gather(reinterpret_cast<const int32_t*>(index.where.at(bases)));
  }
}

}  // namespace staticrt
