"""Fake rules of operators that autograd calls: backward formulas, and forwards that also return what they save.

The layout of a result is known where all arguments are row-major, or have the same dense strides; torch's rules answer
other calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import (
    Unknown,
    agree,
    channels_last_strides,
    contiguous_strides,
    cpu_kernels,
    is_contiguous,
    new,
    product,
    rule,
    same,
    same_stride,
)
from staticrt.shapes.rules.convolutions import _conv
from staticrt.shapes.rules.layers import _attention
from staticrt.shapes.rules.layout import (
    agree_on_rows,
    is_dense,
    pointwise_layout,
    preserved_strides,
    suggested_strides,
)
from staticrt.shapes.rules.views import _split
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten


def _are_alike(mode: Any, *tensors: torch.Tensor) -> bool:
    """Whether all are dense floating-point tensors for CPU kernels with the same dtype, sizes and strides."""
    first = tensors[0]
    return is_dense(mode, first.shape, first.stride()) and all(
        _is_one_kind(first, t)
        and t.dim() == first.dim()
        and all(map(same, t.shape, first.shape))
        and all(map(same_stride, t.stride(), first.stride()))
        for t in tensors
    )


def are_rows(*tensors: Any) -> bool:
    """Whether all are row-major floating-point tensors for CPU kernels with the same dtype, or None."""
    given = [t for t in tensors if t is not None]
    return all(_is_one_kind(given[0], t) and is_contiguous(t) for t in given)


def _are_of_one_kind(*tensors: Any) -> bool:
    """Whether all are floating-point tensors for CPU kernels with the same dtype, or None."""
    given = [t for t in tensors if t is not None]
    return all(_is_one_kind(given[0], t) for t in given)


def _is_one_kind(first: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        first.dtype.is_floating_point
        and other.dtype == first.dtype
        and other.device.type in cpu_kernels
        and other.layout == torch.strided
    )


def _suggested(mode: Any, x: torch.Tensor) -> Sequence[Any]:
    """Strides in the memory format that `x` suggests; raises `Unknown` where symbols or dimensions of size 1 make it ambiguous."""
    rows = contiguous_strides(mode, x.shape)
    if not is_contiguous(x) and agree_on_rows(x.stride(), rows, x.shape):
        raise Unknown
    return suggested_strides(mode, x, x.shape)


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
    """Operators that TensorIterator runs over both tensors."""
    if not _is_one_kind(gradient, saved) or gradient.device.type not in cpu_kernels:
        return None
    sizes, strides = pointwise_layout(mode, [gradient, saved])
    return new(mode, sizes, gradient, strides)


@rule(
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.mish_backward.default,
    aten.softplus_backward.default,
)
def _elementwise(mode: Any, gradient: torch.Tensor, saved: torch.Tensor, *rest: Any, **more: Any) -> Any:
    return _like(mode, gradient) if _are_alike(mode, gradient, saved) else None


@rule(aten.elu_backward.default)
def _elu_backward(mode: Any, gradient: torch.Tensor, *numbers: Any) -> Any:
    return _elementwise(mode, gradient, numbers[-1])


@rule(aten._prelu_kernel.default)
def _prelu(mode: Any, x: torch.Tensor, weight: torch.Tensor) -> Any:
    return _iterated(mode, x, weight) if are_rows(x, weight) else None


@rule(aten._prelu_kernel_backward.default)
def _prelu_backward(mode: Any, gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
    if not are_rows(gradient, x, weight) or not all(map(same, gradient.shape, x.shape)):
        return None
    return new(mode, x.shape, x), new(mode, x.shape, x)


@rule(aten.glu_backward.default)
def _glu_backward(mode: Any, gradient: torch.Tensor, x: torch.Tensor, dim: int) -> Any:
    return new(mode, x.shape, x) if are_rows(gradient, x) else None


@rule(aten.native_dropout.default)
def _dropout(mode: Any, x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not train or not _is_one_kind(x, x):
        return None
    mask = new(mode, x.shape, x, preserved_strides(mode, x), dtype=torch.bool)
    _sizes, strides = pointwise_layout(mode, [x, mask])
    return new(mode, x.shape, x, strides), mask


@rule(aten.native_dropout_backward.default)
def _dropout_backward(mode: Any, gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    if not _is_one_kind(gradient, gradient) or mask.dtype != torch.bool:
        return None
    sizes, strides = pointwise_layout(mode, [gradient, mask])
    return new(mode, sizes, gradient, strides)


# -- products ----------------------------------------------------------------------------------------------------------


@rule(aten.mm.default)
def _mm(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dim() != 2 or b.dim() != 2 or not _is_one_kind(a, b) or not agree(a.shape[1], b.shape[0]):
        return None
    return new(mode, [a.shape[0], b.shape[1]], a)


@rule(aten.mv.default)
def _mv(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    fits = a.dim() == 2 and b.dim() == 1 and _is_one_kind(a, b) and agree(a.shape[1], b.shape[0])
    return new(mode, a.shape[:1], a) if fits else None


@rule(aten.dot.default)
def _dot(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    fits = a.dim() == b.dim() == 1 and _is_one_kind(a, b) and agree(a.shape[0], b.shape[0])
    return new(mode, [], a) if fits else None


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
    if (
        transposed
        or x.dim() not in (3, 4)
        or not are_rows(weight)
        or not _are_of_one_kind(gradient, x, weight)
    ):
        return None
    # One row of channels is row-major in every layout.
    strides = _suggested(mode, x) if x.dim() == 4 else contiguous_strides(mode, x.shape)
    is_image = not is_contiguous(x) and isinstance(strides[1], int) and strides[1] == 1
    own = channels_last_strides(mode, weight.shape) if is_image and x.dim() == 4 else None
    return (
        new(mode, x.shape, x, strides) if wanted[0] else None,
        new(mode, weight.shape, weight, own) if wanted[1] else None,
        new(mode, weight.shape[:1], x) if wanted[2] else None,
    )


# -- norms -------------------------------------------------------------------------------------------------------------


@rule(aten.native_layer_norm.default)
def _layer_norm(mode: Any, x: torch.Tensor, shape: Sequence[Any], weight: Any, bias: Any, eps: float) -> Any:
    if not shape or x.dtype not in (torch.float32, torch.float64) or not _are_of_one_kind(x, weight, bias):
        return None
    kept = x.dim() - len(shape)
    if kept < 0 or not all(map(agree, x.shape[kept:], shape)):
        return None
    sizes = [*x.shape[:kept], *([1] * len(shape))]
    # The kernels of the forward and of the backward copy what is not row-major.
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
    tensors = (gradient, x, mean, rstd, weight, bias)
    if x.dtype not in (torch.float32, torch.float64) or not _are_of_one_kind(*tensors):
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
    if mean is None or var is None or not are_rows(mean, var):
        return None
    return _batch_norm_alone(mode, x, weight, bias, training) if _is_one_kind(mean, x) else None


@rule(aten._native_batch_norm_legit.no_stats)
def _batch_norm_alone(mode: Any, x: torch.Tensor, weight: Any, bias: Any, training: bool, *rest: Any) -> Any:
    if not training or x.dim() < 2 or not are_rows(weight, bias) or not _are_of_one_kind(x, weight, bias):
        return None
    strides = _suggested(mode, x)
    return new(mode, x.shape, x, strides), *(new(mode, x.shape[1:2], x) for _ in range(2))


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
    if x.dim() < 2 or not _are_of_one_kind(gradient, x) or not are_rows(weight, *statistics):
        return None
    strides = _suggested(mode, x)
    made = [new(mode, x.shape, x, strides), *(new(mode, x.shape[1:2], x) for _ in range(2))]
    return tuple(value if wants else None for value, wants in zip(made, wanted, strict=True))


@rule(aten.native_group_norm.default)
def _group_norm(
    mode: Any, x: torch.Tensor, weight: Any, bias: Any, batch: Any, channels: Any, _pixels: Any, *rest: Any
) -> Any:
    groups, _eps = rest
    if x.dtype not in (torch.float32, torch.float64) or not _are_of_one_kind(x, weight, bias) or x.dim() < 3:
        return None
    strides = _suggested(mode, x)
    if not all(map(same_stride, x.stride(), strides)):
        return None  # the kernel refuses it
    _check(channels % groups == 0)
    return new(mode, x.shape, x, strides), *(new(mode, [batch, groups], x) for _ in range(2))


@rule(aten.native_group_norm_backward.default)
def _group_norm_backward(
    mode: Any, gradient: torch.Tensor, x: torch.Tensor, mean: Any, rstd: Any, weight: Any, *rest: Any
) -> Any:
    _batch, channels, _pixels, _groups, wanted = rest
    if x.dtype not in (torch.float32, torch.float64) or x.dim() < 3:
        return None
    strides = _suggested(mode, x)
    if not _are_of_one_kind(gradient, x, mean, rstd, weight):
        return None
    made = [new(mode, x.shape, x, strides), *(new(mode, [channels], x) for _ in range(2))]
    return tuple(value if wants else None for value, wants in zip(made, wanted, strict=True))


# -- attention ---------------------------------------------------------------------------------------------------------


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default)
def _flash(
    mode: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dropout: float = 0.0,
    causal: bool = False,
    *,
    attn_mask: Any = None,
    scale: Any = None,
) -> Any:
    if dropout != 0 or query.dtype not in (torch.float32, torch.float64):
        return None
    out = _attention(mode, query, key, value, attn_mask, dropout, causal, scale)
    if out is None:
        return None
    batch, heads, rows = query.shape[:3]
    strides = [product(mode, [heads, rows]), 1, heads]
    return out, new(mode, [batch, heads, rows], query, strides)


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def _flash_backward(
    mode: Any,
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *rest: Any,
    **more: Any,
) -> Any:
    tensors = (gradient, query, key, value, rest[0])
    if query.dtype not in (torch.float32, torch.float64) or not _are_of_one_kind(*tensors):
        return None
    if any(t.dim() != 4 or not isinstance(t.stride(3), int) or t.stride(3) != 1 for t in tensors):
        return None  # the kernel reads rows whose elements are adjacent
    return tuple(_heads_last(mode, t) for t in (query, key, value))


def _heads_last(mode: Any, x: torch.Tensor) -> torch.Tensor:
    """Like a tensor (batch, heads, rows, size), with the strides of (batch, rows, heads, size)."""
    batch, heads, rows, size = x.shape
    strides = contiguous_strides(mode, [batch, rows, heads, size])
    return new(mode, x.shape, x, [strides[0], strides[2], strides[1], strides[3]])


# -- softmax -----------------------------------------------------------------------------------------------------------


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(mode: Any, x: torch.Tensor, dim: int, half_to_float: bool) -> Any:
    return new(mode, x.shape, x) if _is_one_kind(x, x) and not half_to_float else None


@rule(aten._softmax_backward_data.default, aten._log_softmax_backward_data.default)
def _softmax_backward(mode: Any, gradient: torch.Tensor, out: torch.Tensor, dim: int, dtype: Any) -> Any:
    return new(mode, out.shape, out) if _are_of_one_kind(gradient, out) and dtype == out.dtype else None


# -- pieces ------------------------------------------------------------------------------------------------------------


@rule(aten.select_backward.default, aten.slice_backward.default)
def _placed(mode: Any, gradient: torch.Tensor, sizes: Sequence[Any], *rest: Any) -> Any:
    return new(mode, sizes, gradient)


@rule(aten.embedding_dense_backward.default)
def _embedding_backward(
    mode: Any, gradient: torch.Tensor, indices: torch.Tensor, rows: Any, padding: Any, scales: bool
) -> Any:
    return new(mode, [rows, gradient.shape[-1]], gradient) if _is_one_kind(gradient, gradient) else None


@rule(
    aten._adaptive_avg_pool2d_backward.default,
    aten.avg_pool2d_backward.default,
    aten.max_pool2d_with_indices_backward.default,
)
def _pool_backward(mode: Any, gradient: torch.Tensor, x: torch.Tensor, *rest: Any) -> Any:
    if x.dim() not in (3, 4) or not _are_of_one_kind(gradient, x):
        return None
    return new(mode, x.shape, x, _suggested(mode, x))


rule(aten.unsafe_split.Tensor)(_split)
