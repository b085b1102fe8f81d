"""Gathering, scattering, selecting and sorting."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Value, axis_of, expect, scalar, wide
from staticrt.interop.onnx.numbers import Numbers, Tensor, objects, whole
from staticrt.interop.onnx.registry import op


def _nonnegative(indices: Tensor, size: Any) -> Tensor:
    indices = indices.to(torch.int64)
    return torch.where(indices < 0, indices + size, indices)


def _host_gather(x: Numbers, indices: Numbers, *, axis: int = 0) -> Any:
    if not indices.known or x.array.ndim == 0:
        return NotImplemented
    flat = [int(i) for i in indices.list()]
    if any(not -x.shape[axis] <= i < x.shape[axis] for i in flat):
        raise OnnxError(f"Gather of {flat} from {x.shape[axis]} elements")
    where = np.array(flat, dtype=np.int64).reshape(indices.shape)
    found = np.take(x.array, where, axis)
    return Numbers(
        found if isinstance(found, np.ndarray) and found.dtype == object else objects([found], ()), x.dtype
    )


@op("Gather", host=_host_gather)
def gather(x: Tensor, indices: Value, *, axis: int = 0) -> Tensor:
    expect(not indices.dtype.is_floating_point, f"Gather by indices of {indices.dtype}")
    axis = axis_of(axis, x.dim())
    index = scalar(indices) if isinstance(indices, Numbers) and indices.array.ndim == 0 else None
    if isinstance(index, int):
        return x.select(axis, index)
    if isinstance(indices, Numbers):
        if indices.known and type(x.shape[axis]) is int:
            size = x.shape[axis]
            indices = Numbers(
                objects([i + size if i < 0 else i for i in indices.list()], indices.shape), torch.int64
            )
            where = indices.tensor()
        else:
            where = _nonnegative(indices.tensor(), x.shape[axis])
    else:
        where = _nonnegative(indices, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.dtype.is_floating_point:
        return torch.nn.functional.embedding(where, x)
    flat = torch.index_select(x, axis, where.reshape(-1))
    return flat.reshape([*x.shape[:axis], *where.shape, *x.shape[axis + 1 :]])


@op("GatherElements", since=11)
def gather_elements(x: Tensor, indices: Tensor, *, axis: int = 0) -> Tensor:
    axis = axis_of(axis, x.dim())
    return torch.gather(x, axis, _nonnegative(indices, x.shape[axis]))


@op("GatherND", since=11)
def gather_nd(x: Tensor, indices: Tensor, *, batch_dims: int = 0) -> Tensor:
    depth = int(indices.shape[-1])
    index: list[Any] = []
    for batch in range(batch_dims):
        positions = torch.arange(x.shape[batch], device=x.device)
        index.append(positions.reshape([-1 if d == batch else 1 for d in range(indices.dim() - 1)]))
    for column in range(depth):
        index.append(_nonnegative(indices.select(-1, column), x.shape[batch_dims + column]))
    return x[tuple(index)]


_REDUCE = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@op("ScatterElements", since=11)
def scatter_elements(
    x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    axis = axis_of(axis, x.dim())
    expect(
        tuple(indices.shape) == tuple(updates.shape),
        f"indices have shape [{', '.join(map(str, indices.shape))}], updates [{', '.join(map(str, updates.shape))}]",
    )
    where = _nonnegative(indices, x.shape[axis])
    if reduction == "none":
        return torch.scatter(x, axis, where, updates)
    if reduction not in _REDUCE:
        raise OnnxError(f"unknown reduction {reduction!r}")
    return torch.scatter_reduce(x, axis, where, updates, _REDUCE[reduction])


@op("Scatter", since=9)
def scatter(x: Tensor, indices: Tensor, updates: Tensor, *, axis: int = 0) -> Tensor:
    return scatter_elements(x, indices, updates, axis=axis)


@op("ScatterND", since=11)
def scatter_nd(x: Tensor, indices: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    depth = int(indices.shape[-1])
    index: list[Any] = [_nonnegative(indices.select(-1, column), x.shape[column]) for column in range(depth)]
    if reduction in ("none", "add"):
        return torch.index_put(x, index, updates, accumulate=reduction == "add")
    if reduction not in _REDUCE:
        raise OnnxError(f"unknown reduction {reduction!r}")
    # One row per index: reduce into the flattened leading dimensions.
    rows: Any = 1
    position: Any = torch.zeros_like(index[0])
    for column in range(depth):
        position = position * x.shape[column] + index[column]
        rows = rows * x.shape[column]
    flat = x.reshape(rows, -1)
    new = updates.reshape(-1, flat.shape[1])
    where = position.reshape(-1, 1).expand(new.shape)
    return torch.scatter_reduce(flat, 0, where, new, _REDUCE[reduction]).reshape(x.shape)


@op("OneHot", since=9)
def one_hot(indices: Tensor, depth: Numbers, values: Tensor, *, axis: int = -1) -> Tensor:
    count = whole(depth.item())
    expect(tuple(values.shape) == (2,), f"OneHot takes two values, got shape {list(values.shape)}")
    rank = indices.dim() + 1
    axis = axis_of(axis, rank)
    where = _nonnegative(indices, count).unsqueeze(axis)
    positions = torch.arange(count, device=indices.device).reshape(
        [-1 if d == axis else 1 for d in range(rank)]
    )
    return torch.where(positions == where, values[1], values[0])


@op("TopK", since=10)
def top_k(
    x: Tensor, k: Numbers, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Tensor, Tensor]:
    axis = axis_of(axis, x.dim())
    # Ties: the lower index first, which topk does not promise.
    values, indices = torch.sort(wide(x), dim=axis, descending=bool(largest), stable=True)
    count = k.item()
    return values.narrow(axis, 0, count).to(x.dtype), indices.narrow(axis, 0, count)


op("TopK")(lambda x, *, k, axis=-1: top_k(x, Numbers(objects(k), torch.int64), axis=axis))


@op("NonZero", since=9)
def non_zero(x: Tensor) -> Tensor:
    if x.dim() == 0:
        return torch.zeros((0, 1), dtype=torch.int64)
    return torch.nonzero(x).t()


@op("Compress", since=9)
def compress(x: Tensor, condition: Tensor, *, axis: int | None = None) -> Tensor:
    expect(condition.dim() == 1, f"the condition of Compress has rank {condition.dim()}, not 1")
    where = torch.nonzero(condition).reshape(-1)
    if axis is None:
        return torch.index_select(x.reshape(-1), 0, where)
    return torch.index_select(x, axis_of(axis, x.dim()), where)


@op("Unique", since=11)
def unique(x: Tensor, *, axis: int | None = None, sorted: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dim = None if axis is None else axis_of(axis, x.dim())
    values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True, dim=dim)
    inverse = inverse.reshape(-1)
    # Where each value is met first: the smallest position that maps to it.
    positions = torch.arange(inverse.shape[0], device=x.device)
    first = torch.full_like(counts, inverse.shape[0]).scatter_reduce(0, inverse, positions, "amin")
    if not sorted:
        order = torch.argsort(first)
        rank = torch.argsort(order)
        values = torch.index_select(values, dim or 0, order)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return values, first, inverse, counts
