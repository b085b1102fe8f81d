"""ONNX Runtime's operators (domain com.microsoft) of statically quantised models: dequantised, computed in floats and
quantised again.

Source: ContribOperators.md of microsoft/onnxruntime; compared with its CPU kernels by tests/interop/onnx/test_contrib_llm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.interop.onnx.arguments import Value
from staticrt.interop.onnx.numbers import Tensor, as_tensor
from staticrt.interop.onnx.operators.microsoft import DOMAIN
from staticrt.interop.onnx.operators.pool import Windows, average_pool
from staticrt.interop.onnx.operators.quantize import dequantize_linear, quantize_linear
from staticrt.interop.onnx.registry import op


def _real(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    return dequantize_linear(x, scale, zero)


def _binary(name: str, function: Callable[[Tensor, Tensor], Tensor]) -> None:
    @op(name, domain=DOMAIN)
    def build(
        a: Tensor,
        a_scale: Tensor,
        a_zero: Tensor | None,
        b: Tensor,
        b_scale: Tensor,
        b_zero: Tensor | None,
        y_scale: Tensor,
        y_zero: Tensor | None = None,
    ) -> Tensor:
        found = function(_real(a, a_scale, a_zero), _real(b, b_scale, b_zero))
        return quantize_linear(found, y_scale, _zero(y_zero, a))


def _zero(zero: Tensor | None, like: Tensor) -> Tensor:
    """The zero point; if it is absent, 0 of the input's type."""
    return torch.zeros([], dtype=like.dtype) if zero is None else zero


_binary("QLinearAdd", torch.add)
_binary("QLinearMul", torch.mul)


def _unary(name: str, function: Callable[..., Tensor]) -> None:
    @op(name, domain=DOMAIN)
    def build(
        x: Tensor, x_scale: Tensor, x_zero: Tensor | None, y_scale: Tensor, y_zero: Tensor | None = None
    ) -> Tensor:
        return quantize_linear(function(_real(x, x_scale, x_zero)), y_scale, _zero(y_zero, x))


_unary("QLinearSigmoid", torch.sigmoid)


@op("QLinearLeakyRelu", domain=DOMAIN)
def qlinear_leaky_relu(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    *,
    alpha: float = 0.01,
) -> Tensor:
    found = F.leaky_relu(_real(x, x_scale, x_zero), alpha)
    return quantize_linear(found, y_scale, _zero(y_zero, x))


@op("QLinearSoftmax", domain=DOMAIN)
def qlinear_softmax(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor,
    *,
    axis: int = -1,
    opset: int,
) -> Tensor:
    real = _real(x, x_scale, x_zero)
    if opset < 13:  # everything from `axis` on is one row
        found = torch.softmax(real.flatten(axis % x.dim()), -1).reshape(x.shape)
    else:
        found = torch.softmax(real, axis)
    return quantize_linear(found, y_scale, y_zero)


@op("QLinearGlobalAveragePool", domain=DOMAIN)
def qlinear_global_average_pool(
    x: Tensor, x_scale: Tensor, x_zero: Tensor, y_scale: Tensor, y_zero: Tensor, *, channels_last: int = 0
) -> Tensor:
    dims = list(range(1, x.dim() - 1)) if channels_last else list(range(2, x.dim()))
    return quantize_linear(_real(x, x_scale, x_zero).mean(dims, keepdim=True), y_scale, y_zero)


@op("QLinearAveragePool", domain=DOMAIN, like=Windows)
def qlinear_average_pool(
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
    *,
    channels_last: int = 0,
    count_include_pad: int = 0,
    **windows: Any,
) -> Tensor:
    real = _real(x, x_scale, x_zero)
    if channels_last:
        real = real.movedim(-1, 1)
    found = average_pool(real, count_include_pad=count_include_pad, **windows)
    return quantize_linear(found.movedim(1, -1) if channels_last else found, y_scale, _zero(y_zero, x))


@op("QLinearConcat", domain=DOMAIN)
def qlinear_concat(y_scale: Tensor, y_zero: Tensor, *inputs: Value, axis: int) -> Tensor:
    tensors = [as_tensor(value) for value in inputs]
    parts = [_real(tensors[i], tensors[i + 1], tensors[i + 2]) for i in range(0, len(tensors) - 2, 3)]
    return quantize_linear(torch.cat(parts, axis), y_scale, y_zero)


@op("QGemm", domain=DOMAIN)
def qgemm(
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    """Sums are exact: products of 8-bit integers in float64. Without an output scale the result is float32."""
    left = a.double() if a_zero is None else a.double() - a_zero.double()
    right, scale = (b.t(), b_scale) if transB else (b, b_scale)
    right = right.double() if b_zero is None else right.double() - b_zero.double()
    found = torch.matmul(left.t() if transA else left, right)
    if c is not None:
        found = found + c.double()
    real = (found * (alpha * a_scale.double() * scale.double())).float()
    return real if y_scale is None else quantize_linear(real, y_scale, _zero(y_zero, a))
