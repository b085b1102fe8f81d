// Ops that return a list of views.
#include <ATen/ops/atleast_1d_native.h>
#include <ATen/ops/atleast_2d_native.h>
#include <ATen/ops/atleast_3d_native.h>
#include <ATen/ops/broadcast_tensors_native.h>
#include <ATen/ops/chunk_native.h>
#include <ATen/ops/dsplit_native.h>
#include <ATen/ops/hsplit_native.h>
#include <ATen/ops/meshgrid_native.h>
#include <ATen/ops/split_native.h>
#include <ATen/ops/split_with_sizes_native.h>
#include <ATen/ops/tensor_split_native.h>
#include <ATen/ops/unbind_native.h>
#include <ATen/ops/unsafe_chunk_native.h>
#include <ATen/ops/unsafe_split_native.h>
#include <ATen/ops/unsafe_split_with_sizes_native.h>
#include <ATen/ops/vsplit_native.h>

#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace n = at::native;
using List = std::vector<at::Tensor>;
using Sections = List(const at::Tensor&, int64_t);
using SplitAt = List(const at::Tensor&, at::IntArrayRef);
using OneView = at::Tensor(const at::Tensor&);
using ListView = List(at::TensorList);

const RegisterKernels kSplits{
    native<n::split>("aten::split.Tensor"),
    native<n::split_symint>("aten::split.sizes"),
    native<n::split_with_sizes>("aten::split_with_sizes"),
    native<n::unsafe_split>("aten::unsafe_split.Tensor"),
    native<n::unsafe_split_with_sizes>("aten::unsafe_split_with_sizes"),
    native<n::chunk>("aten::chunk"),
    native<n::unsafe_chunk>("aten::unsafe_chunk"),
    native<n::tensor_split_sections_symint>("aten::tensor_split.sections"),
    native<n::tensor_split_indices_symint>("aten::tensor_split.indices"),
    native<n::tensor_split>("aten::tensor_split.tensor_indices_or_sections"),
    native<as<Sections>(n::hsplit)>("aten::hsplit.int"),
    native<as<SplitAt>(n::hsplit)>("aten::hsplit.array"),
    native<as<Sections>(n::vsplit)>("aten::vsplit.int"),
    native<as<SplitAt>(n::vsplit)>("aten::vsplit.array"),
    native<as<Sections>(n::dsplit)>("aten::dsplit.int"),
    native<as<SplitAt>(n::dsplit)>("aten::dsplit.array"),
    native<as<Sections>(n::unbind)>("aten::unbind.int"),
    native<n::broadcast_tensors>("aten::broadcast_tensors"),
    native<as<ListView>(n::meshgrid)>("aten::meshgrid"),
    native<as<List(at::TensorList, c10::string_view)>(n::meshgrid)>("aten::meshgrid.indexing"),
    native<as<OneView>(n::atleast_1d)>("aten::atleast_1d"),
    native<as<OneView>(n::atleast_2d)>("aten::atleast_2d"),
    native<as<OneView>(n::atleast_3d)>("aten::atleast_3d"),
    native<as<ListView>(n::atleast_1d)>("aten::atleast_1d.Sequence"),
    native<as<ListView>(n::atleast_2d)>("aten::atleast_2d.Sequence"),
    native<as<ListView>(n::atleast_3d)>("aten::atleast_3d.Sequence"),
};

}  // namespace
}  // namespace staticrt
