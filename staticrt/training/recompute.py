"""Recomputes cheap saved values in the backward from other saved values: fewer bytes for little time.

AOTAutograd's partitioner counts every value by itself and treats recomputation as free, as on a GPU that fuses all
pointwise operators (pytorch/pytorch #197838). Here bytes are counted per distinct storage, and the added time is limited
to a share of the backward's. Storages are dropped one by one, those with the most bytes per nanosecond first, until the
time is used up. Values that eager computes in its backward without an incoming gradient (the mask of a maximum) are
recomputed there if they are larger than their inputs. The number of saved bytes never grows.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Container
from typing import Any

import torch
from torch import fx

from staticrt import torch_private, tuning
from staticrt.ops import facts_of_call
from staticrt.ops.facts import Cost
from staticrt.training.saved import _root
from staticrt.training.work import nanoseconds, storage_bytes

aten = torch.ops.aten

# Operators of other cost classes that read each element a few times.
_CHEAP = {aten.native_layer_norm.default, aten._softmax.default, aten._log_softmax.default}


@dataclasses.dataclass(frozen=True)
class Drop:
    """A storage that need not be saved.

    Args:
        saved: its saved values, in the order of the forward's outputs.
        bytes: bytes freed, less bytes saved in its place.
        nanoseconds: time of the recomputation, without nodes that eager also computes in its backward.
        chain: the nodes to recompute, in order.
        added: values that must be saved for the chain and were not.
    """

    saved: tuple[fx.Node, ...]
    bytes: int
    nanoseconds: float
    chain: tuple[fx.Node, ...]
    added: tuple[fx.Node, ...]


def saved_storages(forward: fx.GraphModule, num_results: int) -> dict[fx.Node, list[fx.Node]]:
    """The saved tensors by the node that owns their memory, without those that view inputs."""
    outputs: Any = forward.graph.output_node().args[0]
    found: dict[fx.Node, list[fx.Node]] = {}
    for item in outputs[num_results:]:
        if isinstance(item, fx.Node) and isinstance(item.meta.get("val"), torch.Tensor):
            root = _root(item)
            if root.op != "placeholder" and item not in found.setdefault(root, []):
                found[root].append(item)
    return found


def saved_bytes(forward: fx.GraphModule, num_results: int) -> int:
    """Bytes of the distinct storages that a forward saves, without inputs; symbolic sizes count as traced."""
    return sum(storage_bytes(root) for root in saved_storages(forward, num_results))


def recompute_cheap_values(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    num_results: int,
    unrepeatable: Container[str],
    kept_inputs: Container[str] = (),
    share: float = 0.03,
) -> list[Drop]:
    """Replace saved values by recomputation, in place, where it costs little.

    Args:
        forward, backward: as partitioned; the backward takes saved tensors in the order of the forward's outputs.
        num_results: results of the region, the first outputs of the forward.
        unrepeatable: names of forward nodes that must not be recomputed, and of inputs that must not be read later.
        kept_inputs: names of inputs that eager saves; saving them costs no additional memory.
        share: limit of the added time, as a share of the backward's estimated time.

    Returns:
        The dropped storages, in order.
    """
    move = Move(forward, backward, num_results, unrepeatable, kept_inputs)
    unread = move.drop_unread()
    left = share * sum(nanoseconds(node) for node in backward.graph.nodes)
    dropped: list[Drop] = []
    for _round in range(tuning.RECOMPUTE_ROUNDS):  # values saved for one drop may serve another
        before = len(dropped)
        # Most bytes per nanosecond first; `sorted` is stable, so ties keep the order of the forward.
        for found in sorted(move.candidates(), key=lambda drop: -drop.bytes / (drop.nanoseconds + 1.0)):
            drop = move.renewed(found)  # earlier drops may have made it longer, or impossible
            if drop is not None and drop.nanoseconds <= left:
                move.apply(drop)
                left -= drop.nanoseconds
                dropped.append(drop)
        if len(dropped) == before:
            break
    if dropped or unread:
        move.finish()
    return dropped


class Move:
    """Moves values from saved to recomputed in a pair of graphs.

    Args:
        forward, backward, num_results, unrepeatable, kept_inputs: as of `recompute_cheap_values`.

    Attributes:
        aligned: whether the backward takes exactly the values that the forward saves; required for moves.
        known: saved forward node -> the backward's node with the same value.
        owners: the forward's nodes that own the memory of results.
    """

    def __init__(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        num_results: int,
        unrepeatable: Container[str] = (),
        kept_inputs: Container[str] = (),
    ) -> None:
        self._forward, self._backward = forward, backward
        self._num_results = num_results
        self._roots: dict[fx.Node, fx.Node] = {}
        self._unrepeatable = unrepeatable
        outputs: Any = forward.graph.output_node().args[0]
        self.owners = {self._root(item) for item in outputs[:num_results] if _is_tensor(item)}  # of results
        saved = [item for item in outputs[num_results:] if _is_tensor(item)]
        sizes = [item for item in outputs[num_results:] if not _is_tensor(item)]
        held = [n for n in backward.graph.find_nodes(op="placeholder") if not torch_private.is_tangent(n)]
        tensors = [node for node in held if _is_tensor(node)]
        self.aligned = len(tensors) == len(saved) and len(held) - len(tensors) == len(sizes)
        self.known: dict[fx.Node, fx.Node] = {}
        if self.aligned:
            self.known = dict(zip(saved, tensors, strict=True))
            numbers = [node for node in held if not _is_tensor(node)]
            self.known |= {n: m for n, m in zip(sizes, numbers, strict=True) if isinstance(n, fx.Node)}
        self._gone: set[fx.Node] = set()
        inputs = forward.graph.find_nodes(op="placeholder")
        self._free = {n for n in inputs if _is_tensor(n) and n.name in kept_inputs and n not in self.known}
        self._added: list[fx.Node] = []
        self._again: dict[fx.Node, fx.Node] = {}  # forward node -> its recomputation in the backward

    def _root(self, node: fx.Node) -> fx.Node:
        """The node that owns the memory of one: it stays the same, and is asked for again and again."""
        found = self._roots.get(node)
        if found is None:
            found = self._roots[node] = _root(node)
        return found

    def drop_unread(self) -> int:
        """Drop saved tensors that the backward does not read; returns their number."""
        unread = [n for n, placeholder in self.known.items() if _is_tensor(n) and not placeholder.users]
        for node in unread:
            self._backward.graph.erase_node(self.known.pop(node))
        self._gone.update(unread)
        return len(unread)

    def candidates(self) -> list[Drop]:
        """All storages that can be dropped, in the order of the forward."""
        if not self.aligned:
            return []
        found = []
        for root, saved in saved_storages(self._forward, self._num_results).items():
            kept = [node for node in saved if node not in self._gone]
            if not kept or root in self.owners:
                continue
            drop = self._drop(root, kept)
            if drop is not None:
                found.append(drop)
        return found

    def renewed(self, drop: Drop) -> Drop | None:
        """The drop, computed again for the current graphs."""
        return self._drop(self._root(drop.saved[0]), list(drop.saved))

    def _drop(self, root: fx.Node, saved: list[fx.Node]) -> Drop | None:
        found = self._chain(root, saved)
        if found is None:
            return None
        chain, added = found
        owners = dict.fromkeys(self._root(node) for node in added)
        held = {self._root(node) for node in self.known} - {root} if owners else set()
        more = sum(storage_bytes(owner) for owner in owners if owner not in held and not self._callers(owner))
        size = storage_bytes(root) - more
        time = sum(nanoseconds(node) for node in chain if not torch_private.is_backward(node))
        if size <= 0 or (time > 0 and size < tuning.RECOMPUTED_MIN_BYTES):
            return None
        return Drop(tuple(saved), size, time, tuple(chain), tuple(added))

    def _callers(self, owner: fx.Node) -> bool:
        return owner in self.owners or owner.op == "placeholder"

    def _chain(self, root: fx.Node, saved: list[fx.Node]) -> tuple[list[fx.Node], list[fx.Node]] | None:
        """The nodes that recompute `saved`, in order, and the values to save in their place.

        None if that is not cheap.
        """
        order: dict[fx.Node, None] = {}
        added: dict[fx.Node, None] = {}
        cheap = 0

        def visit(node: fx.Node, for_backward: bool) -> bool:
            nonlocal cheap
            if node in order or node in added:
                return True
            if node in self.known and self._root(node) is not root:
                return True
            if node in self._free or (
                for_backward and self._root(node) in self.owners and self._root(node) is not root
            ):
                added[node] = None
                return True
            before = len(order), len(added), cheap
            ours = torch_private.is_backward(node)
            cheap += not ours
            fits = (
                cheap <= tuning.RECOMPUTED_NODES
                and len(order) < tuning.RECOMPUTED_CHAIN
                and self._repeatable(node)
            )
            if fits and all(visit(source, ours) for source in node.all_input_nodes):
                order[node] = None
                return True
            for entries, count in ((order, before[0]), (added, before[1])):
                for entry in list(entries)[count:]:
                    del entries[entry]
            cheap = before[2]
            if not for_backward or ours or not self._savable(node, root):
                return False
            added[node] = None
            return True

        if not all(visit(node, False) for node in saved):
            return None
        return list(order), list(added)

    def _savable(self, node: fx.Node, root: fx.Node) -> bool:
        """Whether a value that eager's backward reads can be saved: it must not view an input that may change."""
        return _is_tensor(node) and self._root(node) is not root and self._root(node).op != "placeholder"

    def _repeatable(self, node: fx.Node) -> bool:
        if node.op != "call_function" or node.name in self._unrepeatable:
            return False
        if node.target is operator.getitem or not isinstance(
            node.meta.get("val"), (torch.Tensor, tuple, list)
        ):
            return True  # arithmetic of sizes
        if not isinstance(node.target, torch._ops.OpOverload) or "recompute" in node.meta:
            return False
        facts = facts_of_call(node.target, node.args, node.kwargs)
        if facts.random or facts.mutates or not facts.pure:
            return False
        return (
            torch_private.is_backward(node)
            or facts.cost in (Cost.VIEW, Cost.POINTWISE)
            or node.target in _CHEAP
        )

    def apply(self, drop: Drop) -> list[fx.Node]:
        """Recompute a storage's saved values in the backward before their first use; returns the new nodes."""
        placeholders = [self.known.pop(node) for node in drop.saved]
        graph = self._backward.graph
        for node in drop.added:
            self._save(node)
        # Nodes compare by their position in the graph.
        first = min((user for node in placeholders for user in node.users), default=graph.output_node())
        made: dict[fx.Node, fx.Node] = {}
        with graph.inserting_before(first):
            for node in drop.chain:
                again = self._again.get(node)
                if again is None or not again < first:
                    again = graph.node_copy(node, lambda source: made.get(source) or self.known[source])
                made[node] = self._again[node] = again
        for node, placeholder in zip(drop.saved, placeholders, strict=True):
            placeholder.replace_all_uses_with(made[node])
            graph.erase_node(placeholder)
        self._gone.update(drop.saved)
        return list(made.values())

    def _save(self, node: fx.Node) -> None:
        """Save one more value, after the other tensors and before the incoming gradients."""
        value = node
        # Save the result itself instead of a detached view, so that autograd notices in-place writes to it.
        while value.target is aten.detach.default:
            value = value.all_input_nodes[0]
        if value not in self.known:
            self._free.discard(value)
            self._added.append(value)
            placeholders = self._backward.graph.find_nodes(op="placeholder")
            following = next((p for p in placeholders if torch_private.is_tangent(p)), None)
            body = next(n for n in self._backward.graph.nodes if n.op != "placeholder")
            with self._backward.graph.inserting_before(following or body):
                placeholder = self._backward.graph.placeholder(f"{value.name}_saved")
            placeholder.meta.update(value.meta)
            self.known[value] = placeholder
        self.known[node] = self.known[value]

    def finish(self) -> None:
        """Remove dropped values from the forward's outputs, and nodes without users."""
        output = self._forward.graph.output_node()
        values: Any = output.args[0]
        kept = [v for v in values[self._num_results :] if not (isinstance(v, fx.Node) and v in self._gone)]
        tensors = [value for value in kept if _is_tensor(value)]
        sizes = [value for value in kept if not _is_tensor(value)]
        output.args = ((*values[: self._num_results], *tensors, *self._added, *sizes),)
        for graph in (self._forward, self._backward):
            graph.graph.eliminate_dead_code(is_impure_node=keeps)
            graph.graph.lint()
            graph.recompile()


def keeps(node: fx.Node) -> bool:
    """Whether a node stays where it is, even if nothing reads it."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    facts = facts_of_call(target, node.args, node.kwargs)
    return bool(facts.mutates) or facts.random or not facts.pure


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)
