"""Casts, with ONNX's rules for float8."""

from __future__ import annotations

from typing import Any

import onnx
import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Numbers, Tensor, apply
from staticrt.interop.onnx.types import dtype_of

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)


def target(to: Any) -> torch.dtype:
    """The dtype that Cast's attribute names: a number, or before version 6 a name."""
    if isinstance(to, str):
        try:
            to = onnx.TensorProto.DataType.Value(to)
        except ValueError:
            raise OnnxError(f"Cast to unknown type {to!r}") from None
    return dtype_of(int(to))


def cast_to(x: Tensor, to: Any, saturate: int, round_mode: str) -> Tensor:
    """Cast with the attributes of the operator."""
    return cast_to_dtype(x, target(to), saturate)


def cast_to_dtype(x: Tensor, dtype: torch.dtype, saturate: int = 1) -> Tensor:
    """A float outside of float8's range becomes its largest value, or infinity or NaN without `saturate`."""
    if dtype == x.dtype:
        return x
    if dtype in _FLOAT8:
        x = x.float()
        if saturate:
            limit = torch.finfo(dtype).max
            return torch.clamp(x, -limit, limit).to(dtype)
        if dtype is torch.float8_e4m3fn:  # has no infinity; 464 still rounds to its largest value, 448
            x = torch.where(torch.abs(x) > 464, torch.nan, x)
    if x.dtype in _FLOAT8 and not dtype.is_floating_point:
        x = x.float()
    return x.to(dtype)


def host_cast(x: Numbers, to: Any) -> Any:
    """`cast_to` on numbers."""
    return host_cast_to_dtype(x, target(to))


def host_cast_to_dtype(x: Numbers, dtype: torch.dtype) -> Any:
    """`cast_to_dtype` on numbers; NotImplemented if Python's range differs from the type's."""
    if dtype not in (torch.int64, torch.int32, torch.float32, torch.float64, torch.bool):
        return NotImplemented
    if dtype is torch.int32 and any(
        isinstance(v, float) or not -(2**31) <= v < 2**31 for v in x.list() if isinstance(v, (int, float))
    ):
        return NotImplemented
    if dtype is torch.int64 and any(isinstance(v, float) and not abs(v) < 2**62 for v in x.list()):
        return NotImplemented
    return apply(lambda v: v, (x,), dtype)
