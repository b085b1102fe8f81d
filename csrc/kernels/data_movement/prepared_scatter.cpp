// slice_scatter and select_scatter: what traces have for writes into a part of a tensor. If the old tensor is
// not read later, the new one takes its bytes, and only the part is written.
#include <c10/core/WrapDimMinimal.h>

#include "kernels/data_movement/boxes.h"

namespace staticrt {
namespace {

struct Scatter {
  Operand self, source, out;
  Box all, part;  // from self and from the source
  bool stays;     // the part is unchanged
  int num_threads;

  std::vector<Grid> grids() const {
    return stays ? std::vector<Grid>{all.grid()} : std::vector<Grid>{all.grid(), part.grid()};
  }

  int operator()(char* const* bases, char*) const {
    if (self.at(bases) != out.at(bases)) run(all, self.at(bases), out.at(bases));
    if (!stays) run(part, source.at(bases), out.at(bases));
    return kRan;
  }
  void run(const Box& box, const char* from, char* to) const {
    run_tiles(box.grid(), num_threads, [&](const Tile& tile) { box.copy(from, to, tile); });
  }
};

Box box_of(const TensorMeta& from, const Ints& to_strides, int64_t to_offset) {
  const auto element = static_cast<int64_t>(c10::elementSize(from.dtype));
  Box box;
  box.element = element;
  box.to_offset = to_offset * element;
  for (size_t d = 0; d < from.sizes.size(); ++d)
    box.add(from.sizes[d], from.strides[d] * element, to_strides[d] * element);
  box.finish();
  return box;
}

// hole: the part of the output that the source is written to, as a view of it.
std::optional<PreparedCall> prepare_scatter(PrepareRequest& request, const TensorMeta& hole, int64_t offset) {
  const TensorOperand& self = request.args[0].tensors[0];
  const TensorOperand& source = request.args[1].tensors[0];
  const TensorOperand& out = request.outs[0];
  if (source.meta.dtype != out.meta.dtype || source.meta.sizes != hole.sizes || hole.numel() == 0)
    return std::nullopt;
  const auto element = static_cast<int64_t>(c10::elementSize(out.meta.dtype));
  // `x[i] += y` writes the part twice: the sum writes it, and is then assigned to it.
  const bool stays = source.where.base == self.where.base &&
                     source.where.offset_bytes == self.where.offset_bytes + offset * element &&
                     source.meta.strides == hole.strides && self.meta.strides == out.meta.strides;
  const Scatter scatter{self.where,
                        source.where,
                        out.where,
                        box_of(self.meta, out.meta.strides, 0),
                        box_of(source.meta, hole.strides, offset),
                        stays,
                        request.num_threads};
  PreparedCall call = call_in_place(scatter, "copy", request);
  if (stays && self.where.offset_bytes == out.where.offset_bytes)
    call.reuses = {{self.where.base, out.where.base}};
  return call;
}

// The dimension argument of both operators, if this kernel covers the call.
std::optional<size_t> scatter_dim(const PrepareRequest& request) {
  const TensorOperand* self = tensor_or_null(request, 0);
  const TensorOperand& out = request.outs[0];
  if (!self || !tensor_or_null(request, 1) || self->meta.dtype != out.meta.dtype ||
      self->meta.sizes != out.meta.sizes || out.meta.sizes.empty()) {
    return std::nullopt;
  }
  const auto rank = static_cast<int64_t>(out.meta.sizes.size());
  const int64_t dim = int_or(request, 2, 0);
  if (dim < -rank || dim >= rank) return std::nullopt;
  return static_cast<size_t>(dim < 0 ? dim + rank : dim);
}

// An integer argument, or what None stands for; nullopt for anything else.
std::optional<int64_t> integer_or(const PrepareRequest& request, size_t i, int64_t otherwise) {
  if (i >= request.args.size() || request.args[i].is_none()) return otherwise;
  const c10::IValue* value = value_or_null(request, i);
  return value && value->isInt() ? std::optional<int64_t>(value->toInt()) : std::nullopt;
}

}  // namespace

SRT_PREPARE("aten::slice_scatter", prepare_slice_scatter) {
  const auto dim = scatter_dim(request);
  if (!dim) return std::nullopt;
  TensorMeta hole = request.outs[0].meta;
  const int64_t size = hole.sizes[*dim];
  const auto first = integer_or(request, 3, 0);
  const auto last = integer_or(request, 4, size);
  const auto step = integer_or(request, 5, 1);
  if (!first || !last || !step || *step < 1) return std::nullopt;
  const auto place = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t begin = place(*first);
  const int64_t end = std::max(begin, place(*last));
  const int64_t stride = hole.strides[*dim];
  hole.sizes[*dim] = (end - begin) / *step + ((end - begin) % *step != 0);
  hole.strides[*dim] = stride * std::min(*step, size);
  return prepare_scatter(request, hole, begin * stride);
}

SRT_PREPARE("aten::select_scatter", prepare_select_scatter) {
  const auto dim = scatter_dim(request);
  if (!dim) return std::nullopt;
  TensorMeta hole = request.outs[0].meta;
  const int64_t size = hole.sizes[*dim];
  const auto index = integer_or(request, 3, 0);
  if (!index || *index < -size || *index >= size) return std::nullopt;
  const int64_t offset = (*index < 0 ? *index + size : *index) * hole.strides[*dim];
  const auto at = static_cast<std::ptrdiff_t>(*dim);
  hole.sizes.erase(hole.sizes.begin() + at);
  hole.strides.erase(hole.strides.begin() + at);
  return prepare_scatter(request, hole, offset);
}

}  // namespace staticrt
