"""Normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Value, axis_of, in_float
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.registry import Call, op


@op("BatchNormalization", since=14)
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Any:
    if not training_mode:
        if x.dim() < 2:
            x = x.reshape(-1, 1)
        if x.dtype == scale.dtype == mean.dtype:
            return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon)
        return _affine(x, scale, bias, mean, var, epsilon)
    axes = [0, *range(2, x.dim())]
    now = torch.mean(in_float(x), axes)
    spread = torch.var(in_float(x), axes, correction=0)
    found = _affine(x, scale, bias, now, spread, epsilon)
    old, new = momentum, 1 - momentum
    return (
        found,
        (mean * old + now.to(mean.dtype) * new).to(mean.dtype),
        (var * old + spread.to(var.dtype) * new).to(var.dtype),
    )


def _affine(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    shape = [1, -1, *[1] * (x.dim() - 2)]
    wide = in_float(x)
    scale, bias, mean, var = (t.to(wide.dtype).reshape(shape) for t in (scale, bias, mean, var))
    return ((wide - mean) * torch.rsqrt(var + epsilon) * scale + bias).to(x.dtype)


@op("BatchNormalization")
def batch_norm_1(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    is_test: int = 0,
    spatial: int = 1,
    call: Call,
) -> Any:
    if sum(bool(name) for name in call.outputs) > 1:
        raise OnnxError("BatchNormalization in training mode before version 14", fix="export with opset 15")
    if not spatial:
        return (x - mean) * torch.rsqrt(var + epsilon) * scale + bias
    return batch_norm(x, scale, bias, mean, var, epsilon=epsilon)


@op("InstanceNormalization")
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    axes = list(range(2, x.dim()))
    var, mean = torch.var_mean(in_float(x), axes, correction=0, keepdim=True)
    shape = [1, -1, *[1] * (x.dim() - 2)]
    found = (in_float(x) - mean) * torch.rsqrt(var + epsilon)
    return (found * scale.reshape(shape) + bias.reshape(shape)).to(x.dtype)


@op("LayerNormalization", since=17)
def layer_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    call: Call,
) -> Any:
    first = axis_of(axis, x.dim())
    whole = list(x.shape[first:])
    simple = scale.dim() == len(whole) and (bias is None or bias.dim() == len(whole))
    if len(call.outputs) == 1 and simple and x.dtype == scale.dtype and _same_sizes(scale, bias, whole):
        return F.layer_norm(x, whole, scale, bias, epsilon)
    wide = in_float(x) if stash_type == 1 else x
    axes = list(range(first, x.dim()))
    var, mean = torch.var_mean(wide, axes, correction=0, keepdim=True)
    inverse = torch.rsqrt(var + epsilon)
    found = ((wide - mean) * inverse).to(x.dtype) * scale
    return found if bias is None else found + bias, mean, inverse


def _same_sizes(scale: Tensor, bias: Tensor | None, whole: list[Any]) -> bool:
    return list(scale.shape) == whole and (bias is None or list(bias.shape) == whole)


@op("RMSNormalization", since=23)
def rms_norm(
    x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Tensor:
    axes = list(range(axis_of(axis, x.dim()), x.dim()))
    wide = in_float(x) if stash_type == 1 else x
    square = torch.mean(wide * wide, axes, keepdim=True)
    return (wide * torch.rsqrt(square + epsilon)).to(x.dtype) * scale


@op("GroupNormalization", since=21)
def group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Tensor:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


@op("GroupNormalization", since=18)
def group_norm_18(
    x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5, num_groups: int
) -> Tensor:
    """Scale and bias belong to groups here, to channels since version 21."""
    each = x.shape[1] // num_groups
    return F.group_norm(x, num_groups, scale.repeat_interleave(each), bias.repeat_interleave(each), epsilon)


@op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    length = torch.sum(torch.abs(x), axis, True) if p == 1 else torch.sqrt(torch.sum(x * x, axis, True))
    return torch.where(length == 0, torch.zeros_like(x), x / length)


@op("LRN")
def local_response_norm(
    x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> Tensor:
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    squares = F.pad(x * x, [*[0] * (2 * (x.dim() - 2)), before, after])
    total = squares.narrow(1, 0, x.shape[1])
    for shift in range(1, size):
        total = total + squares.narrow(1, shift, x.shape[1])
    return x / torch.pow(bias + alpha / size * total, beta)


@op("MeanVarianceNormalization", since=9)
def mean_variance_norm(x: Tensor, *, axes: Value = (0, 2, 3)) -> Tensor:
    mean = torch.mean(x, list(axes), keepdim=True)
    spread = torch.sqrt(torch.mean(x * x, list(axes), keepdim=True) - mean * mean)
    return (x - mean) / (spread + 1e-9)
