"""May this node be replayed now? The checks, in the order they are made."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from staticrt.capture.inputs import overlap_pattern
from staticrt.capture.liveness import PathIndex
from staticrt.capture.storage import ptrs_equal, storage_ptr
from staticrt.capture.tree import Node


class Check(enum.Enum):
    """One condition of a replay."""

    MANAGED = "managed inputs are where they were captured"
    DEAD_BEFORE = "what had died before the capture is dead"
    STATIC = "static inputs are where they were captured"
    OVERLAP = "inputs share memory as they did"
    DEAD_AFTER = "what died during the capture dies with its inputs"


# Checks that are made; tests take one out to see that something notices.
ENABLED: set[Check] = set(Check)


class Mismatch(NamedTuple):
    """Why a node cannot be replayed.

    Args:
        inputs: whose place was another.
        text: the reason, made when somebody wants to read it.
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
        return Mismatch(Check.OVERLAP, (), lambda: "inputs share memory in another way than when captured")
    if node.dead_after and Check.DEAD_AFTER in ENABLED:
        surprise = _surprise(node, inputs)
        if surprise is not None:
            return Mismatch(Check.DEAD_AFTER, (), lambda: _still_held(node, surprise, "during"))
    return None


def _first_alive(node: Node, places: Sequence[PathIndex]) -> PathIndex | None:
    for place in places:
        output = node.path[place[0]][place[1]]
        if output is not None and output.alive():
            return place
    return None


def _surprise(node: Node, inputs: Sequence[Any]) -> PathIndex | None:
    """An output that died inside the capture and would survive this call's inputs."""
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
    """Which of these inputs are elsewhere than captured."""
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
