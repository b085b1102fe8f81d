"""Rules for the sizes and dtype of an op's output, from its arguments alone, before any run.

A rule reads arguments by their schema names. `infer` gets them bound (defaults filled in) and answers
for one output tensor; sizes are in elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(frozen=True)
class TensorSpec:
    sizes: tuple[int, ...]
    dtype: torch.dtype


class OutRule(Protocol):
    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        """Sizes and dtype of the output for these arguments (tensors, fake tensors or numbers)."""


def _dtype(kind: str | torch.dtype, operands: Sequence[Any]) -> torch.dtype:
    """`kind`: a dtype, "promote" (type promotion), "float" (promote, then floating point), "bool"."""
    if isinstance(kind, torch.dtype):
        return kind
    if kind == "bool":
        return torch.bool
    dtype = operands[0].dtype if isinstance(operands[0], torch.Tensor) else None
    if len(operands) > 1 or dtype is None:
        from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Kind
        from torch._prims_common import elementwise_dtypes

        dtype = elementwise_dtypes(*operands, type_promotion_kind=Kind.DEFAULT)[1]
    if kind == "float" and not (dtype.is_floating_point or dtype.is_complex):
        return torch.get_default_dtype()
    return dtype


@dataclass(frozen=True)
class SameAs:
    """Sizes of tensor `arg`; its dtype, or the one given as argument `dtype_arg` if that is not None.

    `dtype`: "same", or a kind of `Broadcast`.
    """

    arg: str
    dtype: str | torch.dtype = "same"
    dtype_arg: str | None = None

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        x = arguments[self.arg]
        asked = arguments.get(self.dtype_arg) if self.dtype_arg else None
        dtype = asked or (x.dtype if self.dtype == "same" else _dtype(self.dtype, [x]))
        return TensorSpec(tuple(x.shape), dtype)


@dataclass(frozen=True)
class Broadcast:
    """Sizes of the named tensors broadcast together; numbers among them only take part in promotion.

    `dtype`: "promote", "float", "bool" or a dtype. Named arguments that are None are left out.
    """

    args: tuple[str, ...]
    dtype: str | torch.dtype = "promote"
    promoting: tuple[str, ...] = field(default=())  # arguments that decide the dtype, if not all

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        operands = [arguments[n] for n in self.args if arguments.get(n) is not None]
        shapes = [tuple(x.shape) for x in operands if isinstance(x, torch.Tensor)]
        deciding = [arguments[n] for n in self.promoting or self.args if arguments.get(n) is not None]
        return TensorSpec(broadcast_sizes(shapes), _dtype(self.dtype, deciding))


def broadcast_sizes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Sizes that `shapes` broadcast to. Raises ValueError if they do not."""
    rank = max((len(shape) for shape in shapes), default=0)
    sizes = []
    for dim in range(rank):
        size = 1
        for shape in shapes:
            at = dim - rank + len(shape)
            if at < 0 or shape[at] == 1:
                continue
            if size not in (1, shape[at]):
                raise ValueError(f"sizes {shape} do not broadcast with {list(shapes)}")
            size = shape[at]
        sizes.append(size)
    return tuple(sizes)


@dataclass(frozen=True)
class Reduced:
    """Sizes of `arg` with the dims of argument `dim` (a number, a list; None or []: all) reduced.

    Argument `keepdim` keeps them as 1. `dtype` as for `SameAs`, or "sum": integers become int64.
    """

    arg: str = "self"
    dim: str = "dim"
    keepdim: str = "keepdim"
    dtype: str | torch.dtype = "same"
    dtype_arg: str | None = None

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        x = arguments[self.arg]
        dims = arguments.get(self.dim)
        dims = [dims] if isinstance(dims, int) else list(dims or [])
        rank = x.dim()
        reduced = {d % max(rank, 1) for d in dims} or set(range(rank))
        keep = bool(arguments.get(self.keepdim, False))
        sizes = tuple(1 if i in reduced else n for i, n in enumerate(x.shape) if i not in reduced or keep)
        asked = arguments.get(self.dtype_arg) if self.dtype_arg else None
        if self.dtype == "sum":
            default = x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64
        else:
            default = x.dtype if self.dtype == "same" else _dtype(self.dtype, [x])
        return TensorSpec(sizes, asked or default)


@dataclass(frozen=True)
class MatMul:
    """Product of `left` [.., n, k] and `right` [.., k, m]; rank-1 operands lose their dim, batches broadcast."""

    left: str = "self"
    right: str = "mat2"

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        a, b = arguments[self.left], arguments[self.right]
        rows = tuple(a.shape[-2:-1])
        columns = tuple(b.shape[-1:]) if b.dim() > 1 else ()
        batch = broadcast_sizes([tuple(a.shape[:-2]), tuple(b.shape[:-2])])
        return TensorSpec(batch + rows + columns, a.dtype)


@dataclass(frozen=True)
class LinearOut:
    """`x` [.., k] times the transpose of weight [m, k] (or [k], which drops the dim)."""

    arg: str = "input"
    weight: str = "weight"

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        x, weight = arguments[self.arg], arguments[self.weight]
        return TensorSpec(tuple(x.shape[:-1]) + tuple(weight.shape[:-1]), x.dtype)


@dataclass(frozen=True)
class Joined:
    """Tensors of list `arg` in one: along dim `dim` (`cat`), or along a new dim (`stack`, `new_dim`)."""

    arg: str = "tensors"
    new_dim: bool = False

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        tensors = list(arguments[self.arg])
        dtype = tensors[0].dtype
        for tensor in tensors[1:]:
            dtype = torch.promote_types(dtype, tensor.dtype)
        # `cat` leaves out empty rank-1 tensors, whatever the rank of the others.
        real = [x for x in tensors if self.new_dim or tuple(x.shape) != (0,)] or tensors[:1]
        sizes = list(real[0].shape)
        if self.new_dim:
            sizes.insert(arguments["dim"] % (len(sizes) + 1), len(tensors))
        else:
            dim = arguments["dim"] % max(len(sizes), 1)
            sizes[dim] = sum(x.shape[dim] for x in real)
        return TensorSpec(tuple(sizes), dtype)


@dataclass(frozen=True)
class Indexed:
    """`self` with dim `dim` as long as `index` (`index_select`), or simply the sizes of `index` (`gather`)."""

    whole: bool

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        x, index = arguments["self"], arguments["index"]
        if self.whole:
            return TensorSpec(tuple(index.shape), x.dtype)
        sizes = list(x.shape)
        if sizes:
            sizes[arguments["dim"] % len(sizes)] = index.numel()
        return TensorSpec(tuple(sizes), x.dtype)


@dataclass(frozen=True)
class Looked:
    """Rows of `weight` [n, d] for each of `indices` [..]: [.., d]."""

    def infer(self, arguments: Mapping[str, Any]) -> TensorSpec:
        weight, indices = arguments["weight"], arguments["indices"]
        return TensorSpec((*tuple(indices.shape), weight.shape[1]), weight.dtype)
