"""Fake rules of lookups and running sums."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.shapes.fake_results import agree, fresh, is_contiguous, new, rule
from staticrt.shapes.rules.views import is_plain

aten = torch.ops.aten

_INDICES = (torch.int64, torch.int32)
_SUM = 0  # the mode of an embedding bag that adds


@rule(aten.index_select.default)
def _index_select(mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor) -> Any:
    rank = x.dim()
    if x.layout != torch.strided or x.is_quantized or not rank or not -rank <= dim < rank:
        return None
    if index.dim() != 1 or index.dtype not in _INDICES:
        return None
    sizes = list(x.shape)
    sizes[dim] = index.shape[0]
    return new(mode, sizes, x)


@rule(aten.gather.default)
def _gather(mode: Any, x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Any:
    rank = x.dim()
    if x.layout != torch.strided or rank != index.dim() or not rank or not -rank <= dim < rank:
        return None
    if index.dtype != torch.int64:
        return None
    dim %= rank
    if not all(agree(a, b) for d, (a, b) in enumerate(zip(index.shape, x.shape, strict=True)) if d != dim):
        return None
    return new(mode, index.shape, x)


@rule(aten.cumsum.default, aten.cumprod.default)
def _running(mode: Any, x: torch.Tensor, dim: int, *, dtype: Any = None) -> Any:
    rank = x.dim()
    if x.layout != torch.strided or not rank or not -rank <= dim < rank or dtype not in (None, x.dtype):
        return None
    whole = not x.dtype.is_floating_point and not x.dtype.is_complex
    # Row-major whatever it reads.
    return new(mode, x.shape, x, dtype=torch.int64 if whole and dtype is None else x.dtype)


@rule(aten.tril.default, aten.triu.default)
def _triangle(mode: Any, x: torch.Tensor, diagonal: int = 0) -> Any:
    return new(mode, x.shape, x) if x.dim() >= 2 and is_contiguous(x) else None


@rule(aten.embedding_bag.padding_idx)
def _embedding_bag(
    mode: Any,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool,
    kind: int,
    sparse: bool,
    per_sample_weights: Any,
    include_last_offset: bool,
    padding_idx: Any,
) -> Any:
    if weight.dim() != 2 or indices.dim() != 1 or offsets.dim() != 1 or weight.dtype != torch.float32:
        return None
    if indices.dtype not in _INDICES or offsets.dtype != indices.dtype or kind != _SUM:
        return None
    if per_sample_weights is not None or include_last_offset or not is_contiguous(weight):
        return None
    if padding_idx is not None and padding_idx != -1:
        return None  # another kernel, which also returns the position of each index
    bags = offsets.shape[0]
    return (
        new(mode, [bags, weight.shape[1]], weight),
        fresh(mode, [0], None, offsets.dtype, offsets.device),
        new(mode, [bags], offsets),
        new(mode, [bags], offsets),
    )


@rule(aten.bucketize.Tensor)
def _bucketize(
    mode: Any, x: torch.Tensor, bounds: torch.Tensor, *, out_int32: bool = False, right: bool = False
) -> Any:
    if not is_plain(x) or bounds.dim() != 1 or x.dtype.is_complex or bounds.dtype.is_complex:
        return None
    if x.device != bounds.device:
        return None
    # Row-major whatever it reads.
    return new(mode, x.shape, x, dtype=torch.int32 if out_int32 else torch.int64)
