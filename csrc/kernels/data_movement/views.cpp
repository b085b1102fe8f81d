// Views: outputs that share their argument's storage. Only operators that may alias (reshape, flatten,
// contiguous, ...) move bytes: they copy where eager does.
#include <ATen/ops/_conj_native.h>
#include <ATen/ops/_neg_view_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_unsafe_view_native.h>
#include <ATen/ops/adjoint_native.h>
#include <ATen/ops/alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/broadcast_to_native.h>
#include <ATen/ops/conj_native.h>
#include <ATen/ops/contiguous_native.h>
#include <ATen/ops/detach_native.h>
#include <ATen/ops/diagonal_native.h>
#include <ATen/ops/expand_as_native.h>
#include <ATen/ops/expand_native.h>
#include <ATen/ops/flatten_native.h>
#include <ATen/ops/imag_native.h>
#include <ATen/ops/lift_fresh_native.h>
#include <ATen/ops/linalg_diagonal_native.h>
#include <ATen/ops/mH_native.h>
#include <ATen/ops/mT_native.h>
#include <ATen/ops/matrix_H_native.h>
#include <ATen/ops/moveaxis_native.h>
#include <ATen/ops/movedim_native.h>
#include <ATen/ops/narrow_native.h>
#include <ATen/ops/numpy_T_native.h>
#include <ATen/ops/permute_native.h>
#include <ATen/ops/positive_native.h>
#include <ATen/ops/ravel_native.h>
#include <ATen/ops/real_native.h>
#include <ATen/ops/reshape_as_native.h>
#include <ATen/ops/reshape_native.h>
#include <ATen/ops/resolve_conj_native.h>
#include <ATen/ops/resolve_neg_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/slice_native.h>
#include <ATen/ops/squeeze_native.h>
#include <ATen/ops/swapaxes_native.h>
#include <ATen/ops/swapdims_native.h>
#include <ATen/ops/t_native.h>
#include <ATen/ops/transpose_native.h>
#include <ATen/ops/unflatten_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/unsqueeze_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "kernels/data_movement/copy_and_view.h"
#include "kernels/registry/bind.h"

namespace staticrt {
namespace {

namespace n = at::native;
using T = at::Tensor;
using Dims = T(const T&, at::IntArrayRef, at::IntArrayRef);
using Dim2 = T(const T&, int64_t, int64_t);

const RegisterKernels kViews{
    native<n::view>("aten::view"),
    native<n::view_dtype>("aten::view.dtype"),
    native<n::view_as>("aten::view_as"),
    native<n::_unsafe_view>("aten::_unsafe_view"),
    native<n::_reshape_alias>("aten::_reshape_alias"),
    native<n::reshape_symint>("aten::reshape"),
    native<n::reshape_as>("aten::reshape_as"),
    native<as<T(const T&, int64_t, int64_t)>(n::flatten)>("aten::flatten.using_ints"),
    native<n::ravel>("aten::ravel"),
    native<n::unflatten_symint>("aten::unflatten.int"),
    native<n::contiguous>("aten::contiguous"),
    native<as<T(const T&, int64_t, int64_t)>(n::transpose)>("aten::transpose.int"),
    native<n::swapaxes>("aten::swapaxes"),
    native<n::swapdims>("aten::swapdims"),
    native<n::permute>("aten::permute"),
    native<n::t>("aten::t"),
    native<n::numpy_T>("aten::numpy_T"),
    native<n::mT>("aten::mT"),
    native<n::mH>("aten::mH"),
    native<n::matrix_H>("aten::matrix_H"),
    native<n::adjoint>("aten::adjoint"),
    native<as<Dims>(n::movedim)>("aten::movedim.intlist"),
    native<as<Dim2>(n::movedim)>("aten::movedim.int"),
    native<as<Dims>(n::moveaxis)>("aten::moveaxis.intlist"),
    native<as<Dim2>(n::moveaxis)>("aten::moveaxis.int"),
    native<n::expand>("aten::expand"),
    native<n::expand_as>("aten::expand_as"),
    native<n::broadcast_to_symint>("aten::broadcast_to"),
    native<n::slice>("aten::slice.Tensor"),
    native<n::select_symint>("aten::select.int"),
    native<n::narrow_symint>("aten::narrow"),
    native<n::narrow_tensor_symint>("aten::narrow.Tensor"),
    native<as<T(const T&)>(n::squeeze)>("aten::squeeze"),
    native<as<T(const T&, int64_t)>(n::squeeze)>("aten::squeeze.dim"),
    native<as<T(const T&, at::IntArrayRef)>(n::squeeze)>("aten::squeeze.dims"),
    native<n::unsqueeze>("aten::unsqueeze"),
    native<as<T(const T&, int64_t, int64_t, int64_t)>(n::diagonal)>("aten::diagonal"),
    native<n::linalg_diagonal>("aten::linalg_diagonal"),
    native<n::unfold>("aten::unfold"),
    native<&strided_view>("aten::as_strided"),
    native<n::view_as_real>("aten::view_as_real"),
    native<n::view_as_complex>("aten::view_as_complex"),
    native<n::real>("aten::real"),
    native<n::imag>("aten::imag"),
    native<n::conj>("aten::conj"),
    native<n::_conj>("aten::_conj"),
    native<n::_neg_view>("aten::_neg_view"),
    native<n::resolve_conj>("aten::resolve_conj"),
    native<n::resolve_neg>("aten::resolve_neg"),
    native<n::alias>("aten::alias"),
    native<n::detach>("aten::detach"),
    native<n::lift_fresh>("aten::lift_fresh"),
    native<n::positive>("aten::positive"),
};

}  // namespace
}  // namespace staticrt
