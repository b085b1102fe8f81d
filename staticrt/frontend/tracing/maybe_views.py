"""Checks whether a trace depends on `reshape` returning a view rather than a copy.

In eager, `reshape`, `flatten` and `contiguous` return views where strides allow it. With symbolic sizes a view is traced
only if strides allow it for all sizes; otherwise a copy with the same values is traced. The difference is visible if one
of the two tensors is written while the other is still read, if the caller gets both, or if a view's strides, which differ
from a copy's, reach a result; then sizes become constants. If the difference is not visible for the sizes of a recording,
but would be for others, guards exclude those.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from staticrt.shapes.fake_results import channels_last_strides, contiguous_strides, same, view_strides
from staticrt.shapes.size_checks import env_of

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
# Their results are contiguous, whatever they read.
_OF_OWN_LAYOUT = frozenset(
    {
        *(aten.linear.default, aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        *(aten.layer_norm.default, aten.native_layer_norm.default),
    }
)


class SizesDecideViews(Exception):
    """A traced copy is a view in eager for some sizes, and the difference is visible."""


@dataclasses.dataclass(frozen=True)
class MaybeView:
    """A copy that other sizes might make a view.

    Attributes:
        source, copy: their fake storages.
        nodes: the nodes of the two tensors; None where a view has the copy's strides.
        is_view: eager makes a view of it for the sizes of this recording.
        is_guarded: it is so for all sizes that the recording serves.
    """

    source: int
    copy: int
    nodes: tuple[fx.Node, fx.Node] | None
    is_view: bool
    is_guarded: bool = True


def find(
    func: Any, source: torch.Tensor, result: torch.Tensor, node_of: Callable[[torch.Tensor], fx.Node]
) -> MaybeView | None:
    """The possible copy that one of MAYBE_VIEWS makes; None if it is a view, or a copy, for all sizes."""
    if source.layout is not torch.strided:
        return None
    symbolic = any(isinstance(n, torch.SymInt) for n in (*source.shape, *source.stride(), *result.shape))
    if not symbolic or storage_of(source) == storage_of(result):
        return None
    is_guarded = func is not aten.contiguous.default or not _is_ours(source)
    nodes = None if func is aten.contiguous.default else (node_of(source), node_of(result))
    return MaybeView(
        storage_of(source), storage_of(result), nodes, _is_view_now(func, source, result), is_guarded
    )


def of_clone(source: torch.Tensor, result: torch.Tensor, memory_format: Any) -> MaybeView | None:
    """As `find`, for the copy that `reshape` or `contiguous` made: beneath autograd nothing else of them is seen.

    Which of the two it was, and so for which sizes eager makes a view, is not known.
    """
    numbers = (*source.shape, *source.stride())
    if memory_format is not torch.contiguous_format or not any(isinstance(n, torch.SymInt) for n in numbers):
        return None
    return MaybeView(storage_of(source), storage_of(result), None, is_view=True)


def _is_ours(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and any(env_of(n) is not None for n in (*x.shape, *x.stride()))


def contiguous(x: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor | None:
    """What `contiguous` returns for our sizes, without a guard; None for others, which torch's own kernel answers.

    Args:
        x: a fake tensor.
    """
    sizes, strides = x.shape, x.stride()
    if not _is_ours(x):
        return None
    if memory_format is torch.contiguous_format:
        wanted = contiguous_strides(x.fake_mode, sizes)  # type: ignore[attr-defined]
    elif memory_format is torch.channels_last and x.dim() == 4:
        wanted = channels_last_strides(x.fake_mode, sizes)  # type: ignore[attr-defined]
    else:
        return None
    if all((type(n) is int and n == 1) or same(a, b) for n, a, b in zip(sizes, strides, wanted, strict=True)):
        return x
    copy: torch.Tensor = aten.clone.default(x, memory_format=memory_format)
    return copy


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


def layouts_show(graph: fx.Graph, maybe_views: list[MaybeView], outputs: list[fx.Node]) -> bool:
    """Whether a view's strides, which are not the copy's, may reach a result.

    Guards say of each copy that reaches one whether eager makes a view.

    Args:
        graph: what was recorded, after the model ran.
        maybe_views: the copies found while it ran.
        outputs: the nodes of the model's results.
    """
    for read, made in (found.nodes for found in maybe_views if found.nodes is not None):
        source, copy = read.meta["val"], made.meta["val"]
        numbers = (*source.shape, *source.stride(), *copy.shape)
        if any(isinstance(n, torch.SymInt) and n.node.hint is None for n in numbers):
            continue  # decided by data
        is_empty = any(type(n) is int and n == 0 for n in source.shape)
        if is_empty or not _reaches(graph, made, outputs):
            continue
        strides = view_strides(
            source.fake_mode, source.shape, source.stride(), copy.shape, operator.eq, operator.eq
        )
        if strides is not None and any(
            size != 1 and a != b for size, a, b in zip(copy.shape, strides, copy.stride(), strict=True)
        ):
            return True
    return False


def _reaches(graph: fx.Graph, start: fx.Node, outputs: list[fx.Node]) -> bool:
    """Whether the strides of a result may follow from those of a node."""
    following = {start}
    for node in graph.nodes:
        if not following.isdisjoint(node.all_input_nodes) and node.target not in _OF_OWN_LAYOUT:
            following.add(node)
    return not following.isdisjoint(outputs)


def results_show(graph: fx.Graph, maybe_views: list[MaybeView], outputs: list[Any]) -> bool:
    """Whether the caller gets two tensors of memory of their own that eager makes one of.

    Args:
        graph: what was recorded, after the model ran.
        maybe_views: the copies found while it ran.
        outputs: the model's flat results.
    """
    groups = _groups([found for found in maybe_views if found.is_view or not found.is_guarded])
    results = {storage for output in outputs for storage in _storages_of(output)} & groups.keys()
    given = {
        storage
        for node in graph.find_nodes(op="placeholder")
        for storage in _storages_of(node.meta.get("val"))
    }
    seen = [groups[storage] for storage in results | (given & groups.keys())]
    return bool(results) and len(seen) > len(set(seen))


def writes_show(graph: fx.Graph, maybe_views: list[MaybeView], outputs: list[Any]) -> bool:
    """Whether the recorded model writes one of a copy and its source after the copy, and the other is seen later.

    Args:
        graph: what was recorded, after the model ran.
        maybe_views: the copies found while it ran.
        outputs: the model's flat results.
    """
    groups = _groups(maybe_views)
    places: dict[int, int] = {}  # of each copy: the step that made it
    written: dict[
        int, list[int]
    ] = {}  # group -> steps that write one of its storages, before or after copying
    writers: dict[int, set[int]] = {}  # step -> storages
    seen: dict[int, int] = {}  # storage -> last step that reads it
    for step, node in enumerate(graph.nodes):
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
    never = len(graph.nodes)
    for node in graph.find_nodes(op="placeholder"):
        seen.update(dict.fromkeys(_storages_of(node.meta.get("val")), never))
    for output in outputs:
        seen.update(dict.fromkeys(_storages_of(output), never))
    for group, steps in written.items():
        members = [storage for storage, own in groups.items() if own == group]
        copied = min(places.get(x.copy, never) for x in maybe_views if groups[x.copy] == group)
        for step in steps:
            others = (s for s in members if s not in writers[step])
            if step > copied and any(seen.get(other, -1) > step for other in others):
                return True
    return False


def _groups(found: list[MaybeView]) -> dict[int, int]:
    """Storage -> the least of the storages that may share memory with it."""
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
        yield storage_of(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _storages_of(item)


def storage_of(tensor: torch.Tensor) -> int:
    """An identifier of a tensor's storage, also of a fake tensor's."""
    return int(tensor.untyped_storage()._cdata)


def shares_storage(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether the node gives a tensor on the storage of `value`."""
    own = node.meta.get("val")
    return isinstance(own, torch.Tensor) and storage_of(own) == storage_of(value)
