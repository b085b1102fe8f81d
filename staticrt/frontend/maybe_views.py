"""Where it matters whether `reshape` made a view or a copy.

Eager's `reshape`, `flatten` and `contiguous` give views where strides allow. With symbolic sizes that is known only if it holds
for all sizes; else a copy is recorded, which has the same numbers. The difference shows if one of the two is written while
somebody still sees the other, or if the caller gets both: then sizes have to be constants.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

if TYPE_CHECKING:
    from staticrt.frontend.trace import Tracer

aten = torch.ops.aten

MAYBE_VIEWS = frozenset(
    {
        aten.reshape.default,
        aten.reshape_as.default,
        aten.flatten.using_ints,
        aten.ravel.default,
        aten.contiguous.default,
    }
)


class SizesDecideViews(Exception):
    """Somebody would see that a view is a copy, and other sizes may say otherwise."""


@dataclasses.dataclass(frozen=True)
class MaybeView:
    """A copy that other sizes might make a view.

    Attributes:
        source, copy: their fake storages.
        is_view: eager makes a view of it for the sizes of this recording.
    """

    source: int
    copy: int
    is_view: bool


def find(func: Any, source: torch.Tensor, result: torch.Tensor) -> MaybeView | None:
    """What the result of one of MAYBE_VIEWS may be; None where all sizes make it the same."""
    symbolic = any(isinstance(n, torch.SymInt) for n in (*source.shape, *source.stride(), *result.shape))
    if not symbolic or _storage(source) == _storage(result):
        return None
    return MaybeView(_storage(source), _storage(result), _is_view_now(func, source, result))


def _is_view_now(func: Any, source: torch.Tensor, result: torch.Tensor) -> bool:
    sizes, strides, wanted, layout = (
        [n.node.hint if isinstance(n, torch.SymInt) else n for n in numbers]
        for numbers in (source.shape, source.stride(), result.shape, result.stride())
    )
    if any(n is None for numbers in (sizes, strides, wanted, layout) for n in numbers):
        return True  # for all that is known
    if func is aten.contiguous.default:
        return all(size == 1 or a == b for size, a, b in zip(sizes, strides, layout, strict=True))
    with _disable_current_modes():
        like = torch.empty_strided(sizes, strides, device="meta")
        try:
            return like.view(wanted) is not None
        except RuntimeError:
            return False


def results_show(tracer: Tracer, outputs: list[Any]) -> bool:
    """Whether the caller gets two tensors of memory of their own that eager makes one of.

    Args:
        tracer: after the model ran, `tracer.maybe_views` filled.
        outputs: the model's flat results.
    """
    groups = _groups([found for found in tracer.maybe_views if found.is_view])
    results = {storage for output in outputs for storage in _storages_of(output)} & groups.keys()
    given = {
        storage
        for node in tracer.graph.find_nodes(op="placeholder")
        for storage in _storages_of(node.meta.get("val"))
    }
    seen = [groups[storage] for storage in results | (given & groups.keys())]
    return bool(results) and len(seen) > len(set(seen))


def writes_show(tracer: Tracer, outputs: list[Any]) -> bool:
    """Whether the recorded model writes one of a copy and its source after the copy, and the other is seen later.

    Args:
        tracer: after the model ran, `tracer.maybe_views` filled.
        outputs: the model's flat results.
    """
    groups = _groups(tracer.maybe_views)
    places: dict[int, int] = {}  # of each copy: the step that made it
    written: dict[
        int, list[int]
    ] = {}  # group -> steps that write one of its storages, before or after copying
    writers: dict[int, set[int]] = {}  # step -> storages
    seen: dict[int, int] = {}  # storage -> last step that reads it
    for step, node in enumerate(tracer.graph.nodes):
        if node.op != "call_function":
            continue
        for storage in _storages_of(node.meta.get("val")):
            places.setdefault(storage, step)
        for argument in node.all_input_nodes:
            for storage in _storages_of(argument.meta.get("val")):
                seen[storage] = step
        for storage in _written(node):
            if storage in groups:
                written.setdefault(groups[storage], []).append(step)
                writers.setdefault(step, set()).add(storage)
    if not written:
        return False
    never = len(tracer.graph.nodes)
    for node in tracer.graph.find_nodes(op="placeholder"):
        seen.update(dict.fromkeys(_storages_of(node.meta.get("val")), never))
    for output in outputs:
        seen.update(dict.fromkeys(_storages_of(output), never))
    for group, steps in written.items():
        members = [storage for storage, own in groups.items() if own == group]
        copied = min(places.get(x.copy, never) for x in tracer.maybe_views if groups[x.copy] == group)
        for step in steps:
            others = (s for s in members if s not in writers[step])
            if step > copied and any(seen.get(other, -1) > step for other in others):
                return True
    return False


def _groups(found: list[MaybeView]) -> dict[int, int]:
    """Storages that one memory may stand behind -> the least of them."""
    groups: dict[int, int] = {}
    for x in found:
        first, second = groups.setdefault(x.source, x.source), groups.setdefault(x.copy, x.copy)
        low, high = min(first, second), max(first, second)
        groups.update({storage: low for storage, group in groups.items() if group == high})
    return groups


def _written(node: fx.Node) -> Iterator[int]:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for index, parameter in enumerate(schema.arguments):
        if parameter.alias_info is None or not parameter.alias_info.is_write:
            continue
        value = node.args[index] if index < len(node.args) else node.kwargs.get(parameter.name)
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, fx.Node):
                yield from _storages_of(item.meta.get("val"))


def _storages_of(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor):
        yield _storage(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _storages_of(item)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
