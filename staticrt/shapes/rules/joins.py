"""Fake rules of concatenation and repetition."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import (
    Unknown,
    agree,
    below,
    channels_last_strides,
    contiguous_strides,
    new,
    product,
    rule,
    view_of,
)
from staticrt.shapes.rules.layout import suggests_image
from staticrt.shapes.size_checks import check as _check

aten = torch.ops.aten


@rule(aten.cat.default)
def _cat(mode: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    if not tensors or not _are_alike(tensors):
        return None
    # A one-dimensional tensor without elements is left out, even among tensors of other ranks.
    joined = [t for t in tensors if not _is_nothing(t)] or tensors
    first = joined[0]
    rank = first.dim()
    if rank == 0 or not -rank <= dim < rank or any(t.dim() != rank for t in joined):
        return None
    dim %= rank
    for other in joined[1:]:
        for d in range(rank):
            if d != dim and not agree(first.shape[d], other.shape[d]):
                return None
    sizes = list(first.shape)
    for other in joined[1:]:
        sizes[dim] = sizes[dim] + other.shape[dim]
    return new(mode, sizes, first, _joined_strides(mode, tensors, sizes), dtype=_common_dtype(tensors))


def _is_nothing(x: torch.Tensor) -> bool:
    return x.dim() == 1 and isinstance(x.shape[0], int) and x.shape[0] == 0


def _are_alike(tensors: Sequence[torch.Tensor]) -> bool:
    device = tensors[0].device
    return all(t.device == device and t.layout == torch.strided and not t.is_quantized for t in tensors)


def _common_dtype(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    return functools.reduce(_promoted, [t.dtype for t in tensors])


@functools.cache
def _promoted(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    with below():
        return torch.promote_types(a, b)


def _joined_strides(mode: Any, tensors: Sequence[torch.Tensor], sizes: Sequence[Any]) -> Sequence[Any]:
    """Channels last if all tensors suggest it (`cat_compute_output_memory_format` of TensorShape.cpp)."""
    answers = [suggests_image(mode, t) for t in tensors]
    if False in answers:
        return contiguous_strides(mode, sizes)
    if None in answers:
        raise Unknown
    return channels_last_strides(mode, sizes)


@rule(aten.stack.default)
def _stack(mode: Any, tensors: Sequence[torch.Tensor], dim: int = 0) -> Any:
    if not tensors or not _are_alike(tensors):
        return None
    first = tensors[0]
    rank = first.dim()
    if not -rank - 1 <= dim <= rank:
        return None
    dim %= rank + 1
    for other in tensors[1:]:
        if other.dim() != rank or not all(map(agree, first.shape, other.shape)):
            return None
    # torch concatenates; it adds a dimension before only if that is the last one.
    joined = tensors if dim < rank else [_with_last(mode, t) for t in tensors]
    if False not in [suggests_image(mode, t) for t in joined]:
        return None
    sizes = list(first.shape)
    sizes.insert(dim, len(tensors))
    return new(mode, sizes, first, dtype=_common_dtype(tensors))


def _with_last(mode: Any, x: torch.Tensor) -> torch.Tensor:
    return view_of(mode, x, [*x.shape, 1], [*x.stride(), 1])


@rule(aten.repeat_interleave.self_int)
def _repeat_interleave(
    mode: Any, x: torch.Tensor, repeats: Any, dim: Any = None, *, output_size: Any = None
) -> Any:
    rank = x.dim()
    if x.layout != torch.strided or x.is_quantized or output_size is not None or not rank:
        return None
    if dim is not None and not -rank <= dim < rank:
        return None
    if isinstance(repeats, int) and repeats < 0:
        return None
    if not isinstance(repeats, int):
        _check(repeats >= 0)
    if dim is None:
        return new(mode, [product(mode, [*x.shape, repeats])], x)
    sizes = list(x.shape)
    sizes[dim] = product(mode, [sizes[dim], repeats])
    return new(mode, sizes, x)
