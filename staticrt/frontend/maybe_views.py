"""Where it matters whether `reshape` made a view or a copy.

Eager's `reshape`, `flatten` and `contiguous` give views where strides allow. With symbolic sizes that is known only if it holds
for all sizes; else a copy is recorded, which has the same numbers. The difference shows if one of the two is written while
somebody still sees the other: then sizes have to be constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

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
    """A write goes through what may be a view, and other sizes may say otherwise."""


def is_copy_for_now(source: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether other sizes might make a view of what is a copy here."""
    symbolic = any(isinstance(n, torch.SymInt) for n in (*source.shape, *source.stride(), *result.shape))
    return symbolic and _storage(source) != _storage(result)


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
        copied = min(places.get(copy, never) for _source, copy in tracer.maybe_views if groups[copy] == group)
        for step in steps:
            others = (s for s in members if s not in writers[step])
            if step > copied and any(seen.get(other, -1) > step for other in others):
                return True
    return False


def _groups(pairs: list[tuple[int, int]]) -> dict[int, int]:
    """Storages that one memory may stand behind -> the least of them."""
    groups: dict[int, int] = {}
    for a, b in pairs:
        first, second = groups.setdefault(a, a), groups.setdefault(b, b)
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
