"""Quantised tensors: linear quantisation and what computes on it."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.interop.onnx.arguments import axis_of
from staticrt.interop.onnx.casting import cast_to_dtype
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.operators.conv import conv
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.types import dtype_of


def _spread(scale: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point for each element: one for all, one per slice of `axis`, or one per block."""
    if scale.dim() == 0 or (scale.numel() == 1 and scale.dim() == 1):
        return scale.reshape(())
    axis = axis_of(axis, x.dim())
    if block_size:
        return scale.repeat_interleave(block_size, axis).narrow(axis, 0, x.shape[axis])
    if scale.dim() == 1:
        return scale.reshape([-1 if d == axis else 1 for d in range(x.dim())])
    return scale


def quantized(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype, saturate: int = 1) -> Tensor:
    """x / scale + zero, rounded to even and cut to the range of the type."""
    found = x / scale
    if dtype.is_floating_point:
        return cast_to_dtype(found if zero is None else found + zero.to(found.dtype), dtype, saturate)
    found = torch.round(found)
    if zero is not None:
        found = found + zero.to(found.dtype)
    info = torch.iinfo(dtype)
    return torch.clamp(found, info.min, info.max).to(torch.int32).to(dtype)


@op("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Tensor:
    dtype = zero.dtype if zero is not None else dtype_of(output_dtype) if output_dtype else torch.uint8
    wide = x.to(dtype_of(precision)) if precision else x.float() if not x.dtype.is_floating_point else x
    per = _spread(scale, x, axis, block_size)
    offset = None if zero is None else _spread(zero, x, axis, block_size)
    return quantized(wide, per.to(wide.dtype), offset, dtype, saturate)


@op("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    per = _spread(scale, x, axis, block_size)
    found = x.to(torch.int32) if not x.dtype.is_floating_point else x.float()
    if zero is not None:
        found = found - _spread(zero, x, axis, block_size).to(found.dtype)
    result = found.to(torch.float32) * per.to(torch.float32)
    return result.to(dtype_of(output_dtype) if output_dtype else scale.dtype)


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low = torch.clamp(x.amin(), max=0)
    high = torch.clamp(x.amax(), min=0)
    scale = (high - low) / 255
    safe = torch.where(scale == 0, torch.ones_like(scale), scale)
    zero = torch.clamp(torch.round(-low / safe), 0, 255)
    found = torch.clamp(torch.round(x / safe) + zero, 0, 255)
    return found.to(torch.uint8), scale, zero.to(torch.uint8)


def _rows(per_row: Tensor) -> Tensor:
    return per_row.unsqueeze(-1) if per_row.dim() else per_row


@op("QLinearMatMul", since=10)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    """Sums are exact: products of 8-bit integers in float64."""
    left = a.double() - _rows(a_zero).double()
    right = b.double() - b_zero.double()
    scale = _rows(a_scale).float() * b_scale.float() / y_scale.float()
    found = torch.matmul(left, right).float() * scale
    return _requantized(found, y_zero)


def _requantized(found: Tensor, zero: Tensor) -> Tensor:
    info = torch.iinfo(zero.dtype)
    return torch.clamp(torch.round(found) + zero.float(), info.min, info.max).to(zero.dtype)


@op("QLinearConv", since=10, like=conv)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    b: Tensor | None = None,
    **windows: Any,
) -> Tensor:
    found = conv(
        x.double() - x_zero.double(),
        w.double() - w_zero.double().reshape([-1, *[1] * (w.dim() - 1)]),
        None if b is None else b.double(),
        **windows,
    )
    scale = x_scale.float() * w_scale.float() / y_scale.float()
    if scale.numel() > 1:
        scale = scale.reshape([1, -1, *[1] * (w.dim() - 2)])
    return _requantized(found.float() * scale, y_zero)
