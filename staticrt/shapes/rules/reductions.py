"""Fake rules of sums, means and extremes over dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import Unknown, new, rule

aten = torch.ops.aten


def _reduced(x: torch.Tensor, dims: Any, keepdim: bool) -> list[Any]:
    """Sizes without the dimensions that are summed up, row-major whatever `x` is.

    Raises:
        Unknown: the dimensions are wrong.
    """
    rank = x.dim()
    chosen = range(rank) if not dims else [dims] if isinstance(dims, int) else dims
    if x.layout != torch.strided or not all(type(d) is int and -rank <= d < rank for d in chosen):
        raise Unknown
    gone = {d % rank for d in chosen}
    if len(gone) != len(chosen):
        raise Unknown
    if keepdim:
        return [1 if d in gone else size for d, size in enumerate(x.shape)]
    return [size for d, size in enumerate(x.shape) if d not in gone]


@rule(aten.mean.dim)
def _mean(mode: Any, x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    kind = x.dtype if dtype is None else dtype
    if not kind.is_floating_point or x.dtype.is_complex:
        return None
    return new(mode, _reduced(x, dim, keepdim), x, dtype=kind)


@rule(aten.sum.dim_IntList)
def _sum(mode: Any, x: torch.Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None) -> Any:
    if x.dtype.is_complex or (dtype is not None and dtype.is_complex):
        return None
    kind = dtype or (x.dtype if x.dtype.is_floating_point else torch.int64)
    return new(mode, _reduced(x, dim, keepdim), x, dtype=kind)


rule(aten.mean.default)(lambda mode, x, *, dtype=None: _mean(mode, x, (), dtype=dtype))
rule(aten.sum.default)(lambda mode, x, *, dtype=None: _sum(mode, x, (), dtype=dtype))
rule(aten.max.default, aten.min.default)(lambda mode, x: None if x.dtype.is_complex else _extreme(mode, x))
rule(aten.any.default, aten.all.default)(lambda mode, x: _truth(mode, x, range(x.dim())))
rule(aten.any.dim, aten.all.dim)(lambda mode, x, dim, keepdim=False: _truth(mode, x, [dim], keepdim))


@rule(aten.any.dims, aten.all.dims)
def _truth_along_some(mode: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    return _truth(mode, x, dim, keepdim) if dim else None


def _truth(mode: Any, x: torch.Tensor, dims: Sequence[int], keepdim: bool = False) -> Any:
    kind = x.dtype if x.dtype == torch.uint8 else torch.bool
    return new(mode, _reduced(x, dims, keepdim), x, dtype=kind)


@rule(aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim)
def _norm(
    mode: Any, x: torch.Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    if not x.dtype.is_floating_point or dtype not in (None, x.dtype) or ord not in (1, 2):
        return None
    return new(mode, _reduced(x, dim, keepdim), x)


@rule(aten.var.correction, aten.std.correction)
def _variance(
    mode: Any, x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    return new(mode, _reduced(x, dim, keepdim), x) if x.dtype.is_floating_point else None


@rule(aten.var_mean.correction, aten.std_mean.correction)
def _variance_and_mean(mode: Any, x: torch.Tensor, dim: Any = None, **options: Any) -> Any:
    results = [_variance(mode, x, dim, **options) for _ in range(2)]
    return None if results[0] is None else tuple(results)


@rule(aten.logsumexp.default)
def _log_sum(mode: Any, x: torch.Tensor, dim: Any, keepdim: bool = False) -> Any:
    return new(mode, _reduced(x, dim, keepdim), x) if x.dtype.is_floating_point and dim else None


@rule(aten.prod.dim_int)
def _product(mode: Any, x: torch.Tensor, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _sum(mode, x, [dim], keepdim, dtype=dtype)


@rule(aten.amax.default, aten.amin.default)
def _extreme(mode: Any, x: torch.Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    sizes = _reduced(x, dim, keepdim)
    if not all(size > 0 for size in x.shape):
        return None  # of nothing there is no extreme
    return new(mode, sizes, x)


@rule(aten.cumsum.default)
def _cumsum(mode: Any, x: torch.Tensor, dim: int, *, dtype: Any = None) -> Any:
    kind = dtype or (torch.int64 if not (x.dtype.is_floating_point or x.dtype.is_complex) else x.dtype)
    if x.layout != torch.strided or not -x.dim() <= dim < x.dim():
        return None
    return new(mode, x.shape, x, dtype=kind)
