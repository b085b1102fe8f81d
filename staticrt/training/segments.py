"""Cuts a backward graph where a bucket of gradients is complete, which `DistributedDataParallel` then reduces.

Each segment has its own autograd node: autograd accumulates the gradients of one before it runs the next. A cut lies
between two of eager's autograd nodes, because eager accumulates a gradient only after the node that computes it has
ended, so that changes of the parameter in a hook do not affect what the node reads. Values that later segments need are
passed from node to node like gradients. Views and cheap values of the forward are computed again.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.quick_graph import QuickGraph
from staticrt.frontend.tracing.tracer import AUTOGRAD_NODE
from staticrt.ops import facts_of_call
from staticrt.ops.facts import Cost
from staticrt.training.checkpoints import is_view


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a backward.

    Args:
        graph: its inputs are saved values, then incoming gradients and values of earlier segments; its outputs a
            gradient per input of the region (None in other segments), then values for the next segment.
        saved: which of the values saved for the whole backward it takes.
        num_incoming: inputs that are not saved.
        inputs: inputs of the region whose gradients it computes, in eager's order; of the last segment, as of `_pushed`.
        leads: of a later segment, for each value of earlier ones, the inputs whose gradients depend on it.
    """

    graph: fx.GraphModule
    saved: Sequence[int]
    num_incoming: int
    inputs: Sequence[int]
    leads: Sequence[Sequence[int]] = ()


@dataclasses.dataclass(frozen=True)
class Buckets:
    """How gradients are grouped for reduction.

    Args:
        limits: bytes from which on each bucket of gradients is full; the last holds for all further ones.
        reduced: whether the gradient of each input of the region is reduced.
    """

    limits: Sequence[int]
    reduced: Sequence[bool]


def whole(backward: fx.GraphModule) -> Segment:
    """A backward in one segment."""
    placeholders = backward.graph.find_nodes(op="placeholder")
    incoming = sum(map(torch_private.is_tangent, placeholders))
    gradients: Any = backward.graph.output_node().args[0]
    place = {node: i for i, node in enumerate(backward.graph.nodes)}
    none = [i for i, gradient in enumerate(gradients) if gradient is None]
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]
    inputs = none + _pushed(sorted(given, key=lambda i: place[gradients[i]]))
    return Segment(backward, range(len(placeholders) - incoming), incoming, inputs)


def _pushed(leaves: Sequence[int]) -> list[int]:
    """The order in which leaves must be handed to autograd's engine so that it accumulates their gradients as given.

    Eager accumulates each gradient once it is computed, and one node returns all gradients at once. The engine keeps leaves,
    which all have one priority, in a `std::priority_queue`; this follows the heap of libstdc++. Where other nodes are
    ready too, such as that of an input with a history, hooks of several parameters may run in another order.
    """
    heap = list(range(len(leaves)))
    pushed = list(leaves)
    for leaf in leaves:
        pushed[heap[0]] = leaf
        last = heap.pop()
        hole = 0
        while (child := 2 * hole + 2) <= len(heap):
            child -= child == len(heap)  # the left child, where there is no right one
            heap[hole] = heap[child]
            hole = child
        if heap:
            heap[hole] = last
    return pushed


def cut(backward: fx.GraphModule, buckets: Buckets) -> list[Segment]:
    """The segments of a backward, in the order in which they run; one, if there is one bucket only.

    Args:
        backward: of a joint trace; its nodes are in the order in which eager computes them.
        buckets: where to cut.
    """
    graph = _Backward(backward)
    starts = graph.starts(buckets)
    if not starts:
        return [whole(backward)]
    found: list[Segment] = []
    outgoing: list[fx.Node] = []
    for begin, end in reversed(list(itertools.pairwise([0, *starts, len(graph.nodes)]))):
        incoming, saved = graph.reads(begin, end, outgoing)
        if begin and not incoming:  # nothing leads from one to the other
            return [whole(backward)]
        found.append(graph.segment(begin, end, saved, incoming, outgoing))
        outgoing = incoming
    found[0] = dataclasses.replace(found[0], inputs=_pushed(found[0].inputs))  # the last
    return found[::-1]


class _Backward:
    """A backward graph with the place of each node.

    Attributes:
        nodes: operators, in order.
    """

    def __init__(self, backward: fx.GraphModule) -> None:
        placeholders = backward.graph.find_nodes(op="placeholder")
        self._saved = [node for node in placeholders if not torch_private.is_tangent(node)]
        self._tangents = [node for node in placeholders if torch_private.is_tangent(node)]
        self._gradients: list[Any] = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
        self.nodes = [node for node in backward.graph.nodes if node.op == "call_function"]
        self._place = {**dict.fromkeys(placeholders, -1), **{node: i for i, node in enumerate(self.nodes)}}
        depends = set(self._tangents)
        self._copied: set[fx.Node] = set()  # each segment that reads them computes them again
        for node in self.nodes:
            is_gradient = any(source in depends for source in node.all_input_nodes)
            if is_gradient:
                depends.add(node)
            if _is_number(node) or is_view(node) or (not is_gradient and _is_cheap(node)):
                self._copied.add(node)
        reached = dict.fromkeys(self._place, frozenset[int]())
        for index, gradient in enumerate(self._gradients):
            if isinstance(gradient, fx.Node):
                reached[gradient] |= {index}
        for node in reversed(self.nodes):
            for source in node.all_input_nodes:
                reached[source] |= reached[node]
        self._leads = {node: sorted(inputs) for node, inputs in reached.items()}
        self._one = [  # only the segment that computes them reads them
            node
            for node in self.nodes
            if node not in self._copied
            and (node not in depends or not isinstance(node.meta.get("val"), torch.Tensor))
        ]

    def starts(self, buckets: Buckets) -> list[int]:
        """The places at which the second and the following segments begin."""
        allowed = self._allowed()
        ready = sorted(
            (self._place[gradient], index)
            for index, gradient in enumerate(self._gradients)
            if isinstance(gradient, fx.Node) and buckets.reduced[index]
        )
        found: dict[int, None] = {}
        held: Counter[torch.dtype] = Counter()
        full: Counter[torch.dtype] = Counter()
        for place, index in ready:
            value = self._gradients[index].meta["val"]
            if not all(isinstance(size, int) for size in value.shape):
                continue
            held[value.dtype] += value.numel() * value.element_size()
            if held[value.dtype] < buckets.limits[min(full[value.dtype], len(buckets.limits) - 1)]:
                continue
            held[value.dtype] = 0
            full[value.dtype] += 1
            start = next((start for start in allowed if start > place), len(self.nodes))
            if start <= ready[-1][0]:
                found[start] = None
        return list(found)

    def _allowed(self) -> list[int]:
        """Where a segment may begin: where one of eager's nodes ends, and no value crosses that must not."""
        last: dict[fx.Node, int] = {}
        for node in reversed(self.nodes):
            users = [user for user in node.users if user in self._place]
            last[node] = max(
                (last[user] if user in self._copied else self._place[user] for user in users), default=-1
            )
            last[node] = max(last[node], self._place[node])
        blocked: set[int] = set()
        for node in self._one:
            blocked.update(range(self._place[node] + 1, last[node] + 1))
        following: list[Any] = [None] * (len(self.nodes) + 1)  # eager's node of the next operator
        for place in reversed(range(len(self.nodes))):
            following[place] = self.nodes[place].meta.get(AUTOGRAD_NODE, following[place + 1])
        found = []
        before: Any = None
        for place, node in enumerate(self.nodes):
            if before not in (None, following[place]) and place not in blocked:
                found.append(place)
            before = node.meta.get(AUTOGRAD_NODE, before)
        return found

    def reads(
        self, begin: int, end: int, outgoing: Sequence[fx.Node]
    ) -> tuple[list[fx.Node], dict[fx.Node, int]]:
        """The values of earlier segments, and the saved values, that a segment reads or passes on."""
        stack = [source for node in self.nodes[begin:end] for source in node.all_input_nodes]
        stack += outgoing
        stack += [g for g in self._gradients if begin == 0 and isinstance(g, fx.Node) and self._place[g] < 0]
        seen: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node not in seen and not begin <= self._place[node] < end:
                seen.add(node)
                if node in self._copied:
                    stack += node.all_input_nodes
        saved = {node: index for index, node in enumerate(self._saved) if node in seen}
        incoming = [*self._tangents, *self.nodes[:begin]]
        if begin:
            incoming = [node for node in incoming if node in seen and node not in self._copied]
        return incoming, saved

    def segment(
        self,
        begin: int,
        end: int,
        saved: dict[fx.Node, int],
        incoming: Sequence[fx.Node],
        outgoing: Sequence[fx.Node],
    ) -> Segment:
        """The segment of the operators from `begin` to `end`."""
        graph = QuickGraph()
        env: dict[fx.Node, fx.Node] = {}
        for node in saved:
            env[node] = graph.node_copy(node)
        for number, node in enumerate(incoming):
            env[node] = graph.placeholder(f"tangents_{number}")
            env[node].meta.update(node.meta)
        gradients = [
            g if isinstance(g, fx.Node) and begin <= max(self._place[g], 0) < end else None
            for g in self._gradients
        ]

        def add(node: fx.Node) -> None:
            for source in node.all_input_nodes:
                if source not in env:
                    add(source)
            env[node] = graph.node_copy(node, env.__getitem__)

        for node in self.nodes[begin:end]:
            if node not in env:
                add(node)
        graph.output(tuple([None if g is None else env[g] for g in gradients] + [env[v] for v in outgoing]))
        graph.eliminate_dead_code()
        inputs = [i for i, gradient in enumerate(gradients) if gradient is not None]
        inputs.sort(key=lambda i: self._place[self._gradients[i]])
        leads = [self._leads[node] for node in incoming] if begin else []
        return Segment(fx.GraphModule({}, graph), list(saved.values()), len(incoming), inputs, leads)


def _is_number(node: fx.Node) -> bool:
    """Also an item of a tuple that is copied."""
    value = node.meta.get("val")
    if node.target is operator.getitem:
        return not isinstance(value, torch.Tensor)
    return not isinstance(value, (torch.Tensor, tuple, list))


def _is_cheap(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    facts = facts_of_call(node.target, node.args, node.kwargs)
    return facts.pure and not facts.random and not facts.mutates and facts.cost in (Cost.VIEW, Cost.POINTWISE)
