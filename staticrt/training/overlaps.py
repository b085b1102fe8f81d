"""Writes that depend on the layout of memory, and views that must not be written.

Eager refuses some writes to memory that the operator also reads; AOTAutograd writes a copy instead. In-place operators
that draw random numbers draw in the order of memory; AOTAutograd's functional forms draw in another order.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from staticrt import torch_private
from staticrt.training.graph_split import draws, memory_of_value, writes


def overlapping_writes(gm: fx.GraphModule) -> dict[str, str]:
    """Nodes of a Dynamo graph that write a tensor and read another view of its memory, or write windows: they run eagerly.

    Returns:
        Why, by their names.
    """
    found = {}
    for node in gm.graph.nodes:
        if node.op not in ("call_function", "call_method") or not writes(node):
            continue
        if _reads_what_it_writes(node):
            found[node.name] = "it reads the memory that it writes"
        elif _writes_windows(node):
            found[node.name] = "it writes a view that unfold() makes"
    return found


def draws_by_memory(gm: fx.GraphModule) -> dict[str, str]:
    """Nodes of a Dynamo graph that fill memory that is not row-major with random numbers: they run eagerly.

    Returns:
        Why, by their names.
    """
    return {
        node.name: "it draws in the order of memory, which is not row-major"
        for node in gm.graph.nodes
        if draws(node)
        and (writes(node) or _drops_in_place(node))
        and not all(map(_is_row_major, node.all_input_nodes))
    }


def views_of_several(gm: fx.GraphModule) -> dict[str, str]:
    """Nodes of a Dynamo graph such as `chunk` that return several views, some of them results: they run eagerly.

    Eager refuses a write to such a view. AOTAutograd makes a separate tensor of it, which may be written.

    Returns:
        Why, by their names.
    """
    found = {}
    for item in gm.graph.output_node().all_input_nodes:
        node: fx.Node | None = item
        if not torch_private.is_one_of_several_views(item.meta.get("example_value")):
            continue
        memory = memory_of(item)
        while node is not None and isinstance(node.meta.get("example_value"), torch.Tensor):
            node = next((each for each in node.all_input_nodes if memory in _memories(each)), None)
        if node is not None:
            found[node.name] = "it gives several views, and eager refuses writes to them"
    return found


def _memories(node: fx.Node) -> list[int | None]:
    value = node.meta.get("example_value")
    return [memory_of_value(item) for item in (value if isinstance(value, (tuple, list)) else (value,))]


def _drops_in_place(node: fx.Node) -> bool:
    """Whether a dropout writes in place: by its last argument, or because it always does."""
    name = getattr(node.target, "__name__", "")
    return "dropout" in name and ("alpha" in name or node.args[3:] not in ((), (False,)))


def _is_row_major(node: fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_contiguous()


def _reads_what_it_writes(node: fx.Node) -> bool:
    written, *others = node.all_input_nodes or [node]
    memory = memory_of(written)
    return memory is not None and any(
        memory_of(other) == memory for other in others if not _is_written_back(node, other)
    )


def _writes_windows(node: fx.Node) -> bool:
    """Whether a node writes a view by `unfold`: AOTAutograd makes zeros of what lies between and behind its windows."""
    view = next(iter(node.all_input_nodes), node)
    memory = memory_of(view)
    while memory is not None:
        base = next((each for each in view.all_input_nodes if memory_of(each) == memory), None)
        if base is None:  # also of torch.nn.functional.unfold, which copies
            return False
        if getattr(view.target, "__name__", view.target) == "unfold":
            return True
        view = base
    return False


def _is_written_back(node: fx.Node, value: fx.Node) -> bool:
    """Whether a node is the last of the three that Python makes of `x[i] += y`: read, write in place, assign."""
    if node.target is not operator.setitem or not value.args:
        return False
    piece = value.args[0]
    return isinstance(piece, fx.Node) and piece.target is operator.getitem and piece.args == node.args[:2]


def memory_of(node: fx.Node) -> int | None:
    """Identifies the memory of a value of a Dynamo graph."""
    return memory_of_value(node.meta.get("example_value"))


def held_memory(inputs: Sequence[Any], written: frozenset[int]) -> tuple[tuple[Any, ...], frozenset[int]]:
    """Inputs, and indices of those that are written, with what wrappers (DTensors) hold in their place, whose memory is their own."""
    held = [(part, i in written) for i, value in enumerate(inputs) for part in _held(value)]
    return tuple(part for part, _ in held), frozenset(
        i for i, (_, is_written) in enumerate(held) if is_written
    )


def _held(value: Any) -> list[Any]:
    if not is_traceable_wrapper_subclass(value):
        return [value]
    names, _context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    return [held for name in names for held in _held(getattr(value, name))]
