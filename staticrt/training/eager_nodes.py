"""Which of eager's autograd nodes a backward runs, and which saved values each of them reads.

A backward without `retain_graph` frees what the nodes that it runs have saved, and a second run of such a node raises.
One node of ours replaces all nodes of a region, so it tracks which of them have run: two results whose backwards share
no saving node need no `retain_graph`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.tracing.tracer import AUTOGRAD_NODE

# What a backward reads of a saved value: nothing, its data, or only its sizes, which remain after it is freed.
NOTHING, DATA, SIZES = range(3)


def saving_nodes(nodes: Iterable[Any]) -> frozenset[int]:
    """Sequence numbers of the autograd nodes that save tensors, which the first backward frees."""
    return frozenset(node._sequence_nr() for node in nodes if any(map(_is_saved, _saved_values(node))))


def _saved_values(node: Any) -> Iterable[Any]:
    kind: Any = type(node)
    for name in _names_of_saved(kind):
        try:
            yield getattr(node, name)
        except RuntimeError:  # written since: it was a tensor
            yield torch.empty(0)


@functools.cache
def _names_of_saved(kind: Hashable) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def _is_saved(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (isinstance(value, tuple) and any(map(_is_saved, value)))


def _sums_gradients(node: fx.Node, incoming: Container[fx.Node]) -> bool:
    """Whether a node may be autograd's sum of several gradients for one node."""
    return node.target is torch.ops.aten.add.Tensor and all(s in incoming for s in node.all_input_nodes)


@dataclasses.dataclass(frozen=True)
class Reach:
    """The incoming gradients that reach an autograd node, and the inputs whose gradients it leads to, as bit sets."""

    incoming: int = 0
    gradients: int = 0


class EagerNodes:
    """The autograd nodes of eager that a region's node replaces.

    Args:
        backward: the backward graph; its nodes have `AUTOGRAD_NODE`, or it is AOTAutograd's.
        saving: result of `saving_nodes`; None if unknown: the whole backward counts as one node that saves.

    Attributes:
        count: number of the nodes that save tensors.
        readers: for each value saved for the backward, the nodes that read its data.
    """

    def __init__(self, backward: fx.GraphModule, saving: frozenset[int] | None) -> None:
        placeholders = backward.graph.find_nodes(op="placeholder")
        tangents = [node for node in placeholders if torch_private.is_tangent(node)]
        self._saved = [node for node in placeholders if not torch_private.is_tangent(node)]
        gradients: Any = backward.graph.output_node().args[0]
        self._reach: list[Reach] = []
        self._is_one = saving is None
        if saving is None:
            everything = Reach(-1, -1)
            self._reach = [everything]
            self.readers = [[0] for _node in self._saved]
        else:
            self._find(backward, tangents, gradients, saving)
        self.count = len(self._reach)

    def _find(
        self,
        backward: fx.GraphModule,
        tangents: Sequence[fx.Node],
        gradients: Sequence[Any],
        saving: frozenset[int],
    ) -> None:
        incoming = {node: 1 << number for number, node in enumerate(tangents)}
        owner: dict[fx.Node, int] = {}  # node that an incoming gradient reaches -> its autograd node
        nodes = [node for node in backward.graph.nodes if node.op == "call_function"]
        for node in nodes:
            reached = functools.reduce(int.__or__, (incoming.get(s, 0) for s in node.all_input_nodes), 0)
            if reached:
                incoming[node] = reached
                before = next((owner[s] for s in node.all_input_nodes if s in owner), -1)
                owner[node] = node.meta.get(AUTOGRAD_NODE, before)
        leads = dict.fromkeys(backward.graph.nodes, 0)
        for number, gradient in enumerate(gradients):
            if isinstance(gradient, fx.Node):
                leads[gradient] |= 1 << number
        for node in reversed(nodes):
            for source in node.all_input_nodes:
                leads[source] |= leads[node]
        readers: dict[fx.Node, set[int]] = {node: set() for node in backward.graph.nodes}
        for node in reversed((*self._saved, *nodes)):
            for user in node.users:
                # Through what is computed again of saved values, not through other autograd nodes.
                readers[node] |= {owner[user]} if user in owner else readers[user]
        tensors = [node for node in self._saved if isinstance(node.meta.get("val"), torch.Tensor)]
        # Also nodes that do not show what they save.
        saving = saving.union(*(readers[node] for node in tensors))
        reach: dict[int, Reach] = {}
        for node, number in owner.items():
            if number in saving and not _sums_gradients(node, incoming):
                known = reach.get(number, Reach())
                reach[number] = Reach(known.incoming | incoming[node], known.gradients | leads[node])
        self._reach = list(reach.values())
        place = {number: position for position, number in enumerate(reach)}
        self.readers = [sorted(place[n] for n in readers[node] if n in place) for node in self._saved]

    def run_by(self, undefined: Sequence[bool], unneeded: Sequence[bool]) -> list[int]:
        """The nodes that run if these incoming gradients are undefined and these inputs need no gradients."""
        given = sum(1 << number for number, absent in enumerate(undefined) if not absent)
        wanted = ~sum(1 << number for number, skip in enumerate(unneeded) if skip)
        return [
            number
            for number, reach in enumerate(self._reach)
            if reach.incoming & given and reach.gradients & wanted
        ]

    def reads(self, run: Sequence[int], graph: fx.GraphModule) -> list[int]:
        """What some nodes read of each saved value.

        Args:
            run: the nodes.
            graph: the backward graph of this run.
        """
        found = []
        for node, readers in zip(graph.graph.find_nodes(op="placeholder"), self.readers, strict=False):
            # Without eager's nodes, the values are those that this run's gradients depend on.
            is_read = bool(node.users) if self._is_one else not set(readers).isdisjoint(run)
            if is_read or not isinstance(node.meta.get("val"), torch.Tensor):
                found.append(DATA)
            elif not node.users:
                found.append(NOTHING)
            else:
                found.append(SIZES if readers else DATA)
        return found
