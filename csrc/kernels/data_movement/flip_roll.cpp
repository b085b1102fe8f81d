// flip and roll: copies of boxes of the input, read backwards or shifted.
#include <ATen/Parallel.h>
#include <ATen/WrapDimUtilsMulti.h>
#include <ATen/ops/cat_cpu_dispatch.h>
#include <ATen/ops/flip_native.h>
#include <ATen/ops/roll_native.h>
#include <c10/core/WrapDimMinimal.h>

#include <array>
#include <utility>

#include "kernels/data_movement/boxes.h"
#include "kernels/registry/bind.h"
#include "kernels/registry/prepare_args.h"
#include "kernels/registry/sizing.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;

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
  TORCH_CHECK(out.scalar_type() == self.scalar_type(), "flip of ", self.scalar_type(), " into ",
              out.scalar_type());
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
