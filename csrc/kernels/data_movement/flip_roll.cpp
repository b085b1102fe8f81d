// flip and roll: copies of boxes of the input, read backwards or shifted.
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/flip_native.h>
#include <ATen/ops/roll_native.h>
#include <c10/core/WrapDimMinimal.h>

#include <array>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/registry/bind.h"
#include "kernels/registry/prepare_args.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

// Elements of one box, from the input to the output. Strides and offsets are bytes; strides may be negative.
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
    if constexpr (kElement == 1 || kElement == 4 || kElement == 8) {
      using Unit = std::conditional_t<kElement == 4, int32_t, int64_t>;
      typedef Unit Units __attribute__((vector_size(16)));
      constexpr auto kCount = static_cast<int64_t>(16 / kElement);
      int64_t i = 0;
#pragma GCC unroll 4
      for (; i + kCount <= size; i += kCount) {
        Units x;
        std::memcpy(&x, end - (i + kCount) * static_cast<int64_t>(kElement), sizeof(x));
        if constexpr (kElement == 4) {
          x = __builtin_shufflevector(x, x, 3, 2, 1, 0);
        } else {
          x = __builtin_shufflevector(x, x, 1, 0);
        }
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
      const int64_t whole = turn_row<kElement>(from + kStep, to, size);
      from -= whole * kStep;
      to += whole * kStep;
      size -= whole;
    }
    for (int64_t i = 0; i < size; ++i) std::memcpy(to + i * d.to, from + i * d.from, kElement);
  }
};
using Boxes = std::vector<Box>;

struct Layout {
  at::IntArrayRef sizes, from_strides, to_strides;  // elements
  int64_t element;                                  // bytes
};

Boxes flip_boxes(const Layout& l, at::IntArrayRef dims) {
  const auto rank = static_cast<int64_t>(l.sizes.size());
  const auto flipped = at::dim_list_to_bitset(dims, rank);
  Box box;
  box.element = l.element;
  for (int64_t d = 0; d < rank; ++d) {
    int64_t from = l.from_strides[d] * l.element;
    if (flipped[d]) {
      box.from_offset += (l.sizes[d] - 1) * from;
      from = -from;
    }
    box.add(l.sizes[d], from, l.to_strides[d] * l.element);
  }
  box.finish();
  return {std::move(box)};
}

// Every rolled dimension cuts each box in two.
Boxes roll_boxes(const Layout& l, at::IntArrayRef shifts, at::IntArrayRef dims) {
  struct Cut {
    Ints start, size;  // in the output
  };
  const auto rank = static_cast<int64_t>(l.sizes.size());
  Ints shift_of(rank, 0);
  for (size_t k = 0; k < dims.size(); ++k) {
    const int64_t d = c10::maybe_wrap_dim(dims[k], rank);
    const int64_t size = l.sizes[d];
    shift_of[d] = ((shift_of[d] + shifts[k] % size) % size + size) % size;
  }
  std::vector<Cut> cuts{{Ints(rank, 0), Ints(l.sizes.begin(), l.sizes.end())}};
  for (int64_t d = 0; d < rank; ++d) {
    if (shift_of[d] == 0) continue;
    std::vector<Cut> finer;
    for (const Cut& cut : cuts) {
      finer.push_back(cut);
      finer.back().size[d] = shift_of[d];
      finer.push_back(cut);
      finer.back().start[d] = shift_of[d];
      finer.back().size[d] = l.sizes[d] - shift_of[d];
    }
    cuts = std::move(finer);
  }
  Boxes boxes;
  for (const Cut& cut : cuts) {
    Box box;
    box.element = l.element;
    for (int64_t d = 0; d < rank; ++d) {
      const int64_t from = l.from_strides[d] * l.element;
      const int64_t to = l.to_strides[d] * l.element;
      const int64_t read = (cut.start[d] - shift_of[d] + l.sizes[d]) % l.sizes[d];
      box.from_offset += read * from;
      box.to_offset += cut.start[d] * to;
      box.add(cut.size[d], from, to);
    }
    box.finish();
    boxes.push_back(std::move(box));
  }
  return boxes;
}

void flip_into(const T& input, at::IntArrayRef dims, T& out) {
  const T self = input.resolve_conj().resolve_neg();
  if (c10::isBarebonesUnsignedType(self.scalar_type()) || c10::isFloat8Type(self.scalar_type())) {
    n::flip(self, dims);  // raises for some of these
  }
  resize_like(out, self);
  const auto element = static_cast<int64_t>(self.element_size());
  const Boxes boxes = flip_boxes({self.sizes(), self.strides(), out.strides(), element}, dims);
  if (self.numel() == 0) return;
  for (const Box& box : boxes) {
    run_tiles(box.grid(), at::get_num_threads(), [&](const Tile& tile) {
      box.copy(static_cast<const char*>(self.const_data_ptr()), static_cast<char*>(out.mutable_data_ptr()),
               tile);
    });
  }
}

// As eager: a cat of the two parts, which decides the strides.
void roll_one(const T& self, int64_t shift, int64_t dim, T& out) {
  if (self.numel() == 0) return resize_like(out, self);
  const int64_t size = self.size(dim);
  const int64_t start = ((size - shift % size) % size + size) % size;
  const std::array<T, 2> parts{self.narrow(dim, start, size - start), self.narrow(dim, 0, start)};
  empty_out(out);
  at::cpu::cat_outf(at::ITensorListRef(at::TensorList(parts)), dim, out);
}

std::optional<PreparedCall> prepare_boxes(const PrepareRequest& request,
                                          Boxes (*cut)(const PrepareRequest&, const Layout&)) {
  const TensorOperand* x = tensor_or_null(request, 0);
  const TensorOperand& out = request.outs[0];
  if (!x || x->meta.dtype != out.meta.dtype || out.meta.sizes != x->meta.sizes) return std::nullopt;
  struct Copies {
    Boxes boxes;
    Operand from, to;
    int num_threads;
    std::vector<Grid> grids() const {
      std::vector<Grid> all;
      for (const Box& box : boxes) all.push_back(box.grid());
      return all;
    }
    int operator()(char* const* bases, char*) const {
      for (const Box& box : boxes) {
        run_tiles(box.grid(), num_threads,
                  [&](const Tile& tile) { box.copy(from.at(bases), to.at(bases), tile); });
      }
      return kRan;
    }
  };
  const auto element = static_cast<int64_t>(c10::elementSize(out.meta.dtype));
  Copies copies{{}, x->where, out.where, request.num_threads};
  if (out.meta.numel() > 0) {
    copies.boxes = cut(request, {x->meta.sizes, x->meta.strides, out.meta.strides, element});
  }
  return call_with(std::move(copies), "copy");
}

Boxes flipped(const PrepareRequest& request, const Layout& layout) {
  return flip_boxes(layout, ints_or_empty(request, 1));
}

}  // namespace

SRT_OUT_VARIANT("aten::flip", flip_out) {
  flip_into(op.tensor(0), op.ints(1), op.out());
}
SRT_OUT_VARIANT("aten::fliplr", fliplr_out) {
  TORCH_CHECK(op.tensor(0).dim() >= 2, "Input must be >= 2-d.");
  flip_into(op.tensor(0), {1}, op.out());
}
SRT_OUT_VARIANT("aten::flipud", flipud_out) {
  TORCH_CHECK(op.tensor(0).dim() >= 1, "Input must be >= 1-d.");
  flip_into(op.tensor(0), {0}, op.out());
}
SRT_OUT_VARIANT("aten::roll", roll_out) {
  const T self = op.tensor(0).resolve_conj().resolve_neg();
  const Ints shifts = op.ints(1);
  const Ints dims = op.ints(2);
  if (dims.empty() && shifts.size() == 1) {
    roll_one(self.contiguous().view(-1), shifts[0], 0, op.out());
    return resize(op.out(), self.sizes());
  }
  if (dims.size() != shifts.size() || dims.empty()) {
    n::roll(self, shifts, dims);  // raises
    return;
  }
  const size_t last = dims.size() - 1;
  const T before =
      last == 0 ? self
                : n::roll(self, at::IntArrayRef(shifts.data(), last), at::IntArrayRef(dims.data(), last));
  roll_one(before, shifts[last], dims[last], op.out());
}

SRT_PREPARE("aten::flip", prepare_flip) {
  return prepare_boxes(request, flipped);
}
SRT_PREPARE("aten::fliplr", prepare_fliplr) {
  return prepare_boxes(request, [](const PrepareRequest&, const Layout& l) { return flip_boxes(l, {1}); });
}
SRT_PREPARE("aten::flipud", prepare_flipud) {
  return prepare_boxes(request, [](const PrepareRequest&, const Layout& l) { return flip_boxes(l, {0}); });
}
SRT_PREPARE("aten::roll", prepare_roll) {
  if (ints_or_empty(request, 2).empty()) return std::nullopt;
  return prepare_boxes(request, [](const PrepareRequest& r, const Layout& l) {
    return roll_boxes(l, ints_or_empty(r, 1), ints_or_empty(r, 2));
  });
}

}  // namespace staticrt
