// Indices of either width, and elements fetched by them.
#pragma once

#include <c10/core/ScalarType.h>

#include <algorithm>
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

// Rows of a tile, each of one element: to[i] = from[o, index[i]] where o counts runs of `run` rows of the
// result and of `length` elements of the source. False if an index is out of range.
template <size_t size>
bool gather_along(const char* from, char* to, const Indices& index, char* const* bases, int64_t length,
                  int64_t run, const Tile& tile) {
  constexpr auto kSize = static_cast<int64_t>(size);
  const auto gather = [&](const auto* at) {
    bool in_range = true;
    for (int64_t i = tile.row_begin; i < tile.row_end;) {
      const int64_t end = std::min(tile.row_end, (i / run + 1) * run);
      const char* line = from + i / run * length * kSize;
      for (; i < end; ++i) {
        const int64_t k = at[i];
        const bool is_valid = k >= 0 && k < length;
        in_range &= is_valid;
        std::memcpy(to + i * kSize, line + (is_valid ? k : 0) * kSize, size);
      }
    }
    return in_range;
  };
  return index.wide ? gather(reinterpret_cast<const int64_t*>(index.where.at(bases)))
                    : gather(reinterpret_cast<const int32_t*>(index.where.at(bases)));
}

}  // namespace staticrt
