"""Matrix products."""

from __future__ import annotations

import torch

from staticrt.interop.onnx.arguments import expect
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.registry import op


@op("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype in (torch.uint32, torch.uint64):
        return torch.matmul(a.to(torch.int64), b.to(torch.int64)).to(a.dtype)
    return torch.matmul(a, b)


def _plain_linear(a: Tensor, b: Tensor, c: Tensor | None, trans_a: int, trans_b: int) -> bool:
    return not trans_a and bool(trans_b) and a.dtype.is_floating_point and (c is None or c.dim() == 1)


@op("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Tensor:
    expect(a.dim() == 2 and b.dim() == 2, f"Gemm of tensors of rank {a.dim()} and {b.dim()}, not 2")
    if alpha == 1 and (c is None or beta == 1) and _plain_linear(a, b, c, transA, transB):
        return torch.nn.functional.linear(a, b, c)
    left, right = a.t() if transA else a, b.t() if transB else b
    if c is not None and alpha == 1 and beta == 1 and a.dtype.is_floating_point:
        return torch.addmm(c, left, right)
    found = torch.matmul(left, right)
    whole = not a.dtype.is_floating_point
    if alpha != 1:
        found = found * (int(alpha) if whole else alpha)
    if c is None:
        return found
    return found + (c if beta == 1 else c * (int(beta) if whole else beta))


@op("Einsum", since=12)
def einsum(*inputs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation.replace(" ", ""), *inputs)


@op("MatMulInteger", since=10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    left, right = a.to(torch.int32), b.to(torch.int32)
    if a_zero is not None:
        zero = a_zero.to(torch.int32)
        left = left - (zero.unsqueeze(-1) if zero.dim() else zero)
    if b_zero is not None:
        right = right - b_zero.to(torch.int32)
    return torch.matmul(left, right)
