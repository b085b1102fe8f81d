"""Which of eager's autograd nodes a backward runs, and what each of them reads of what the forward saves.

Eager frees what a node saved once a backward without `retain_graph` ran that node, and a second run of it raises. One
node of ours stands for all of a region's, so it keeps account of them: two results with a backward each, which have no
such node in common, need no `retain_graph`.
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

# What a backward reads of a saved value: nothing; its data; only its sizes, which outlive it.
NOTHING, DATA, SIZES = range(3)


def saving_nodes(nodes: Iterable[Any]) -> frozenset[int]:
    """Sequence numbers of the autograd nodes that save tensors, which a second backward does not find."""
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
    """Whether a node may be autograd's sum of what several of its nodes hand to one; the last of them makes it."""
    return node.target is torch.ops.aten.add.Tensor and all(s in incoming for s in node.all_input_nodes)


@dataclasses.dataclass(frozen=True)
class Reach:
    """What leads to an autograd node, and where it leads: bits of incoming gradients, and of inputs' gradients."""

    incoming: int = 0
    gradients: int = 0


class EagerNodes:
    """The autograd nodes of eager for which a region's node stands.

    Args:
        backward: the backward graph; its nodes have `AUTOGRAD_NODE`, or it is AOTAutograd's.
        saving: as of `saving_nodes`; None if that is not known: the whole backward counts as one node that saves.

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
        """The nodes that run where these incoming gradients are undefined and these inputs need none."""
        given = sum(1 << number for number, absent in enumerate(undefined) if not absent)
        wanted = ~sum(1 << number for number, skip in enumerate(unneeded) if skip)
        return [
            number
            for number, reach in enumerate(self._reach)
            if reach.incoming & given and reach.gradients & wanted
        ]

    def reads(self, run: Sequence[int], graph: fx.GraphModule) -> list[int]:
        """What the run of some nodes reads of each saved value.

        Args:
            run: the nodes.
            graph: the backward graph of this run.
        """
        found = []
        for node, readers in zip(graph.graph.find_nodes(op="placeholder"), self.readers, strict=False):
            # Where eager's nodes are not known, what this run's gradients follow from tells what they read.
            is_read = bool(node.users) if self._is_one else not set(readers).isdisjoint(run)
            if is_read or not isinstance(node.meta.get("val"), torch.Tensor):
                found.append(DATA)
            elif not node.users:
                found.append(NOTHING)
            else:
                found.append(SIZES if readers else DATA)
        return found
