"""`torch.utils.checkpoint` in joint traces: parts of the forward that the backward computes again.

A checkpoint without reentrant autograd is traced as if it were not there, and its operators are marked. What the backward
reads of a marked part is computed again from what entered the part, right before it is read. Dropout is drawn again in
the state that the generator had.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import CHECKPOINT, Tracer
from staticrt.passes.effects import is_pure
from staticrt.training.partition import is_random

aten = torch.ops.aten
_staticrt = torch.ops.staticrt


def checkpoints(tracer: Callable[[], Tracer]) -> contextlib.AbstractContextManager[None]:
    """Context manager in which this thread's checkpoints only mark what they record.

    Args:
        tracer: the one that records.
    """
    count = 0

    def part(preserve: bool, context: Callable[..., Any], debug: bool) -> Iterator[None]:
        nonlocal count
        if debug or not torch_private.is_plain_checkpoint(context):
            raise CannotTrace("a checkpoint with a context, or a debug mode, of its own", even_in_parts=True)
        recording = tracer()
        outer = recording.marks
        count += 1
        if CHECKPOINT not in outer():  # one in another belongs to the outer one
            mark = {CHECKPOINT: count if preserve else -count}
            recording.marks = lambda: {**outer(), **mark}
        try:
            yield
        finally:
            recording.marks = outer

    return torch_private.checkpoint_parts(part)


class Recomputed:
    """What of a forward lies in checkpoints.

    Args:
        nodes: of a joint graph, its forward; nodes for the states of the generator are added to the graph.
        is_view: whether a node is a view of its first argument.

    Raises:
        CannotTrace: a second run of a part would not be as the first one.
    """

    def __init__(self, nodes: Sequence[fx.Node], is_view: Callable[[fx.Node], bool]) -> None:
        parts: dict[fx.Node, int] = {}
        draws: list[fx.Node] = []
        for node in nodes:
            source: Any = node.args[0] if node.target is operator.getitem else node
            number = parts.get(source, node.meta.get(CHECKPOINT))
            if number is None or node.op != "call_function":
                continue
            if is_random(node):
                if node.target is not aten.native_dropout.default or number < 0:
                    raise CannotTrace(
                        "a checkpoint that draws other random numbers in each run", "", even_in_parts=True
                    )
                draws.append(node)
            elif not is_pure(node):
                raise CannotTrace(
                    f"a checkpoint that calls {node.target}, in each run", "", even_in_parts=True
                )
            parts[node] = number
        known = set(nodes)
        self._escaping: set[fx.Node] = set()  # read outside of their part, also by views of them
        for node in reversed(nodes):
            part = parts.get(node)
            for user in node.users:
                if user.target is aten.copy_.default and part is not None:
                    raise CannotTrace("a checkpoint that writes, in each run", "", even_in_parts=True)
                if user.op == "output" or (
                    user in known and (parts.get(user) != part or (user in self._escaping and is_view(user)))
                ):
                    self._escaping.add(node)
        self._parts = parts
        self._states = {node: _state_before(node) for node in draws}

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """What the backward reads to compute a node again."""
        state = self._states.get(node)
        return node.all_input_nodes if state is None else [*node.all_input_nodes, state]

    def add(self, node: fx.Node, graph: fx.Graph, env: dict[fx.Node, fx.Node]) -> fx.Node:
        """The copy of a node of the forward in a backward graph, of which `env` gives the nodes that it reads."""
        made = graph.node_copy(node, env.__getitem__)
        if node in self._states:
            x, p, _train = made.args
            made.target, made.args = _staticrt.dropout_again.default, (x, env[self._states[node]], p)
        return made

    def __contains__(self, node: fx.Node) -> bool:
        """Whether the backward computes a node again where it reads it."""
        return node in self._parts and node not in self._escaping


def _state_before(dropout: fx.Node) -> fx.Node:
    """A new node in the forward: the generator's state before a dropout."""
    x: Any = dropout.args[0]
    with dropout.graph.inserting_before(dropout):
        state = dropout.graph.call_function(_staticrt.random_state.default, (x,))
    state.meta["val"] = x.meta["val"].new_empty(torch.get_rng_state().shape, dtype=torch.uint8)
    return state
