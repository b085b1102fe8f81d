"""Writes whose results depend on the layout of memory.

Some read, through another view, the memory that they write; others draw random numbers in the order of memory.

A functional operator reads all before it writes anything. In place, an operator whose operands overlap raises, or
gives a result that depends on the order in which its kernel visits memory; only eager knows which.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from staticrt import tuning
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.maybe_views import SizesDecideViews, shares_storage, storage_of
from staticrt.frontend.tracing.tracer import expressions
from staticrt.shapes.fake_results import is_contiguous
from staticrt.shapes.rules.layout import is_dense
from staticrt.shapes.size_checks import env_of, statically_known_true

aten = torch.ops.aten


def check_apart(node: fx.Node, targets: Sequence[fx.Node]) -> None:
    """Check that an operator that writes `targets` reads none of their elements by another index.

    Raises:
        CannotTrace: it may.
        SizesDecideViews: it may for some sizes.
    """
    pointwise = torch.Tag.pointwise in node.target.tags or node.target is aten.copy_.default  # type: ignore[union-attr]
    for target in targets:
        written = target.meta["val"]
        if not _has_elements_apart(target):
            raise _refusal(node)
        for other in node.all_input_nodes:
            value = other.meta.get("val")
            if (
                other is target
                or not isinstance(value, torch.Tensor)
                or storage_of(value) != storage_of(written)
            ):
                continue
            if pointwise and other not in targets and _place(value) == _place(written):
                continue
            if not _are_apart(target, other):
                raise _refusal(node)
        if not pointwise and _is_read_too(node, target):
            raise _refusal(node)


def check_draws(node: fx.Node, targets: Sequence[fx.Node], results: Sequence[torch.Tensor]) -> None:
    """Check that the functional form of an operator that fills `targets` draws the same numbers for the same elements.

    In place, kernels draw in the order of memory, by the dtype and the layout of what they fill. The functional forms of
    `out=` and of `bernoulli_` with a number fill a new row-major tensor; the others fill a copy, which has the layout of
    what it was copied from if that is dense.

    Raises:
        CannotTrace: it may draw others.
        SizesDecideViews: it may for some sizes.
    """
    if torch.Tag.nondeterministic_seeded not in node.target.tags:  # type: ignore[union-attr]
        return
    anew = node.target is aten.bernoulli_.float or torch.Tag.out in node.target.tags  # type: ignore[union-attr]
    for target, result in zip(targets, results, strict=True):
        value = target.meta["val"]
        if anew and any(isinstance(size, torch.SymInt) and env_of(size) is None for size in value.shape):
            # torch's rules for its own symbols call some layouts row-major that are not.
            _numbers(value.shape)
        if is_contiguous(value) and value.dtype == result.dtype:
            continue
        if anew or not is_dense(value.fake_mode, value.shape, value.stride()):
            _numbers((*value.shape, *value.stride()))
            raise CannotTrace(
                f"{node.target} draws in the order of memory, which is not row-major", even_in_parts=True
            )


def _refusal(node: fx.Node) -> CannotTrace:
    return CannotTrace(f"{node.target} writes memory that it reads by another view", even_in_parts=True)


def _is_read_too(node: fx.Node, target: fx.Node) -> bool:
    """Whether a written tensor is an operand as well: `x.index_add_(0, i, x)`."""
    given: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), given.append)
    return given.count(target) > 1


def _has_elements_apart(node: fx.Node) -> bool:
    """Whether no two indices are one element. Among writable views, only `as_strided` may make overlapping ones."""
    if all(step.view is not aten.as_strided.default for step in _path(node)):
        return True
    value = node.meta["val"]
    if is_dense(value.fake_mode, value.shape, value.stride()):
        return True
    reach = 0
    for stride, size in sorted(zip(_numbers(value.stride()), _numbers(value.shape), strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += max(size - 1, 0) * stride
    return True


def _are_apart(a: fx.Node, b: fx.Node) -> bool:
    """Whether two views of one memory have no element in common."""
    for first, second in zip(_path(a), _path(b), strict=False):
        if first.view is not second.view or first.args != second.args:
            if first.view is second.view and _pieces_are_apart(first, second):
                return True
            break
    own, others = a.meta["val"], b.meta["val"]
    (low, high), (other_low, other_high) = _reach(own), _reach(others)
    return high <= other_low or other_high <= low or _elements(own).isdisjoint(_elements(others))


class _Step(NamedTuple):
    """A view on the way from the tensor that owns the memory: of what, by which operator with which other arguments."""

    source: torch.Tensor
    view: Any
    args: tuple[Any, ...]


def _path(node: fx.Node) -> list[_Step]:
    """The views that lead from the tensor that owns the memory to a node."""
    steps: list[_Step] = []
    while node.op == "call_function":
        value = node.meta["val"]
        made, rest = (node, ()) if node.target is not operator.getitem else (node.args[0], (node.args[1],))
        assert isinstance(made, fx.Node)
        source = next(
            (arg for arg in made.args if isinstance(arg, fx.Node) and shares_storage(arg, value)), None
        )
        if source is None:
            break
        if not made.target._schema.is_mutable:  # type: ignore[union-attr]
            steps.append(
                _Step(source.meta["val"], made.target, (*made.args[1:], *made.kwargs.items(), *rest))
            )
        node = source
    return steps[::-1]


_SPLITS = frozenset({aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int})


def _pieces_are_apart(a: _Step, b: _Step) -> bool:
    """Whether two views by one operator of the same tensor have no element in common, by their arguments."""
    if a.view in _SPLITS:
        return a.args[:-1] == b.args[:-1]  # pieces of one split that differ in their numbers
    if a.view is aten.select.int:
        (dim, i), (other_dim, j) = a.args, b.args
        same_end = isinstance(i, int) and isinstance(j, int) and (i < 0) == (j < 0)
        return bool(dim == other_dim and same_end and i != j)
    if a.view is aten.slice.Tensor:
        first, second = (_interval(step.source.shape, *step.args) for step in (a, b))
        if first is None or second is None or first[0] != second[0]:
            return False
        (_, begin, end), (_, other_begin, other_end) = first, second
        return statically_known_true(end <= other_begin) or statically_known_true(other_end <= begin)
    return False


def _interval(shape: Any, dim: Any = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    """The dimension and the indices of a slice; None where they are not plain."""
    if step != 1:
        return None
    size = shape[dim]
    low, high = (_index(bound, size) for bound in (0 if start is None else start, end))
    return dim % len(shape), low, high


def _index(bound: Any, size: Any) -> Any:
    value = bound.meta["val"] if isinstance(bound, fx.Node) else bound
    if value is None or (isinstance(value, int) and value == torch.iinfo(torch.int64).max):
        return size
    return size + value if isinstance(value, int) and value < 0 else value


def _reach(value: torch.Tensor) -> tuple[int, int]:
    """The bytes of a storage that a view reaches into."""
    sizes, strides = _numbers(value.shape), _numbers(value.stride())
    (low,) = _numbers([value.storage_offset()])
    if 0 in sizes:
        return 0, 0
    high = low + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) + 1
    return low * value.itemsize, high * value.itemsize


def _elements(value: torch.Tensor) -> frozenset[int]:
    """Offsets in bytes of a view's elements in their storage.

    Raises:
        CannotTrace: they are too many to look at.
    """
    sizes, strides = _numbers(value.shape), _numbers(value.stride())
    (offset,) = _numbers([value.storage_offset()])
    if math.prod(sizes) > tuning.MAX_COMPARED_ELEMENTS:
        raise CannotTrace("a write to large views that may overlap", even_in_parts=True)
    places = [offset]
    for size, stride in zip(sizes, strides, strict=True):
        places = [place + i * stride for place in places for i in range(size)]
    return frozenset(place * value.itemsize for place in places)


def _numbers(values: Any) -> list[int]:
    """Constants.

    Raises:
        SizesDecideViews: a number is symbolic.
    """
    if any(isinstance(value, torch.SymInt) for value in values):
        raise SizesDecideViews
    return list(values)


def _place(value: torch.Tensor) -> tuple[Any, ...]:
    return expressions((*value.shape, None, *value.stride(), value.storage_offset(), value.dtype))
