"""Nodes of a graph tree. A node is one capture of one function after one parent, under one liveness pattern.

A path is the sequence of nodes from a root to the current node. Parents own their children; children refer weakly to parents.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from enum import Enum
from typing import Any

import torch

from staticrt.graphs.functions import Function
from staticrt.graphs.inputs import Copies
from staticrt.graphs.liveness import PathIndex, PathOutput, liveness
from staticrt.graphs.outputs import Kind, OutputSpec, not_made, rebuild, shaped
from staticrt.graphs.protocol import GraphCapture, PoolImage, StorageRef
from staticrt.graphs.storage import storage_ref, tensor_at

Path = list[list[PathOutput | None]]


class PathNode:
    """The common part of warmups and captures: a position on a path and the storages of its outputs."""

    def __init__(self, number: int, function: Function, parent: PathNode | None) -> None:
        self.number = number
        self.function = function
        self._parent = weakref.ref(parent) if parent is not None else None
        self.outputs: list[PathOutput | None] = []
        self.path: Path = [*(parent.path if parent is not None else []), self.outputs]
        self.depth = len(self.path) - 1

    @property
    def parent(self) -> PathNode | None:
        """The node before this one; None for a root."""
        return self._parent() if self._parent is not None else None

    def path_nodes(self) -> list[PathNode]:
        """From the root to this node."""
        nodes: list[PathNode] = []
        node: PathNode | None = self
        while node is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]

    def alive(self) -> Iterator[tuple[PathIndex, PathOutput]]:
        """Live outputs on the path. A storage appears once for each output that aliases it."""
        for depth, level in enumerate(self.path):
            for index, output in enumerate(level):
                if output is not None and output.alive():
                    yield (depth, index), output

    def alive_storages(self) -> list[PathOutput]:
        """Live outputs on the path, each storage once."""
        return list({id(output): output for _place, output in self.alive()}.values())

    def all_dead(self) -> bool:
        """Whether no output of this path is alive."""
        for level in self.path:
            for output in level:
                if output is not None and output.alive():
                    return False
        return True

    def find(self, ptr: int) -> PathIndex | None:
        """The live path output whose storage had this address at the capture."""
        if ptr == 0:
            return None
        for place, output in self.alive():
            if output.ptr == ptr:
                return place
        return None

    def gave_out(self, ptr: int) -> bool:
        """Whether a storage of this address, alive or dead, is an output of the path."""
        return ptr != 0 and any(
            output is not None and output.ptr == ptr for level in self.path for output in level
        )


class WarmupNode(PathNode):
    """One uncaptured run inside the pool. Only warmups may follow it, because addresses are not stable yet."""

    def __init__(self, number: int, function: Function, parent: PathNode | None) -> None:
        super().__init__(number, function, parent)
        self._kept_parent = parent  # no parent owns a warmup; only its successor refers to it

    def add_outputs(
        self, outputs: Sequence[Any], known: Sequence[StorageRef], owns: Any, live: Container[int]
    ) -> None:
        """Track the liveness of outputs that are new storages on the device.

        Args:
            outputs: what the function returned.
            known: storages of inputs and constants, which do not belong to the pool.
            live: addresses of the pool's live blocks. The function did not allocate outputs at other addresses.
        """
        others = {ref.data_ptr() for ref in known if ref.use_count() > 0}
        seen: dict[int, PathOutput] = {}
        for out in outputs:
            if not isinstance(out, torch.Tensor) or out.layout is not torch.strided or not owns(out):
                self.outputs.append(None)
                continue
            ref = storage_ref(out)
            ptr = ref.recorded_ptr
            if ptr == 0 or ptr in others or ptr not in live:
                self.outputs.append(None)
                continue
            if ptr not in seen:
                place = self.find(ptr)
                found = self.path[place[0]][place[1]] if place is not None else None
                seen[ptr] = found or PathOutput(ref, ptr, out.untyped_storage().nbytes())
            self.outputs.append(seen[ptr])


class Node(PathNode):
    """One capture.

    Args:
        graph: the capture; replays run it.
        reason: why it was captured.
    """

    def __init__(
        self, number: int, function: Function, parent: Node | None, graph: GraphCapture, reason: str
    ) -> None:
        super().__init__(number, function, parent)
        self.graph = graph
        self.reason = reason
        self.children: dict[Function, list[Node]] = {}
        self.image: PoolImage | None = None

        # inputs
        self.managed: tuple[int, ...] = ()  # live in the pool: outputs of the path
        self.preserved: frozenset[int] = frozenset()  # managed ones that an output aliases
        self.static: tuple[int, ...] = ()  # used at their own addresses, outside the pool
        self.ptrs: list[int | None] = []  # addresses of managed and static inputs
        self.rebound: tuple[int, ...] = ()
        self.copies = Copies((), ())
        self.overlap: tuple[tuple[int, int, int], ...] = ()
        self.outside: tuple[int, ...] = ()  # tensor inputs that are not managed

        # liveness
        self.alive_before: list[list[bool]] = []
        self.alive_after: list[list[bool]] = []
        self.dead_before: list[PathIndex] = []
        self.dead_after: list[PathIndex] = []

        # outputs
        self.specs: list[OutputSpec] = []
        self.cacheable: list[bool] = []  # no output on any path aliases it
        self._caches_filled = False
        # Digest of the capture's inputs, while only calls of the same values replay; see `Manager._prove`.
        self.unproven: int | None = None
        self._news: list[tuple[int, OutputSpec]] | None = (
            None  # outputs for which a bound replay allocates memory
        )
        self._rebinds_all = False  # all inputs are tensors that a replay may find at other addresses
        self._only_news = False  # whether all outputs are such outputs

        # counters
        self.replays = 0
        self.passed_over: Counter[Enum] = Counter()  # by the check that failed
        self.copied_bytes = 0
        self.kernels = 0
        self.last_use = 0

    @property
    def cached_outputs(self) -> list[torch.Tensor | None]:
        """Per output the tensor object that replays return again."""
        return [output.cached if output is not None else None for output in self.outputs]

    def held_bytes(self) -> int:
        """Bytes that only this capture keeps alive: input buffers, constants, and live outputs."""
        held = {id(output): output.nbytes for output in self.outputs if output is not None and output.alive()}
        return self.copies.buffer_bytes + self.graph.constant_bytes + sum(held.values())

    def descendants(self) -> Iterator[Node]:
        """This node and all below it."""
        yield self
        for nodes in self.children.values():
            for child in nodes:
                yield from child.descendants()

    def fill_caches(self) -> None:
        """Create the tensor objects that replays return."""
        if self._caches_filled:
            return
        self._caches_filled = True
        for spec, output, cacheable in zip(self.specs, self.outputs, self.cacheable, strict=True):
            if cacheable and output is not None:
                assert spec.meta is not None
                output.cache(tensor_at(spec.meta))

    def drop_caches(self) -> None:
        """Drop cached tensors, so that outputs live as long as others hold them."""
        self._caches_filled = False
        for output in self.outputs:
            if output is not None:
                output.drop_cache()

    def mark_aliased(self, index: int) -> None:
        """Mark that another output aliases this one: each replay rebuilds it from now on."""
        self.cacheable[index] = False
        output = self.outputs[index]
        if output is not None:
            output.drop_cache()

    def replay(self, inputs: list[Any], cache: bool) -> list[Any]:
        """Copy the inputs that need it, run the graph, and return the outputs. Empties `inputs`.

        Args:
            cache: return the same tensor objects as the last replay.
        """
        self.replays += 1
        if self.copies.indices:
            self.graph.take_turn()
            self.copies.run(inputs)
            self.copied_bytes += self.copies.nbytes
        self.graph.replay()
        if cache:
            self.fill_caches()
        outputs = rebuild(self.specs, self.outputs, inputs, self.path)
        inputs.clear()
        return outputs

    def replay_bound(self, inputs: list[Any]) -> list[Any]:
        """Replay on a device whose graphs read and write at any addresses. Empties `inputs`."""
        self.replays += 1
        if self._news is None:
            self._prepare_news()
        assert self._news is not None
        memory = self.graph.replay_new(
            inputs if self._rebinds_all else [inputs[index] for index in self.rebound]
        )
        if self._only_news:
            inputs.clear()
            return memory
        owned = dict(zip((position for position, _spec in self._news), memory, strict=True))
        outputs: list[Any] = []
        for spec in self.specs:
            kind = spec.kind
            if spec.same_as >= 0:
                outputs.append(outputs[spec.same_as])
            elif kind is Kind.NEW or kind is Kind.ALIAS_NEW:
                outputs.append(shaped(spec, owned[spec.index]))
            else:
                outputs.append(not_made(spec, inputs))
        inputs.clear()
        return outputs

    def _prepare_news(self) -> None:
        """Compute, once, how a bound replay makes its outputs."""
        self._news = [(position, spec) for position, spec in enumerate(self.specs) if spec.kind is Kind.NEW]
        self._only_news = all(spec.kind is Kind.NEW and spec.whole for spec in self.specs)
        self._rebinds_all = self.rebound == tuple(range(len(self.ptrs)))

    def replace(self, other: Node) -> None:
        """Take over the counters of another capture of the same calls."""
        self.replays += other.replays
        self.passed_over += other.passed_over

    def freed_since(self) -> list[int]:
        """Addresses of path outputs that died since the capture, each once."""
        found: dict[int, None] = {}
        now = liveness(self.path)
        for depth, (before, level) in enumerate(zip(self.alive_after, now, strict=True)):
            for index, (was, alive) in enumerate(zip(before, level, strict=True)):
                output = self.path[depth][index]
                if was and not alive and output is not None:
                    found[output.ptr] = None
        return list(found)

    def drop(self) -> None:
        """Free the graph and everything below."""
        for node in list(self.descendants()):
            node.drop_caches()
            node.graph.reset()
            node.image = None
        self.children.clear()
