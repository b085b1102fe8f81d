"""Partitions for activation budgets below 1: a smaller budget never raises the peak memory of a step.

AOTAutograd's partitioner counts saved bytes, but not what the backward holds while it recomputes: with nothing saved,
recomputing the last activation computes all others, which are needed later (pytorch/pytorch #197838). In that case the
backward here recomputes in two levels: first the values that a larger budget would have saved, then the others from
them. Some values are computed once more, and each is computed only where it is read.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
from torch import fx

from staticrt.ops import facts_of_call
from staticrt.ops.facts import Cost
from staticrt.passes.cse import APART
from staticrt.training.recompute import Drop, Move, keeps, saved_storages
from staticrt.training.saved import _root
from staticrt.training.work import storage_bytes

# Larger budgets whose partitions may serve a smaller one; each costs one run of the partitioner.
BUDGETS = (1.0, 0.5, 0.2, 0.1)


@dataclasses.dataclass(frozen=True)
class Cut:
    """A joint graph, partitioned.

    Args:
        forward, backward: the graphs.
        num_results: results of the region, the first outputs of the forward.
        unrepeatable: names of the forward's nodes that must not be computed again.
    """

    forward: fx.GraphModule
    backward: fx.GraphModule
    num_results: int
    unrepeatable: Container[str]

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward saves for the backward beside its results, which callers hold anyway."""
        return sum(map(storage_bytes, self._saved))

    @property
    def peak_bytes(self) -> int:
        """Estimated peak bytes of a step, without inputs, results and gradients."""
        return self.saved_bytes + max(live_bytes(self.forward), live_bytes(self.backward))

    @property
    def let_go(self) -> set[fx.Node]:
        """The backward's inputs that only its autograd node holds, until their last reader."""
        owners = self._saved
        move = Move(self.forward, self.backward, self.num_results)
        return {placeholder for saved, placeholder in move.known.items() if _root(saved) in owners}

    @property
    def _saved(self) -> set[fx.Node]:
        """The nodes that own what only the backward will read."""
        outputs: Any = self.forward.graph.output_node().args[0]
        results = {_root(item) for item in outputs[: self.num_results] if isinstance(item, fx.Node)}
        return saved_storages(self.forward, self.num_results).keys() - results


def cut_within(budget: float, cut: Callable[[float], Cut]) -> Cut:
    """The partition for a budget below 1, or another that saves no more bytes and has a lower peak.

    Args:
        budget: share of the activations that may be saved.
        cut: partitions for a budget; every call returns new graphs.
    """
    best = cut(budget)
    limit, peak = best.saved_bytes, best.peak_bytes
    for larger in BUDGETS:
        if larger > budget:
            found = cut(larger)
            if save_less(found, limit) and found.peak_bytes < peak:
                best, peak = found, found.peak_bytes
    return best


def live_bytes(graph: fx.GraphModule) -> int:
    """Peak bytes of the values of a graph, without its inputs and outputs.

    A pointwise operator is assumed to write into an argument that is not read later.
    """
    born: dict[fx.Node, int] = {}  # owner of memory -> its position in the graph
    last: dict[fx.Node, int] = {}
    nodes = list(graph.graph.nodes)
    for place, node in enumerate(nodes):
        if node.op == "call_function" and _root(node) is node and storage_bytes(node):
            born[node] = place
        for source in node.all_input_nodes:
            last[_root(source)] = place
    dying: list[list[fx.Node]] = [[] for _ in nodes]
    for owner in born:
        end = last.get(owner, born[owner])
        if nodes[end].op != "output":
            dying[end].append(owner)
    counted = {owner for end in dying for owner in end}
    live = most = 0
    for node, ends in zip(nodes, dying, strict=True):
        size = storage_bytes(node) if node in counted else 0
        reused = (
            bool(size)
            and _is_pointwise(node)
            and any(storage_bytes(o) == size for o in ends if o is not node)
        )
        live += size
        most = max(most, live - size * reused)
        live -= sum(storage_bytes(owner) for owner in ends)
    return most


def delayed(cut: Cut) -> Cut:
    """Let the backward compute each value where it is first read, unless what it is computed from would live longer.

    Args:
        cut: its backward is changed in place.
    """
    graph = cut.backward.graph
    if any(node.op == "call_function" and keeps(node) for node in graph.nodes):
        return cut
    free = set(graph.find_nodes(op="placeholder")) - cut.let_go
    readers: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            readers.setdefault(_root(source), set()).add(node)
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or not node.users:
            continue
        first = min(node.users)  # nodes compare by their position in the graph
        sources = {_root(source) for source in node.all_input_nodes} - free
        if all(any(first <= reader for reader in readers[each] if reader is not node) for each in sources):
            first.prepend(node)
    cut.backward.recompile()
    return cut


def save_less(cut: Cut, limit: int) -> bool:
    """Recompute saved values in the backward, the earliest ones first, until the rest fits.

    Args:
        cut: its graphs are changed in place.
        limit: bytes that may stay saved.

    Returns:
        Whether the limit was reached; if not, the cut is unchanged.
    """
    move = Move(cut.forward, cut.backward, cut.num_results)
    if not move.aligned:
        return False
    stored = saved_storages(cut.forward, cut.num_results)
    # Nodes compare by their position in the graph.
    owners = sorted(
        owner
        for owner, values in stored.items()
        if owner not in move.owners and not any(_stays(node, cut.unrepeatable) for node in (owner, *values))
    )
    before = cut.saved_bytes

    def drop(count: int) -> Drop | None:
        return _without(cut, move, [value for owner in owners[:count] for value in stored[owner]])

    def fits(count: int) -> bool:
        found = drop(count)
        return found is not None and before - found.bytes <= limit

    if not fits(len(owners)):
        return False
    chosen = drop(bisect.bisect_left(range(len(owners)), True, key=fits))
    assert chosen is not None
    if chosen.saved:
        for node in move.apply(chosen):
            node.meta[APART] = "early"
        move.finish()
        delayed(cut)
    return True


def _without(cut: Cut, move: Move, gone: Sequence[fx.Node]) -> Drop | None:
    """What replaces saved values: nodes to recompute and values to save; None if the forward lacks them."""
    values = dict.fromkeys(gone)
    owners = dict.fromkeys(_root(value) for value in values)
    held = {_root(node) for node in move.known} - owners.keys()
    needed = set(values)
    chain: list[fx.Node] = []
    added: list[fx.Node] = []
    for node in reversed(cut.forward.graph.nodes):
        if node not in needed or (node in move.known and node not in values):
            continue
        if node.op == "placeholder" or _root(node) in held or _stays(node, cut.unrepeatable):
            if not isinstance(node.meta.get("val"), torch.Tensor):
                return None
            added.append(node)
        elif node.op != "call_function" or isinstance(node.target, torch._ops.HigherOrderOperator):
            return None
        else:
            chain.append(node)
            needed.update(node.all_input_nodes)
    more = dict.fromkeys(_root(node) for node in added)
    freed = sum(map(storage_bytes, owners)) - sum(
        storage_bytes(owner) for owner in more if owner not in held and owner.op != "placeholder"
    )
    return Drop(tuple(values), freed, 0.0, tuple(reversed(chain)), tuple(reversed(added)))


def _stays(node: fx.Node, unrepeatable: Container[str]) -> bool:
    """Whether a value is saved rather than computed again."""
    if node.name in unrepeatable:
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    facts = facts_of_call(node.target, node.args, node.kwargs)
    return facts.random or bool(facts.mutates) or not facts.pure


def _is_pointwise(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    return facts_of_call(node.target, node.args, node.kwargs).cost is Cost.POINTWISE
