"""The checks that decide whether a node may be replayed, in the order in which they run."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from staticrt.graphs.inputs import overlap_pattern
from staticrt.graphs.liveness import PathIndex
from staticrt.graphs.storage import ptrs_equal, storage_ptr
from staticrt.graphs.tree import Node


class Check(enum.Enum):
    """One condition of a replay."""

    MANAGED = "managed inputs have the addresses of the capture"
    DEAD_BEFORE = "outputs that were dead before the capture are dead"
    STATIC = "static inputs have the addresses of the capture"
    OVERLAP = "inputs share memory as they did at the capture"
    DEAD_AFTER = "outputs that died during the capture die with the inputs of this call"


# The checks that run. Tests remove one to see that another check fails.
ENABLED: set[Check] = set(Check)


class Mismatch(NamedTuple):
    """Why a node cannot be replayed.

    Args:
        inputs: indices of the inputs that moved.
        text: makes the reason on demand.
    """

    check: Check
    inputs: tuple[int, ...]
    text: Callable[[], str]


def check(node: Node, inputs: Sequence[Any]) -> Mismatch | None:
    """The first check that fails, or None: replay."""
    if node.managed and Check.MANAGED in ENABLED and not ptrs_equal(inputs, node.ptrs, node.managed):
        return _moved(node, inputs, Check.MANAGED, node.managed)
    if node.dead_before and Check.DEAD_BEFORE in ENABLED:
        place = _first_alive(node, node.dead_before)
        if place is not None:
            return Mismatch(Check.DEAD_BEFORE, (), lambda: _still_held(node, place, "before"))
    if node.static and Check.STATIC in ENABLED and not ptrs_equal(inputs, node.ptrs, node.static):
        return _moved(node, inputs, Check.STATIC, node.static)
    if node.overlap and Check.OVERLAP in ENABLED and overlap_pattern(inputs, node.outside) != node.overlap:
        return Mismatch(Check.OVERLAP, (), lambda: "inputs share memory in another way than at the capture")
    if node.dead_after and Check.DEAD_AFTER in ENABLED:
        survivor = _survivor(node, inputs)
        if survivor is not None:
            return Mismatch(Check.DEAD_AFTER, (), lambda: _still_held(node, survivor, "during"))
    return None


def _first_alive(node: Node, places: Sequence[PathIndex]) -> PathIndex | None:
    for place in places:
        output = node.path[place[0]][place[1]]
        if output is not None and output.alive():
            return place
    return None


def _survivor(node: Node, inputs: Sequence[Any]) -> PathIndex | None:
    """An output that died inside the capture and would outlive this call's inputs."""
    for place in node.dead_after:
        output = node.path[place[0]][place[1]]
        if output is None or not output.alive():
            continue
        given = [
            inputs[index]
            for index in node.managed
            if index not in node.preserved and storage_ptr(inputs[index]) == output.ptr
        ]
        if output.alive_without(given):
            return place
    return None


def moved_inputs(node: Node, inputs: Sequence[Any], indices: Sequence[int]) -> tuple[int, ...]:
    """Which of these inputs have another address than at the capture."""
    return tuple(
        index
        for index in indices
        if isinstance(inputs[index], torch.Tensor)
        and node.ptrs[index] is not None
        and inputs[index].data_ptr() != node.ptrs[index]
    )


def _moved(node: Node, inputs: Sequence[Any], which: Check, indices: Sequence[int]) -> Mismatch:
    moved = moved_inputs(node, inputs, indices)
    pointers = [(index, node.ptrs[index], inputs[index].data_ptr()) for index in moved]

    def text() -> str:
        kind = "output of the step" if which is Check.MANAGED else "static"
        parts = [
            f"{node.function.input_name(index)} was captured as {kind} at {ptr:#x}, now at {now:#x}"
            for index, ptr, now in pointers
        ]
        return "; ".join(parts)

    return Mismatch(which, moved, text)


def _still_held(node: Node, place: PathIndex, when: str) -> str:
    depth, index = place
    nodes = node.path_nodes()
    owner = nodes[depth].function if depth < len(nodes) else node.function
    trace = owner.stack_trace(index)
    return f"output {index} of {owner.name}, dead {when} the capture, is still held" + (
        f" (made at {trace.strip()})" if trace else ""
    )
