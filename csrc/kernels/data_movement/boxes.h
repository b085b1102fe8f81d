// Copies of boxes of elements between tensors of any strides.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/pointwise/row_copies.h"
#include "kernels/registry/prepare_args.h"

namespace staticrt {

// Elements of one box, from one tensor to another. Strides and offsets are bytes; strides may be negative.
struct Box {
  int64_t element = 1;  // bytes
  int64_t from_offset = 0;
  int64_t to_offset = 0;
  struct Dim {
    int64_t size, from, to;
  };
  c10::SmallVector<Dim, 6> dims;  // the output's longest strides first, neighbours merged

  void add(int64_t size, int64_t from, int64_t to) {
    if (size != 1) dims.push_back({size, from, to});
  }

  void finish() {
    std::stable_sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.to > b.to; });
    c10::SmallVector<Dim, 6> merged;
    for (const Dim& d : dims) {
      if (!merged.empty() && merged.back().from == d.from * d.size && merged.back().to == d.to * d.size) {
        merged.back() = {merged.back().size * d.size, d.from, d.to};
      } else {
        merged.push_back(d);
      }
    }
    dims = std::move(merged);
  }

  // Steps of the outermost dimension.
  Grid grid() const {
    if (dims.empty()) return {};
    int64_t elements = 1;
    for (size_t k = 1; k < dims.size(); ++k) elements *= dims[k].size;
    const bool runs = dims.back().from == element && dims.back().to == element;
    return {.rows = dims[0].size, .cell_ns = static_cast<double>(elements) * (runs ? 0.25 : 1)};
  }
  void copy(const char* from, char* to, const Tile& tile) const {
    from += from_offset;
    to += to_offset;
    if (dims.empty()) return copy_dim(0, 0, from, to);
    copy_dim(0, tile.row_end - tile.row_begin, from + tile.row_begin * dims[0].from,
             to + tile.row_begin * dims[0].to);
  }

 private:
  // `size` steps of dimension k.
  void copy_dim(size_t k, int64_t size, const char* from, char* to) const {
    if (k == dims.size()) {
      std::memcpy(to, from, static_cast<size_t>(element));
      return;
    }
    const Dim& d = dims[k];
    if (k + 1 < dims.size()) {
      for (int64_t i = 0; i < size; ++i) copy_dim(k + 1, dims[k + 1].size, from + i * d.from, to + i * d.to);
      return;
    }
    if (d.from == element && d.to == element) {
      std::memcpy(to, from, static_cast<size_t>(size * element));
      return;
    }
    switch (element) {
      case 1:
        return copy_row<1>(d, size, from, to);
      case 2:
        return copy_row<2>(d, size, from, to);
      case 4:
        return copy_row<4>(d, size, from, to);
      case 8:
        return copy_row<8>(d, size, from, to);
      default:
        return copy_row<16>(d, size, from, to);
    }
  }
  // Elements of a row that end at `end`, backwards, a vector at a time; how many those were.
  template <size_t kElement>
  static int64_t turn_row(const char* end, char* to, int64_t size) {
    if constexpr (kElement == 1 || kElement == 8) {
      typedef int64_t Pair __attribute__((vector_size(16)));
      constexpr auto kCount = static_cast<int64_t>(16 / kElement);
      int64_t i = 0;
#pragma GCC unroll 4
      for (; i + kCount <= size; i += kCount) {
        Pair x;
        std::memcpy(&x, end - (i + kCount) * static_cast<int64_t>(kElement), sizeof(x));
        x = __builtin_shufflevector(x, x, 1, 0);
        if constexpr (kElement == 1) {
          for (int half = 0; half < 2; ++half)
            x[half] = static_cast<int64_t>(__builtin_bswap64(static_cast<uint64_t>(x[half])));
        }
        std::memcpy(to + i * static_cast<int64_t>(kElement), &x, sizeof(x));
      }
      return i;
    }
    return 0;
  }
  template <size_t kElement>
  static void copy_row(const Dim& d, int64_t size, const char* from, char* to) {
    constexpr auto kStep = static_cast<int64_t>(kElement);
    if (d.from == -kStep && d.to == kStep) {
      if constexpr (kElement == sizeof(float)) {
        const char* first = from - (size - 1) * kStep;
        return row_copies().reverse(reinterpret_cast<float*>(to), reinterpret_cast<const float*>(first),
                                    size);
      }
      const int64_t whole = turn_row<kElement>(from + kStep, to, size);
      from -= whole * kStep;
      to += whole * kStep;
      size -= whole;
    }
    for (int64_t i = 0; i < size; ++i) std::memcpy(to + i * d.to, from + i * d.from, kElement);
  }
};

}  // namespace staticrt
