"""Quick fake results of sums, means and extremes over dimensions (quick_fakes.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.ops.quick_fakes import new, rule

aten = torch.ops.aten


def _reduced(x: torch.Tensor, dims: Any, keepdim: bool) -> list[Any] | None:
    """Sizes without the dimensions that are summed up, row-major whatever `x` is; None where the dimensions are wrong."""
    rank = x.dim()
    chosen = range(rank) if not dims else [dims] if isinstance(dims, int) else dims
    if x.layout != torch.strided or not all(type(d) is int and -rank <= d < rank for d in chosen):
        return None
    gone = {d % rank for d in chosen}
    if len(gone) != len(chosen):
        return None
    if keepdim:
        return [1 if d in gone else size for d, size in enumerate(x.shape)]
    return [size for d, size in enumerate(x.shape) if d not in gone]


@rule(aten.mean.dim)
def _mean(mode: Any, x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if not x.dtype.is_floating_point or dtype not in (None, x.dtype):
        return None
    sizes = _reduced(x, dim, keepdim)
    return None if sizes is None else new(mode, sizes, x)


@rule(aten.sum.dim_IntList)
def _sum(mode: Any, x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if dtype is not None or x.dtype.is_complex:
        return None
    sizes = _reduced(x, dim, keepdim)
    kind = x.dtype if x.dtype.is_floating_point else torch.int64
    return None if sizes is None else new(mode, sizes, x, dtype=kind)


@rule(aten.amax.default, aten.amin.default)
def _extreme(mode: Any, x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    sizes = _reduced(x, dim, keepdim)
    if sizes is None or any(not isinstance(size, int) or size == 0 for size in x.shape):
        return None  # of nothing there is no extreme
    return new(mode, sizes, x)
