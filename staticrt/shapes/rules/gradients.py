"""Fake rules of operators that autograd calls: backward formulas, and forwards that also return what they save.

The layout of a result is known where all arguments are row-major, or lie alike and without gaps; other calls are
torch's to answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import agree, cpu_kernels, is_contiguous, new, rule, same, same_stride
from staticrt.shapes.rules.convolutions import _conv
from staticrt.shapes.rules.layout import is_dense, pointwise_layout
from staticrt.shapes.rules.views import _split

aten = torch.ops.aten


def _are_alike(mode: Any, *tensors: torch.Tensor) -> bool:
    """Floating-point tensors for the CPU's kernels, of one dtype, sizes and strides, without gaps."""
    first = tensors[0]
    return is_dense(mode, first.shape, first.stride()) and all(
        _is_one_kind(first, t)
        and t.dim() == first.dim()
        and all(map(same, t.shape, first.shape))
        and all(map(same_stride, t.stride(), first.stride()))
        for t in tensors
    )


def _are_rows(*tensors: Any) -> bool:
    """Row-major floating-point tensors for the CPU's kernels, of one dtype; None among them does not count."""
    given = [t for t in tensors if t is not None]
    return all(_is_one_kind(given[0], t) and is_contiguous(t) for t in given)


def _is_one_kind(first: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        first.dtype.is_floating_point
        and other.dtype == first.dtype
        and other.device.type in cpu_kernels
        and other.layout == torch.strided
    )


def _like(mode: Any, x: torch.Tensor) -> torch.Tensor:
    return new(mode, x.shape, x, x.stride())


@rule(aten.leaky_relu_backward.default, aten.threshold_backward.default)
def _iterated_from_saved(mode: Any, gradient: torch.Tensor, saved: torch.Tensor, *rest: Any) -> Any:
    return _iterated(mode, saved, gradient)  # the first tensor's layout wins


@rule(
    aten.gelu_backward.default,
    aten.sigmoid_backward.default,
    aten.silu_backward.default,
    aten.tanh_backward.default,
)
def _iterated(mode: Any, gradient: torch.Tensor, saved: torch.Tensor, *rest: Any, **more: Any) -> Any:
    """What TensorIterator runs on both tensors."""
    if not _is_one_kind(gradient, saved) or gradient.device.type not in cpu_kernels:
        return None
    layout = pointwise_layout(mode, [gradient, saved])
    return None if layout is None else new(mode, layout[0], gradient, layout[1])


@rule(
    aten.elu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.mish_backward.default,
    aten.softplus_backward.default,
)
def _elementwise(mode: Any, gradient: torch.Tensor, saved: Any, *rest: Any, **more: Any) -> Any:
    if not isinstance(saved, torch.Tensor) or not _are_alike(mode, gradient, saved):
        return None  # elu_backward has its tensor elsewhere
    return _like(mode, gradient)


@rule(aten.mse_loss_backward.default)
def _mse_loss_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> Any:
    if not _are_rows(gradient, x, target) or not all(map(same, x.shape, target.shape)):
        return None
    if (
        x.dim() != target.dim()
        or (gradient.dim() and reduction)
        or (x.dim() != gradient.dim() and not reduction)
    ):
        return None
    return new(mode, x.shape, x)


@rule(aten.native_dropout.default)
def _dropout(mode: Any, x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not train or not _are_rows(x):
        return None
    return new(mode, x.shape, x), new(mode, x.shape, x, dtype=torch.bool)


@rule(aten.native_dropout_backward.default)
def _dropout_backward(mode: Any, gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    if not _are_rows(gradient) or not is_contiguous(mask) or mask.dtype != torch.bool:
        return None
    return new(mode, gradient.shape, gradient) if all(map(same, gradient.shape, mask.shape)) else None


# -- products ----------------------------------------------------------------------------------------------------------


@rule(aten.mm.default)
def _mm(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dim() != 2 or b.dim() != 2 or not _is_one_kind(a, b) or not agree(a.shape[1], b.shape[0]):
        return None
    return new(mode, [a.shape[0], b.shape[1]], a)


@rule(aten.convolution.default)
def _convolution(mode: Any, x: torch.Tensor, weight: torch.Tensor, bias: Any, *windows: Any) -> Any:
    stride, padding, dilation, transposed, _output_padding, groups = windows
    if transposed or not 3 <= x.dim() <= 5:
        return None
    return _conv(x.dim() - 2, mode, x, weight, bias, stride, padding, dilation, groups)


@rule(aten.convolution_backward.default)
def _convolution_backward(
    mode: Any,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Any,
    *windows: Any,
) -> Any:
    _stride, _padding, _dilation, transposed, _output_padding, _groups, wanted = windows
    if transposed or x.dim() not in (3, 4) or not _are_rows(gradient, x, weight):
        return None
    return (
        new(mode, x.shape, x) if wanted[0] else None,
        new(mode, weight.shape, weight) if wanted[1] else None,
        new(mode, weight.shape[:1], x) if wanted[2] else None,
    )


# -- norms -------------------------------------------------------------------------------------------------------------


@rule(aten.native_layer_norm.default)
def _layer_norm(mode: Any, x: torch.Tensor, shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    if not shape or x.dtype not in (torch.float32, torch.float64) or not _are_rows(x, weight, bias):
        return None
    kept = x.dim() - len(shape)
    if kept < 0 or not all(map(agree, x.shape[kept:], shape)):
        return None
    sizes = [*x.shape[:kept], *([1] * len(shape))]
    return new(mode, x.shape, x), new(mode, sizes, x), new(mode, sizes, x)


@rule(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    mode: Any,
    gradient: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[Any],
    *rest: Any,
) -> Any:
    mean, rstd, weight, bias, wanted = rest
    if x.dtype not in (torch.float32, torch.float64) or not _are_rows(gradient, x, mean, rstd, weight, bias):
        return None
    return (
        new(mode, x.shape, x) if wanted[0] else None,
        new(mode, shape, x) if wanted[1] and weight is not None else None,
        new(mode, shape, x) if wanted[2] and bias is not None else None,
    )


@rule(aten._native_batch_norm_legit.default)
def _batch_norm(
    mode: Any, x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Any:
    if (
        not training
        or x.dim() < 2
        or mean is None
        or var is None
        or not _are_rows(x, weight, bias, mean, var)
    ):
        return None
    return new(mode, x.shape, x), *(new(mode, x.shape[1:2], x) for _ in range(2))


@rule(aten._native_batch_norm_legit_functional.default)
def _batch_norm_functional(mode: Any, *args: Any) -> Any:
    found = _batch_norm(mode, *args)
    return None if found is None else (*found, *(new(mode, args[0].shape[1:2], args[0]) for _ in range(2)))


@rule(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    mode: Any,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: Any,
    *rest: Any,
) -> Any:
    *statistics, _training, _eps, wanted = rest
    if not _are_rows(gradient, x, weight, *statistics) or x.dim() < 2:
        return None
    made = [new(mode, sizes, x) for sizes in (x.shape, x.shape[1:2], x.shape[1:2])]
    return tuple(value if wants else None for value, wants in zip(made, wanted, strict=True))


# -- softmax and losses ------------------------------------------------------------------------------------------------


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(mode: Any, x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return new(mode, x.shape, x) if _are_rows(x) and not half_to_float else None


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(mode: Any, gradient: torch.Tensor, out: torch.Tensor, dim: int, dtype: Any) -> Any:
    return new(mode, out.shape, out) if _are_rows(gradient, out) and dtype == out.dtype else None


@rule(aten.nll_loss_forward.default)
def _nll_loss(
    mode: Any, x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, *rest: Any
) -> Any:
    if (
        x.dim() != 2
        or target.dim() != 1
        or not _are_rows(x, weight)
        or not agree(x.shape[0], target.shape[0])
    ):
        return None
    return new(mode, [] if reduction else target.shape, x), new(mode, [], x)


@rule(aten.nll_loss_backward.default)
def _nll_loss_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Any, *rest: Any
) -> Any:
    return new(mode, x.shape, x) if x.dim() == 2 and _are_rows(gradient, x, weight) else None


# -- pieces ------------------------------------------------------------------------------------------------------------


@rule(aten.select_backward.default, aten.slice_backward.default)
def _placed(mode: Any, gradient: torch.Tensor, sizes: Sequence[Any], *rest: Any) -> Any:
    return new(mode, sizes, gradient)


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(
    mode: Any, gradient: torch.Tensor, indices: torch.Tensor, rows: Any, padding: Any, scales: bool
) -> Any:
    return new(mode, [rows, gradient.shape[-1]], gradient) if _is_one_kind(gradient, gradient) else None


@rule(aten.max_pool2d_with_indices_backward.default)
def _max_pool_backward(mode: Any, gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
    return new(mode, x.shape, x) if _are_rows(gradient, x) else None


rule(aten.unsafe_split.Tensor)(_split)
