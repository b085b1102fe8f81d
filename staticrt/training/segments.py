"""Cuts a backward graph into segments, each of which has an autograd node of its own.

A backward is cut where a result of the region is computed from another one, as a loss from the logits beside it: what
the first one's gradient adds to the other's is handed to the other's node, where autograd adds gradients from outside and
calls hooks. It is also cut where a bucket of gradients is complete, which `DistributedDataParallel` then reduces: autograd
accumulates the gradients of one segment before it runs the next. Such a cut lies between two of eager's autograd nodes,
because eager accumulates a gradient only after the node that computes it has ended, so that changes of the parameter in
a hook do not affect what the node reads. Values that later segments need are passed from node to node like gradients.
Views and cheap values of the forward are computed again.
"""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.quick_graph import QuickGraph
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import AUTOGRAD_NODE
from staticrt.ops import facts_of_call
from staticrt.ops.facts import Cost
from staticrt.training.checkpoints import is_view


@dataclasses.dataclass(frozen=True)
class Segment:
    """A part of a backward.

    Args:
        graph: its inputs are saved values, then incoming gradients of results, then values of earlier segments; its
            outputs a gradient per input of the region (None in other segments), then the incoming gradients (None
            for a result from which no earlier one is computed) and values of the next segment.
        saved: which of the values saved for the whole backward it takes.
        tangents: which of the incoming gradients of results it takes.
        num_incoming: inputs that are not saved.
        inputs: inputs of the region whose gradients it computes, in eager's order; of the last segment, as of `_pushed`.
        leads: of a later segment, for each input that is not saved, the gradients that depend on it: of inputs of the
            region by their number, of results as number of inputs + number of incoming gradient.
    """

    graph: fx.GraphModule
    saved: Sequence[int]
    tangents: Sequence[int]
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
    return Segment(backward, range(len(placeholders) - incoming), range(incoming), incoming, inputs)


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


def cut(
    backward: fx.GraphModule, num_inputs: int, levels: Sequence[int], buckets: Buckets | None
) -> list[Segment]:
    """The segments of a backward, in the order in which they run; often one.

    Args:
        backward: of a joint trace; its nodes are in the order in which eager computes them. It returns the gradients of
            the region's inputs and then, if a result is computed from another, for each incoming gradient what the
            region itself adds to it, or None.
        num_inputs: inputs of the region.
        levels: of each incoming gradient: how many results in a row are computed from its result, each from the last.
        buckets: where to cut further.

    Raises:
        CannotTrace: a value that cannot be computed twice is needed on both sides of a cut.
    """
    if buckets is None and not any(levels):
        return [whole(backward)]
    graph = _Backward(backward, num_inputs, levels)
    starts: list[tuple[int, int | None]] = [(place, level) for level, place in enumerate(graph.levels)]
    if buckets is not None:
        starts += [(place, None) for place in graph.starts(buckets) if place not in graph.levels]
    starts.sort(key=lambda start: start[0])
    found: list[Segment] = []
    outgoing: list[fx.Node | None] = []
    end = len(graph.nodes)
    for begin, level in reversed(starts):
        part = graph.part(begin, end, level, outgoing)
        if not found or found[-1].num_incoming:
            found.append(graph.segment(part, outgoing))
        else:  # nothing leads from one to the other
            return cut(backward, num_inputs, levels, None)
        own = len(part.tangents)
        outgoing = [*(graph.added[node] for node in part.incoming[:own]), *part.incoming[own:]]
        end = begin
    found[0] = dataclasses.replace(found[0], inputs=_pushed(found[0].inputs))  # the last
    return found[::-1]


@dataclasses.dataclass(frozen=True)
class _Part:
    """The nodes of a segment.

    Args:
        gradients: of the inputs whose gradients it returns, by their number.
        tangents, incoming: as of `Segment`; `incoming` begins with the former.
        saved: the saved values that it takes, with their numbers.
        computed: the operators in it, also those that other segments compute too.
    """

    gradients: dict[int, fx.Node]
    tangents: list[int]
    incoming: list[fx.Node]
    saved: dict[fx.Node, int]
    computed: set[fx.Node]


class _Backward:
    """A backward graph with the place of each node.

    Attributes:
        nodes: operators, in an order in which those that need the gradient of a result of a higher level come later.
        levels: the place of the first node of each level.
        added: what the region itself adds to the incoming gradient of each result, or None.
    """

    def __init__(self, backward: fx.GraphModule, num_inputs: int, levels: Sequence[int]) -> None:
        placeholders = backward.graph.find_nodes(op="placeholder")
        self._saved = [node for node in placeholders if not torch_private.is_tangent(node)]
        self._tangents = [node for node in placeholders if torch_private.is_tangent(node)]
        outputs: Any = backward.graph.output_node().args[0]
        self._gradients: list[Any] = list(outputs[:num_inputs])
        added = outputs[num_inputs:] or [None] * len(self._tangents)
        self.added: dict[fx.Node, fx.Node | None] = dict(zip(self._tangents, added, strict=True))
        self.nodes = [node for node in backward.graph.nodes if node.op == "call_function"]
        depends = set(self._tangents)
        self._copied: set[fx.Node] = set()  # each segment that reads them computes them again
        for node in self.nodes:
            is_gradient = any(source in depends for source in node.all_input_nodes)
            if is_gradient:
                depends.add(node)
            if _is_number(node) or is_view(node) or (not is_gradient and _is_repeatable(node, cheaply=True)):
                self._copied.add(node)
        self._level = {**dict.fromkeys(self._saved, 0), **dict(zip(self._tangents, levels, strict=True))}
        self._find_levels(depends)
        self.nodes.sort(key=self._level.__getitem__)
        self.levels = [
            sum(self._level[node] < level for node in self.nodes) for level in range(max(levels) + 1)
        ]
        self._place = {**dict.fromkeys(placeholders, -1), **{node: i for i, node in enumerate(self.nodes)}}
        self._leads = self._find_leads()
        self._one = [  # only the segment that computes them reads them
            node
            for node in self.nodes
            if node not in self._copied
            and (node not in depends or not isinstance(node.meta.get("val"), torch.Tensor))
        ]

    def _find_levels(self, depends: set[fx.Node]) -> None:
        """The level of each operator: the highest of the incoming gradients it depends on, or that it is read at."""
        for node in self.nodes:
            if node in depends:
                self._level[node] = max(self._level.get(source, 0) for source in node.all_input_nodes)
        read_at: dict[fx.Node, set[int]] = {}
        for node in reversed(self.nodes):
            if node in depends:
                continue
            users = [user for user in node.users if user.op == "call_function"]
            at = read_at[node] = {0} if len(users) < len(node.users) else set()
            at.update(*(read_at.get(user, {self._level.get(user, 0)}) for user in users))
            self._level[node] = min(at, default=0)
            if len(at) > 1 and node not in self._copied:
                if not _is_repeatable(node, cheaply=False):
                    raise CannotTrace(
                        f"its backward needs what {node.target} computes before and after a result's gradient"
                    )
                self._copied.add(node)

    def _find_leads(self) -> dict[fx.Node, list[int]]:
        """The gradients that depend on each node, as of `Segment.leads`."""
        reached = dict.fromkeys(self._place, frozenset[int]())
        for index, gradient in enumerate(self._gradients):
            if isinstance(gradient, fx.Node):
                reached[gradient] |= {index}
        of_results: dict[fx.Node, list[fx.Node]] = {}
        for tangent, node in self.added.items():
            if node is not None:
                of_results.setdefault(node, []).append(tangent)
        number = {node: len(self._gradients) + i for i, node in enumerate(self._tangents)}

        def through_results(node: fx.Node) -> frozenset[int]:
            """What depends on a node also through the gradients of results that it is added to."""
            found = reached[node]
            for tangent in of_results.get(node, ()):
                found |= {number[tangent]} | through_results(tangent)
            return found

        for node in (*reversed(self.nodes), *self._tangents):  # a node comes before all that read its sum
            reached[node] = through_results(node)
            for source in node.all_input_nodes:
                reached[source] |= reached[node]
        return {node: sorted(gradients) for node, gradients in reached.items()}

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

    def part(self, begin: int, end: int, level: int | None, outgoing: Iterable[fx.Node | None]) -> _Part:
        """The segment of the operators from `begin` to `end`, which hands `outgoing` on.

        Args:
            begin, end: as above.
            level: whose results' gradients come in here; None if none do.
            outgoing: gradients of results, and values, of the next segment.
        """
        own = [i for i, node in enumerate(self._tangents) if self._level[node] == level]
        first = {*(self._tangents[i] for i in own), *(self._saved if level == 0 else ())}
        gradients = {
            i: gradient
            for i, gradient in enumerate(self._gradients)
            if isinstance(gradient, fx.Node) and (gradient in first or begin <= self._place[gradient] < end)
        }
        stack = [*gradients.values(), *(node for node in outgoing if node is not None)]
        seen: set[fx.Node] = set()
        computed: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self._copied or begin <= self._place[node] < end:
                computed.add(node)
                stack += node.all_input_nodes
        saved = {node: index for index, node in enumerate(self._saved) if node in seen}
        incoming = [self._tangents[i] for i in own]
        earlier = [*self._tangents, *self.nodes[:begin]]
        incoming += [
            node for node in earlier if node in seen and node not in computed and node not in incoming
        ]
        return _Part(gradients, own, incoming, saved, computed)

    def segment(self, part: _Part, outgoing: Sequence[fx.Node | None]) -> Segment:
        """The graph of a segment."""
        graph = QuickGraph()
        env: dict[fx.Node | None, fx.Node | None] = {None: None}
        for node in part.saved:
            env[node] = graph.node_copy(node)
        for number, node in enumerate(part.incoming):
            placeholder = env[node] = graph.placeholder(f"tangents_{number}")
            placeholder.meta.update(node.meta)
        for node in self.nodes:
            if node in part.computed:
                env[node] = graph.node_copy(node, lambda source: env[source])  # type: ignore[return-value,arg-type]
        returned = [part.gradients.get(i) for i in range(len(self._gradients))]
        graph.output(tuple(env[node] for node in (*returned, *outgoing)))
        inputs = sorted(part.gradients, key=lambda i: self._place[part.gradients[i]])
        leads = [self._leads[node] for node in part.incoming]
        for i, number in enumerate(part.tangents):
            leads[i] = [*leads[i], len(self._gradients) + number]
        module = fx.GraphModule({}, graph)
        return Segment(module, list(part.saved.values()), part.tangents, len(part.incoming), inputs, leads)


def _is_number(node: fx.Node) -> bool:
    """Also an item of a tuple that is copied."""
    value = node.meta.get("val")
    if node.target is operator.getitem:
        return not isinstance(value, torch.Tensor)
    return not isinstance(value, (torch.Tensor, tuple, list))


def _is_repeatable(node: fx.Node, cheaply: bool) -> bool:
    """Whether a node of the forward may be computed twice; `cheaply`: in little time."""
    if node.target is operator.getitem:
        return not cheaply
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    facts = facts_of_call(node.target, node.args, node.kwargs)
    is_cheap = facts.cost in (Cost.VIEW, Cost.POINTWISE)
    return facts.pure and not facts.random and not facts.mutates and (is_cheap or not cheaply)
