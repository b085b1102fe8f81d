"""Fake rules of matrix products with something added, of cross products and of triangular systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import agree, contiguous_strides, new, rule, same
from staticrt.shapes.rules.layout import broadcast

aten = torch.ops.aten


def _is_one_kind(*tensors: torch.Tensor) -> bool:
    first = tensors[0]
    return first.dtype.is_floating_point and all(
        t.dtype == first.dtype and t.device == first.device and t.layout == torch.strided for t in tensors
    )


def _fits(added: torch.Tensor, sizes: Sequence[Any]) -> bool:
    """Whether a tensor is broadcast to these sizes."""
    return added.dim() <= len(sizes) and all(map(same, broadcast([sizes, added.shape]), sizes))


@rule(aten.addmm.default)
def _addmm(mode: Any, added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **factors: Any) -> Any:
    if a.dim() != 2 or b.dim() != 2 or not _is_one_kind(added, a, b) or not agree(a.shape[1], b.shape[0]):
        return None
    sizes = [a.shape[0], b.shape[1]]
    return new(mode, sizes, a) if _fits(added, sizes) else None


@rule(aten.baddbmm.default)
def _baddbmm(mode: Any, added: torch.Tensor, a: torch.Tensor, b: torch.Tensor, **factors: Any) -> Any:
    if a.dim() != 3 or b.dim() != 3 or not _is_one_kind(added, a, b):
        return None
    if not agree(a.shape[0], b.shape[0]) or not agree(a.shape[2], b.shape[1]):
        return None
    sizes = [a.shape[0], a.shape[1], b.shape[2]]
    return new(mode, sizes, a) if _fits(added, sizes) else None


@rule(aten.linalg_cross.default)
def _cross(mode: Any, a: torch.Tensor, b: torch.Tensor, *, dim: int = -1) -> Any:
    if a.dim() != b.dim() or not -a.dim() <= dim < a.dim() or not _is_one_kind(a, b):
        return None
    if not agree(a.shape[dim], 3) or not agree(b.shape[dim], 3):
        return None
    return new(mode, broadcast([a.shape, b.shape]), a)


@rule(aten.linalg_solve_triangular.default)
def _solve_triangular(
    mode: Any,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Any:
    if a.dim() < 2 or b.dim() < 2 or not _is_one_kind(a, b) or not agree(a.shape[-2], a.shape[-1]):
        return None
    if not agree(a.shape[-1], b.shape[-2 if left else -1]):
        return None
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    rows, columns = b.shape[-2:]
    *outer, row, column = contiguous_strides(mode, [*batch, columns, rows])
    return new(mode, [*batch, rows, columns], b, [*outer, column, row])  # LAPACK's column-major matrices
