"""Tensors from sizes and numbers; padding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, Value, axes_of, scalar
from staticrt.interop.onnx.numbers import MAX_NUMBERS, Numbers, Tensor, objects
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.types import dtype_of


def _host_constant(shape: Numbers, *, value: Any = None) -> Any:
    sizes = shape.list()
    if not shape.known or len(sizes) > 1 or (sizes and sizes[0] > MAX_NUMBERS):
        return NotImplemented
    if value is not None and value.dtype not in (torch.int64, torch.int32, torch.bool, torch.float32):
        return NotImplemented
    fill = 0.0 if value is None else value.item()
    count = sizes[0] if sizes else 1
    return Numbers(objects([fill] * count, tuple(sizes)), torch.float32 if value is None else value.dtype)


@op("ConstantOfShape", since=9, host=_host_constant)
def constant_of_shape(shape: Numbers, *, value: Any = None) -> Tensor:
    fill, dtype = (0.0, torch.float32) if value is None else (value.item(), value.dtype)
    return torch.full(shape.list(), fill, dtype=dtype)


def _host_range(start: Numbers, limit: Numbers, delta: Numbers) -> Any:
    if not (start.known and limit.known and delta.known) or start.dtype.is_floating_point:
        return NotImplemented
    found = list(range(start.item(), limit.item(), delta.item()))
    return Numbers(objects(found), start.dtype) if len(found) <= MAX_NUMBERS else NotImplemented


@op("Range", since=11, host=_host_range)
def range_(start: Numbers, limit: Numbers, delta: Numbers, *, stash_type: int = 1) -> Tensor:
    first, last, step = start.item(), limit.item(), delta.item()
    if start.dtype in (torch.float16, torch.bfloat16):
        return torch.arange(first, last, step, dtype=torch.float32).to(start.dtype)
    if not start.dtype.is_floating_point and isinstance(step, int):
        # An empty range is no error here.
        last = (
            first if isinstance(last, int) and isinstance(first, int) and (last - first) * step < 0 else last
        )
    return torch.arange(first, last, step, dtype=start.dtype)


@op("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = x.shape
    wanted = x.dtype if dtype is None else dtype_of(dtype)
    square = torch.arange(columns).unsqueeze(0) - torch.arange(rows).unsqueeze(1)
    return (square == k).to(wanted)


@op("RandomNormal", pure=False)
def random_normal(
    *, shape: Ints, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return torch.randn(list(shape), dtype=dtype_of(dtype)) * scale + mean


@op("RandomUniform", pure=False)
def random_uniform(
    *, shape: Ints, dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    return torch.rand(list(shape), dtype=dtype_of(dtype)) * (high - low) + low


@op("RandomNormalLike", pure=False)
def random_normal_like(
    x: Tensor, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, seed: float | None = None
) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype if dtype is None else dtype_of(dtype)) * scale + mean


@op("RandomUniformLike", pure=False)
def random_uniform_like(
    x: Tensor, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, seed: float | None = None
) -> Tensor:
    return torch.rand(x.shape, dtype=x.dtype if dtype is None else dtype_of(dtype)) * (high - low) + low


@op("Bernoulli", since=15, pure=False)
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None) -> Tensor:
    return (torch.rand_like(x) < x).to(x.dtype if dtype is None else dtype_of(dtype))


@op("Multinomial", since=7, pure=False)
def multinomial(x: Tensor, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Tensor:
    return torch.multinomial(torch.softmax(x, 1), sample_size, replacement=True).to(dtype_of(dtype))


def _pad(x: Tensor, before: list[Any], after: list[Any], axes: list[int], mode: str, value: Any) -> Tensor:
    if mode == "constant":
        flat: list[Any] = [0] * (2 * x.dim())
        for axis, first, last in zip(axes, before, after, strict=True):
            place = 2 * (x.dim() - 1 - axis)
            flat[place], flat[place + 1] = first, last
        fill = scalar(value) if value is not None else 0
        if isinstance(fill, Tensor):  # a fill value of the model: pad a mask and select by it
            inside = F.pad(torch.ones_like(x, dtype=torch.bool), flat, value=False)
            return torch.where(inside, F.pad(x, flat), fill.reshape(()))
        return F.pad(x, flat, value=fill)
    for axis, first, last in zip(axes, before, after, strict=True):
        if type(first) is int and first < 0:
            x, first = x.narrow(axis, -first, x.shape[axis] + first), 0
        if type(last) is int and last < 0:
            x, last = x.narrow(axis, 0, x.shape[axis] + last), 0
        if type(first) is int and type(last) is int and first == 0 and last == 0:
            continue
        x = torch.index_select(x, axis, _source(mode, first, last, x.shape[axis]))
    return x


def _source(mode: str, first: Any, last: Any, size: Any) -> Tensor:
    """The index in an axis for each index of the padded axis."""
    index = torch.arange(first + size + last) - first
    if mode == "edge":
        return torch.clamp(index, min=0, max=size - 1)
    if mode == "wrap":
        return torch.remainder(index, size)
    if mode == "reflect":
        if type(size) is int and size == 1:
            return torch.zeros_like(index)
        period = 2 * (size - 1)
        index = torch.remainder(index, period)
        return torch.where(index >= size, period - index, index)
    raise OnnxError(f"unknown mode {mode!r} of Pad")


@op("Pad", since=11)
def pad(
    x: Tensor, pads: Numbers, value: Value = None, axes: Numbers | None = None, *, mode: str = "constant"
) -> Tensor:
    amounts = pads.list()
    wanted = list(range(x.dim())) if axes is None else axes_of(axes, x.dim())
    half = len(amounts) // 2
    if half != len(wanted):
        raise OnnxError(f"Pad has {len(amounts)} amounts for {len(wanted)} axes")
    return _pad(x, amounts[:half], amounts[half:], wanted, mode, value)


@op("Pad", since=2)
def pad_2(x: Tensor, *, mode: str = "constant", pads: Ints, value: float = 0.0) -> Tensor:
    half = len(pads) // 2
    fill = Numbers(objects([value], ()), torch.float32)
    return _pad(x, list(pads[:half]), list(pads[half:]), list(range(x.dim())), mode, fill)


op("Pad")(lambda x, *, mode="constant", paddings, value=0.0: pad_2(x, mode=mode, pads=paddings, value=value))


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    bins: Numbers, length: Numbers, rate: Numbers, low: Numbers, high: Numbers, *, output_datatype: int = 1
) -> Tensor:
    """The triangular filters of ONNX's reference, with its rounding of bin edges."""
    count = int(bins.item())
    spectrum = int(length.item()) // 2 + 1
    low_mel = 2595 * torch.log10(torch.tensor(1 + float(low.item()) / 700, dtype=torch.float64))
    high_mel = 2595 * torch.log10(torch.tensor(1 + float(high.item()) / 700, dtype=torch.float64))
    step = (high_mel - low_mel) / (count + 2)
    mels = torch.arange(count + 2, dtype=torch.float64) * step + low_mel
    edges = torch.floor(
        (int(length.item()) + 1) * (700 * (10 ** (mels / 2595) - 1)) / int(rate.item())
    ).long()
    left, middle, right = edges[:count, None], edges[1 : count + 1, None], edges[2:, None]
    positions = torch.arange(spectrum)[None, :]
    up = torch.where(middle > left, (positions - left) / (middle - left).clamp(min=1), 1.0)
    down = (right - positions) / (right - middle).clamp(min=1)
    rising = (positions >= left) & (positions <= middle) & ((middle > left) | (positions == middle))
    falling = (positions > middle) & (positions < right)
    weights = torch.where(rising, up, torch.where(falling, down, torch.zeros_like(down)))
    return weights.t().to(dtype_of(output_datatype))
