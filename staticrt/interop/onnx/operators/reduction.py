"""Reductions, arg-reductions, cumulative sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

from staticrt.interop.onnx.arguments import Ints, axes_of, axis_of, wide
from staticrt.interop.onnx.numbers import Numbers, Tensor, objects
from staticrt.interop.onnx.registry import op

Reduce = Callable[[Tensor, list[int], bool], Tensor]


def _product(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if not axes:
        return x.clone()
    return torch.sum(wide(x), axes, keepdim=keep, dtype=wide(x).dtype).to(x.dtype)


def _mean(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    if x.dtype.is_floating_point:
        return torch.mean(x, axes, keepdim=keep) if axes else x.clone()
    count = math.prod(x.shape[axis] for axis in axes)
    return torch.div(_sum(x.to(torch.int64), axes, keep), count, rounding_mode="trunc").to(x.dtype)


def _extreme(function: Callable[..., Tensor], worst: Callable[[torch.dtype], float]) -> Reduce:
    def reduce(x: Tensor, axes: list[int], keep: bool) -> Tensor:
        if not axes:
            return x.clone()
        if x.dtype is torch.bool:
            return reduce(x.to(torch.uint8), axes, keep).to(torch.bool)
        if any(_is_empty(x.shape[axis]) for axis in axes):
            shape = [1 if i in axes else size for i, size in enumerate(x.shape) if keep or i not in axes]
            return torch.full(shape, worst(x.dtype), dtype=x.dtype, device=x.device)
        return function(wide(x), axes, keepdim=keep).to(x.dtype)

    return reduce


def _is_empty(size: Any) -> bool:
    """Whether a size is 0, if it is known in the trace."""
    if not isinstance(size, torch.SymInt):
        return bool(size == 0)
    if not has_free_unbacked_symbols(size) and size.node.has_hint() and size.node.hint == 0:
        # Symbolic sizes pass for positive: trace it as a constant.
        raise IndexError("an empty dimension is reduced")
    return False


def _lowest(dtype: torch.dtype) -> float:
    return -float("inf") if dtype.is_floating_point else torch.iinfo(dtype).min


def _highest(dtype: torch.dtype) -> float:
    return float("inf") if dtype.is_floating_point else torch.iinfo(dtype).max


def _log_sum_exp(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.logsumexp(x.float() if not x.dtype.is_floating_point else x, axes, keepdim=keep).to(x.dtype)


def _l2(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    return torch.sqrt(
        _sum(x * x, axes, keep).float() if not x.dtype.is_floating_point else _sum(x * x, axes, keep)
    ).to(x.dtype)


_REDUCTIONS: dict[str, tuple[Reduce, int]] = {  # function, version from which axes are an input
    "ReduceSum": (_sum, 13),
    "ReduceMean": (_mean, 18),
    "ReduceProd": (_product, 18),
    "ReduceMax": (_extreme(torch.amax, _lowest), 18),
    "ReduceMin": (_extreme(torch.amin, _highest), 18),
    "ReduceL1": (lambda x, axes, keep: _sum(torch.abs(x), axes, keep), 18),
    "ReduceL2": (_l2, 18),
    "ReduceLogSum": (lambda x, axes, keep: torch.log(_sum(x, axes, keep)), 18),
    "ReduceLogSumExp": (_log_sum_exp, 18),
    "ReduceSumSquare": (lambda x, axes, keep: _sum(x * x, axes, keep), 18),
}
# The operator's elementwise part, for tensors without a reduced axis
_ON_NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "ReduceL1": torch.abs,
    "ReduceL2": torch.abs,
    "ReduceLogSum": torch.log,
    "ReduceSumSquare": torch.square,
}


def _host_fold(name: str) -> Callable[..., Any]:
    """A reduction of a whole vector of numbers."""
    folds: dict[str, Callable[[list[Any]], Any]] = {
        "ReduceSum": sum,
        "ReduceProd": math.prod,
        "ReduceMax": max,
        "ReduceMin": min,
    }
    fold = folds.get(name)

    def compute(x: Numbers, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        given = axes.list() if isinstance(axes, Numbers) else axes
        if fold is None or x.array.ndim != 1 or (noop_with_empty_axes and not given):
            return NotImplemented
        if x.array.size == 0 and name in ("ReduceMax", "ReduceMin"):
            return NotImplemented
        if name in ("ReduceMax", "ReduceMin") and not x.known:
            return NotImplemented
        found = fold(x.list())
        return Numbers(objects([found], (1,) if keepdims else ()), x.dtype)

    return compute


def _register(name: str, reduce: Reduce, inputs_since: int) -> None:
    def compute(x: Tensor, axes: Any, keepdims: int, noop: int) -> Tensor:
        wanted = axes_of(axes, x.dim()) if axes is not None else []
        if not wanted:
            if noop or x.dim() == 0:
                return _ON_NOTHING.get(name, torch.clone)(x)
            wanted = list(range(x.dim()))
        return reduce(x, wanted, bool(keepdims))

    host = _host_fold(name)

    @op(name, since=inputs_since, host=host)
    def build(
        x: Tensor, axes: Numbers | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        return compute(x, axes, keepdims, noop_with_empty_axes)

    def host_1(x: Numbers, *, axes: Ints | None = None, keepdims: int = 1) -> Any:
        return host(x, axes, keepdims=keepdims)

    @op(name, host=host_1)
    def build_1(x: Tensor, *, axes: Ints | None = None, keepdims: int = 1) -> Tensor:
        return compute(x, axes, keepdims, 0)


for _name, (_reduce, _since) in _REDUCTIONS.items():
    _register(_name, _reduce, _since)


def _arg(function: Callable[..., Tensor], x: Tensor, axis: int, keepdims: int, last: int) -> Tensor:
    axis = axis_of(axis, x.dim())
    x = wide(x)
    if x.dtype is torch.float16:
        x = x.float()
    if not last:
        return function(x, axis, keepdim=bool(keepdims))
    flipped = function(x.flip(axis), axis, keepdim=bool(keepdims))
    return x.shape[axis] - 1 - flipped


@op("ArgMax")
def arg_max(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(torch.argmax, x, axis, keepdims, select_last_index)


@op("ArgMin")
def arg_min(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
    return _arg(torch.argmin, x, axis, keepdims, select_last_index)


def _cumulative(
    function: Callable[..., Tensor], neutral: int, x: Tensor, axis: int, exclusive: int, reverse: int
) -> Tensor:
    axis = axis_of(axis, x.dim())
    found = x.flip(axis) if reverse else x
    if exclusive:
        start = torch.full_like(found.narrow(axis, 0, 1), neutral)
        found = torch.cat([start, found.narrow(axis, 0, found.shape[axis] - 1)], axis)
    found = function(wide(found), axis, dtype=wide(found).dtype).to(x.dtype)
    return found.flip(axis) if reverse else found


@op("CumSum", since=11)
def cumulative_sum(x: Tensor, axis: Numbers, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulative(torch.cumsum, 0, x, axis.item(), exclusive, reverse)


@op("CumProd", since=26)
def cumulative_product(x: Tensor, axis: Numbers, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    return _cumulative(torch.cumprod, 1, x, axis.item(), exclusive, reverse)
