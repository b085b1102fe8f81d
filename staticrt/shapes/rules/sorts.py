"""Fake rules of sorting and of the largest and smallest elements."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.shapes.fake_results import Unknown, new, rule
from staticrt.shapes.rules.layout import preserved_strides

aten = torch.ops.aten


def _has_order(x: torch.Tensor, dim: int) -> bool:
    plain = x.layout == torch.strided and not x.is_quantized and not x.dtype.is_complex and not x.is_neg()
    return plain and x.dim() > 0 and -x.dim() <= dim < x.dim()


@rule(aten.topk.default)
def _topk(
    mode: Any, x: torch.Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Any:
    if not _has_order(x, dim) or x.dtype == torch.bool or type(k) is not int:
        return None
    size = x.shape[dim]
    if k < 0 or not (k <= size):  # a guard, where the size is the caller's
        return None
    sizes = list(x.shape)
    sizes[dim] = k
    return new(mode, sizes, x), new(mode, sizes, x, dtype=torch.int64)


rule(aten.sort.default)(lambda mode, x, dim=-1, descending=False: _sorted(mode, x, dim))
rule(aten.sort.stable)(lambda mode, x, *, stable=None, dim=-1, descending=False: _sorted(mode, x, dim))


def _sorted(mode: Any, x: torch.Tensor, dim: int) -> Any:
    if not _has_order(x, dim):
        return None
    strides = preserved_strides(mode, x)
    return new(mode, x.shape, x, strides), new(mode, x.shape, x, strides, dtype=torch.int64)


@rule(aten.argsort.default)
def _argsort(mode: Any, x: torch.Tensor, dim: int = -1, descending: bool = False) -> Any:
    found = _sorted(mode, x, dim)
    return None if found is None else found[1]


@rule(aten.max.dim, aten.min.dim)
def _extreme(mode: Any, x: torch.Tensor, dim: int, keepdim: bool = False) -> Any:
    sizes = _without(x, dim, keepdim)
    return new(mode, sizes, x), new(mode, sizes, x, dtype=torch.int64)


@rule(aten.argmax.default, aten.argmin.default)
def _arg_extreme(mode: Any, x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    if dim is None or x.dtype == torch.bool:
        return None
    return new(mode, _without(x, dim, keepdim), x, dtype=torch.int64)


def _without(x: torch.Tensor, dim: int, keepdim: bool) -> list[Any]:
    """Sizes without one dimension, which must not be empty."""
    if not _has_order(x, dim) or any(isinstance(size, int) and size == 0 for size in x.shape):
        raise Unknown
    sizes = list(x.shape)
    dim %= x.dim()
    if keepdim:
        sizes[dim] = 1
    else:
        del sizes[dim]
    return sizes


@rule(aten.kthvalue.default)
def _kth(mode: Any, x: torch.Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if (
        type(k) is not int
        or k < 1
        or not _has_order(x, dim)
        or x.dtype == torch.bool
        or not k <= x.shape[dim]
    ):
        return None
    return _extreme(mode, x, dim, keepdim)


@rule(aten.histc.default)
def _histogram(mode: Any, x: torch.Tensor, bins: Any = 100, min: Any = 0, max: Any = 0) -> Any:
    return new(mode, [bins], x) if type(bins) is int and bins > 0 and x.dtype.is_floating_point else None
