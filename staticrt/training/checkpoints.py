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
from staticrt.frontend.tracing.tracer import BACKWARD, CHECKPOINT, Tracer
from staticrt.ops import draws
from staticrt.passes.cse import APART
from staticrt.passes.effects import is_pure, node_facts
from staticrt.training.checkpoint_state import Reached

aten = torch.ops.aten
_staticrt = torch.ops.staticrt


def checkpoints(
    tracer: Callable[[], Tracer], reentrant: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Context manager: this thread's checkpoints only mark the operators that they record.

    Args:
        tracer: records the operators.
        reentrant: includes checkpoints with reentrant autograd.
    """
    count = 0

    def part(
        call: tuple[Any, ...], preserve: bool, context: Callable[..., Any], debug: bool
    ) -> Iterator[None]:
        nonlocal count
        if debug or not torch_private.is_plain_checkpoint(context):
            raise CannotTrace("a checkpoint with a context, or a debug mode, of its own", even_in_parts=True)
        recording = tracer()
        outer = recording.marks
        recording.parts.append(Reached(call))
        count += 1
        if CHECKPOINT not in outer():  # one in another belongs to the outer one
            mark = {CHECKPOINT: count if preserve else -count}
            recording.marks = lambda: {**outer(), **mark}
        try:
            yield
        finally:
            recording.marks = outer

    def whole(function: Callable[..., Any], preserve: bool, args: tuple[Any, ...]) -> Any:
        if not any(isinstance(value, torch.Tensor) and value.requires_grad for value in args):
            raise CannotTrace(
                "a reentrant checkpoint of arguments that need no gradients, which cuts them off"
            )
        recording = tracer()
        outer = recording.marks

        def marks() -> dict[str, Any]:
            if not torch_private.all_gradients_are_wanted():
                raise CannotTrace(
                    "gradients of a few tensors through a reentrant checkpoint, which eager refuses"
                )
            return outer()

        recording.marks = marks
        context = torch_private.no_checkpoint_context
        with contextlib.contextmanager(part)((function, args), preserve, context, False):
            return function(*args)

    return torch_private.checkpoint_parts(part, whole if reentrant else None)


class Recomputed:
    """The parts of a forward that lie in checkpoints.

    Args:
        nodes: the forward of a joint graph; nodes for states of the random number generator are added to the graph.

    Raises:
        CannotTrace: a second run of a part would differ from the first.
    """

    def __init__(self, nodes: Sequence[fx.Node]) -> None:
        parts: dict[fx.Node, int] = {}
        random: list[fx.Node] = []
        for node in nodes:
            source: Any = node.args[0] if node.target is operator.getitem else node
            number = parts.get(source, node.meta.get(CHECKPOINT))
            if number is None or node.op != "call_function":
                continue
            if draws(node):
                if node.target is not aten.native_dropout.default or number < 0:
                    raise CannotTrace(
                        "a checkpoint that draws other random numbers in each run", "", even_in_parts=True
                    )
                random.append(node)
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
        self._states = {node: _state_before(node) for node in random}

    def inputs(self, node: fx.Node) -> list[fx.Node]:
        """The values that the backward reads to compute a node again."""
        state = self._states.get(node)
        return node.all_input_nodes if state is None else [*node.all_input_nodes, state]

    def add(self, node: fx.Node, graph: fx.Graph, env: dict[fx.Node, fx.Node]) -> fx.Node:
        """A copy of a node of the forward in a backward graph; `env` maps the nodes that it reads."""
        made = graph.node_copy(node, env.__getitem__)
        if node in self._states:
            x, p, _train = made.args
            made.target, made.args = _staticrt.dropout_again.default, (x, env[self._states[node]], p)
        return made

    def part_of(self, node: fx.Node) -> int | None:
        """The part that contains a node, if any."""
        return self._parts.get(node)

    def __contains__(self, node: fx.Node) -> bool:
        """Whether the backward computes a node again where it reads it."""
        return node in self._parts and node not in self._escaping


def recompute_parts(gm: fx.GraphModule) -> None:
    """Let the backward within a whole step's graph compute the checkpointed parts again, as eager's backward does.

    Raises:
        CannotTrace: a second run of a part would differ from the first.
    """
    if not any(CHECKPOINT in node.meta for node in gm.graph.nodes):
        return
    forward = [node for node in gm.graph.nodes if BACKWARD not in node.meta and node.op != "output"]
    recomputed = Recomputed(forward)
    _refuse_changed(gm.graph, recomputed)
    copies = _Copies()

    def copy_of(node: fx.Node) -> None:
        stack = [node]
        while stack:
            sources = recomputed.inputs(stack[-1])
            if missing := [each for each in sources if each in recomputed and each not in copies]:
                stack.append(missing[0])
                continue
            made = stack.pop()
            copies[made] = recomputed.add(made, gm.graph, copies)
            copies[made].meta[APART] = "again"

    for node in list(gm.graph.nodes):
        if BACKWARD in node.meta:
            for source in [each for each in node.all_input_nodes if each in recomputed]:
                if source not in copies:
                    with gm.graph.inserting_before(node):
                        copy_of(source)
                node.replace_input_with(source, copies[source])
    gm.recompile()


def _refuse_changed(graph: fx.Graph, recomputed: Recomputed) -> None:
    """Refuse parts that read an input which is written before their backward, where eager computes them again.

    Raises:
        CannotTrace: there is one.
    """
    written = _first_writes(graph)
    places = {node: place for place, node in enumerate(graph.nodes)}
    last: dict[int | None, int] = {}  # part -> the last node of the backward that reads it
    for node in graph.nodes:
        if BACKWARD in node.meta:
            last.update((recomputed.part_of(_root(each)), places[node]) for each in node.all_input_nodes)
    for node in graph.nodes:
        part = recomputed.part_of(node)
        for root in map(_root, node.all_input_nodes) if part is not None else ():
            if root in written and places[written[root]] < last.get(part, -1):
                raise CannotTrace("a checkpoint that reads what is written before its backward")


class _Copies(dict[fx.Node, fx.Node]):
    """Copies of nodes in their own graph; other nodes stand for themselves."""

    def __missing__(self, node: fx.Node) -> fx.Node:
        return node


def _first_writes(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Inputs of a graph -> the first node that writes them."""
    first: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.target is aten.copy_.default:
            first.setdefault(node.args[0], node.args[1])
        elif node.op == "call_function" and not is_pure(node):
            for source in node.all_input_nodes:
                if source.op == "placeholder":
                    first.setdefault(source, node)
    return first


def _root(node: fx.Node) -> fx.Node:
    """The base of a node, through any number of views."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def is_view(node: fx.Node) -> bool:
    """Whether a node only views its first argument, or is an item of such views."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and is_view(source)
    return isinstance(node.target, torch._ops.OpOverload) and node_facts(node).is_view and is_pure(node)


def _state_before(dropout: fx.Node) -> fx.Node:
    """A new node in the forward: the generator's state before a dropout."""
    x: Any = dropout.args[0]
    with dropout.graph.inserting_before(dropout):
        state = dropout.graph.call_function(_staticrt.random_state.default, (x,))
    state.meta["val"] = x.meta["val"].new_empty(torch.get_rng_state().shape, dtype=torch.uint8)
    return state
