"""Fake rules of matrix products, norms, resampling and recurrent layers."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.native import _C  # noqa: F401, loads the operators
from staticrt.shapes.fake_results import (
    agree,
    contiguous_strides,
    format_strides,
    is_contiguous,
    new,
    rule,
    same,
)
from staticrt.shapes.rules.layout import (
    agree_on_rows,
    broadcast,
    is_dense,
    new_as_suggested,
    preserved_strides,
    suggested_strides,
)
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten


@rule(aten.linear.default)
def _linear(mode: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    if x.dim() < 1 or weight.dim() != 2 or x.dtype != weight.dtype or not agree(x.shape[-1], weight.shape[1]):
        return None
    if bias is not None and (
        bias.dim() != 1 or bias.dtype != x.dtype or not same(bias.shape[0], weight.shape[0])
    ):
        return None
    return new(mode, [*x.shape[:-1], weight.shape[0]], x)


@rule(aten.layer_norm.default)
def _layer_norm(
    mode: Any, x: torch.Tensor, shape: Sequence[Any], weight: Any = None, bias: Any = None, *rest: Any
) -> Any:
    tail = x.shape[x.dim() - len(shape) :]
    if (
        not shape
        or len(tail) != len(shape)
        or not all(map(agree, tail, shape))
        or not x.dtype.is_floating_point
    ):
        return None
    for extra in (weight, bias):
        if extra is not None and (
            extra.dtype != x.dtype or extra.dim() != len(shape) or not all(map(same, extra.shape, shape))
        ):
            return None
    return new(mode, x.shape, x)


@rule(aten.rms_norm.default)
def _rms_norm(mode: Any, x: torch.Tensor, shape: Sequence[Any], weight: Any = None, eps: Any = None) -> Any:
    return _layer_norm(mode, x, shape, weight)


@rule(aten.batch_norm.default)
def _batch_norm(
    mode: Any, x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *rest: Any
) -> Any:
    channels = [extra for extra in (weight, bias, mean, var) if extra is not None]
    if training or mean is None or var is None or x.dim() < 2:
        return None
    if any(extra.dtype != x.dtype or not same(extra.shape[0], x.shape[1]) for extra in channels):
        return None
    strides: Sequence[Any] | None = contiguous_strides(mode, x.shape)
    if x.dim() > 3 and not agree_on_rows(x.stride(), contiguous_strides(mode, x.shape), x.shape):
        # An image of one pixel or one channel is row-major with any strides.
        strides = format_strides(x, x.shape)
    return None if strides is None else new(mode, x.shape, x, strides)


@rule(aten.instance_norm.default)
def _instance_norm(
    mode: Any,
    x: torch.Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> Any:
    if (
        x.dim() < 3
        or not x.dtype.is_floating_point
        or not use_input_stats
        or mean is not None
        or var is not None
    ):
        return None
    for extra in (weight, bias):
        if extra is not None and (extra.dtype != x.dtype or not same(extra.shape[0], x.shape[1])):
            return None
    return new(mode, x.shape, x)  # the kernel returns a row-major result for every input layout


@rule(aten.group_norm.default)
def _group_norm(
    mode: Any, x: torch.Tensor, groups: int, weight: Any = None, bias: Any = None, *rest: Any
) -> Any:
    if not x.dtype.is_floating_point or x.dim() < 2:
        return None
    strides = suggested_strides(mode, x, x.shape)
    if any(extra is not None and extra.dtype != x.dtype for extra in (weight, bias)):
        return None
    _check(x.shape[1] % groups == 0)
    return new(mode, x.shape, x, strides)


@rule(aten.softmax.int, aten.log_softmax.int, aten._safe_softmax.default)
def _softmax(mode: Any, x: torch.Tensor, dim: int, dtype: Any = None) -> Any:
    if (
        (dtype is not None and not dtype.is_floating_point)
        or not x.dtype.is_floating_point
        or not -x.dim() <= dim < x.dim()
    ):
        return None
    return new(mode, x.shape, x, dtype=dtype)  # the kernel returns a row-major result for every input layout


@rule(aten.embedding.default)
def _embedding(mode: Any, weight: torch.Tensor, indices: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if weight.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return None
    return new(mode, [*indices.shape, weight.shape[1]], weight)


@rule(aten.scaled_dot_product_attention.default)
def _attention(
    mode: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    tensors = (query, key, value)
    if (
        any(t.dim() != 4 or t.dtype != query.dtype for t in tensors)
        or query.device.type != "cpu"
        or dropout_p != 0
    ):
        return None
    heads_match = all(same(t.shape[1], query.shape[1]) for t in tensors) or enable_gqa
    if not heads_match or not all(agree(t.shape[0], query.shape[0]) for t in tensors):
        return None
    if not agree(query.shape[-1], key.shape[-1]) or not agree(key.shape[2], value.shape[2]):
        return None
    # The flash kernel for CPU, chosen where it can be, keeps the query's order of dimensions:
    # aten/src/ATen/native/transformers/sdp_utils_cpp.cpp, cpu/FlashAttentionKernel.cpp.
    flash = (
        query.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and same(query.shape[-1], value.shape[-1])
        and all(isinstance(t.stride(-1), int) and t.stride(-1) == 1 for t in tensors)
        and torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        and (attn_mask is None or attn_mask.dim() in (2, 4))
    )
    if not flash:
        return None
    batch, heads, length, size = *query.shape[:3], value.shape[-1]
    if is_contiguous(query):
        return new(mode, [batch, heads, length, size], query)
    head_stride, row_stride = query.stride()[1:3]
    if not isinstance(head_stride, int) or not isinstance(row_stride, int) or head_stride >= row_stride:
        if not is_dense(mode, query.shape, query.stride()):
            return None
        return new(mode, [batch, heads, length, size], query, preserved_strides(mode, query))
    strides = contiguous_strides(mode, [batch, length, heads, size])
    return new(mode, [batch, heads, length, size], query, [strides[0], strides[2], strides[1], strides[3]])


@rule(aten.matmul.default)
def _matmul(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype != b.dtype or a.device != b.device or not a.dim() or not b.dim():
        return None
    if not agree(a.shape[-1], b.shape[-2 if b.dim() > 1 else 0]):
        return None
    sizes = broadcast([list(a.shape[:-2]), list(b.shape[:-2])])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.dim() > 1 else []
    # The kernel returns a row-major result for every input layout.
    return new(mode, [*sizes, *rows, *columns], a)


@rule(aten.bmm.default)
def _bmm(mode: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
    if a.dtype != b.dtype or a.dim() != 3 or b.dim() != 3 or not a.dtype.is_floating_point:
        return None
    if not agree(a.shape[0], b.shape[0]) or not agree(a.shape[2], b.shape[1]):
        return None
    return new(mode, [a.shape[0], a.shape[1], b.shape[2]], a)


_INTERPOLATIONS = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
)
_NEAREST = (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
)
_KEEPS_FORMAT = re.compile("_?upsample_(nearest2d|nearest_exact2d|bilinear2d|bilinear2d_aa|trilinear3d)")


def _vec(name: str, mode: Any, x: torch.Tensor, output_size: Any, *how: Any) -> Any:
    return _resized(name, mode, x, output_size, how[-1])  # [align_corners], scale_factors


def _default(name: str, mode: Any, x: torch.Tensor, output_size: Any, *_how: Any) -> Any:
    return _resized(name, mode, x, output_size, None)


def _resized_backward(
    name: str, mode: Any, grad: torch.Tensor, output_size: Any, sizes: Any, *_how: Any
) -> Any:
    if not _takes(name, grad) or not all(map(agree, grad.shape[2:], output_size)):
        return None
    keeps_format = _KEEPS_FORMAT.fullmatch(name)
    strides = suggested_strides(mode, grad, sizes) if keeps_format else contiguous_strides(mode, sizes)
    return new(mode, sizes, grad, strides)


def _takes(name: str, x: torch.Tensor) -> bool:
    """Whether eager may have a kernel of a resize for `x`."""
    spatial = next(int(char) for char in name if char.isdigit())
    narrow = name.endswith("_aa") and x.dtype in (torch.half, torch.bfloat16)
    return x.dim() == spatial + 2 and not x.is_quantized and not narrow


for _name in (*_INTERPOLATIONS, *_NEAREST):
    _packet = getattr(aten, _name)
    rule(_packet.vec)(functools.partial(_vec, _name))
    rule(_packet.default)(functools.partial(_default, _name))
    rule(getattr(aten, f"{_name}_backward").default)(functools.partial(_resized_backward, _name))


def _scaled(size: Any, factor: float) -> Any:
    """A size times a factor, rounded down; None where only a guard could tell."""
    if isinstance(size, int):
        return int(float(size) * factor)
    if factor == int(factor):
        return size * int(factor)
    parts = 1 / factor
    return size // int(parts) if parts in (2.0, 4.0, 8.0, 16.0) else None


def _resized(name: str, mode: Any, x: torch.Tensor, output_size: Any, scale_factors: Any) -> Any:
    if not _takes(name, x) or len(output_size or scale_factors or ()) != x.dim() - 2:
        return None
    if output_size is not None:
        sizes = [*x.shape[:2], *output_size]
    else:
        sizes = [*x.shape[:2], *map(_scaled, x.shape[2:], scale_factors)]
        if None in sizes:
            return None
    if any(size < 1 for size in sizes[1:] if isinstance(size, int)):
        return None
    for size in sizes[2:]:
        _check(size > 0)
    return new_as_suggested(mode, sizes, x)


@rule(aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def _rnn(
    mode: Any,
    x: torch.Tensor,
    hx: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    states = [hx] if isinstance(hx, torch.Tensor) else hx  # LSTM has two
    sizes = [*x.shape[:-1], states[0].shape[-1] * (2 if bidirectional else 1)]
    return new(mode, sizes, x), *[new(mode, state.shape, state) for state in states]


@rule(torch.ops.staticrt.recurrent_steps.default)
def _recurrent_steps(
    mode: Any, gates: torch.Tensor, h0: torch.Tensor, c0: Any, w_hh: Any, b_hh: Any, kind: int, reverse: bool
) -> Any:
    sizes = [*gates.shape[:2], h0.shape[1]]
    saves = kind < 2  # LSTM, GRU
    return tuple(
        new(mode, size, gates)
        for size in (
            sizes,
            h0.shape,
            h0.shape if c0 is not None else (0,),
            sizes if saves else (0,),
            gates.shape if saves else (0,),
        )
    )


@rule(torch.ops.staticrt.recurrent_steps_backward.default)
def _recurrent_steps_backward(
    mode: Any, d_out: Any, d_hn: Any, d_cn: Any, h0: Any, c0: Any, w_hh: Any, out: Any, *rest: Any
) -> Any:
    kind = rest[2]
    gates = [*out.shape[:2], w_hh.shape[0]]
    state = h0.shape if c0 is not None else (0,)
    return tuple(new(mode, size, out) for size in (gates, gates if kind == 1 else (0,), h0.shape, state))
