"""The current path of a tree: its last node, when the path ends, and what happens then to outputs that are still held.

The state (NONE, WARMUP, CAPTURE, REPLAY) is the kind of the path's last call; NONE means that there is no path. After a warmup,
capture or restore the pool's bookkeeping matches the live storages. Replays do not update it.
"""

from __future__ import annotations

import enum
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from staticrt import locks
from staticrt.errors import InternalError
from staticrt.frontend.reasons import warn
from staticrt.graphs import poisoning, restore
from staticrt.graphs.functions import Function
from staticrt.graphs.generations import Generations
from staticrt.graphs.liveness import PathOutput
from staticrt.graphs.policy import Policy
from staticrt.graphs.protocol import GraphBackend
from staticrt.graphs.recaptures import Recaptures
from staticrt.graphs.storage import is_plain, rehome, storage_ptr, storage_ref
from staticrt.graphs.tree import Node, PathNode


class State(enum.Enum):
    """What the last call of the path was."""

    NONE = "none"
    WARMUP = "warmup"
    CAPTURE = "capture"
    REPLAY = "replay"


# Warmups, captures and new managers change allocators and streams of the whole process.
process_lock = locks.reentrant()


class Paths:
    """The nodes of one tree and the current path through them, whose live outputs must not be overwritten."""

    def __init__(self, backend: GraphBackend, device: int, policy: Policy, generations: Generations) -> None:
        self.backend = backend
        # Replays take any addresses, so callers hold no memory of the pool.
        self.bound = backend.caps.rebind_inputs and backend.caps.rebind_outputs
        self.device = device
        self.policy = policy
        self.generations = generations
        self.roots: dict[Function, list[Node]] = {}
        self.recaptures = Recaptures(policy)
        with process_lock, backend.device_scope(device):
            self.stream = backend.new_stream(device) if backend.caps.has_streams else None
            self.pool = backend.new_pool(device)
        self._current: PathNode | None = None
        self.state = State.NONE
        self._generation: int | None = None
        self._next_number = 0
        self._next_warmup = 0
        self.in_call = False
        self._seen: weakref.WeakSet[Function] = weakref.WeakSet()
        self._suspect = False  # a failed warmup or capture may have left memory in the pool
        self._clock = 0  # for the least recently used
        self._thread: int | None = None  # that called first
        self.shared = False  # threads share the tree, and results leave the pool at once
        self.captures = 0
        self.restores = 0
        self.rehomed_bytes = 0
        self.evicted = 0
        self.mutation_warnings = 0
        if policy.caches_outputs:
            # Stays on: the switch is process-wide, and other managers may still have cached tensors.
            torch._C._set_cached_tensors_enabled(True)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on the tree's device."""
        return self.backend.owns(tensor) and tensor.device.index in (None, self.device)

    @property
    def seen(self) -> list[Function]:
        """Functions that were called and still exist, the oldest first."""
        return sorted(self._seen, key=lambda function: function.id)

    @property
    def current(self) -> PathNode | None:
        """The node of the last call; None once the path has ended."""
        return self._current

    def nodes(self) -> list[Node]:
        """All captures, parents before children, in order of capture among siblings."""
        return [n for roots in self.roots.values() for root in roots for n in root.descendants()]

    def all_roots(self) -> list[Node]:
        """Captures without a parent."""
        return [root for roots in self.roots.values() for root in roots]

    def _begin(self, function: Function, inputs: Sequence[Any]) -> None:
        """End the path if a new step begins with this call."""
        if self._current is None:
            return
        if self.policy.live_outputs != "reuse":
            twice = self.generations.number() != self._generation and self._twice_on_path(function)
            if twice or (self._may_start() and not self._continues(inputs)):
                self._end_path(inputs=inputs)  # so an endless y = f(y) starts again at a root
            elif self.state is not State.REPLAY and self._current.all_dead():
                self._set_none()
            return
        if self.state in (State.CAPTURE, State.WARMUP):
            if self._may_start():
                self._end_path()
            elif self._current.all_dead():
                self._set_none()
            else:
                self._warn_pending(function)

    def _try_end(self) -> bool:
        """End the path if no live output needs it. Returns whether there is no path now."""
        if self._current is None:
            return True
        if self.policy.live_outputs == "reuse" and self._may_start():
            self._end_path()
        elif self._current.all_dead():
            self._set_none()
        return self._current is None

    def _may_start(self) -> bool:
        return self._generation != self.generations.number() and self.generations.may_start()

    def _continues(self, inputs: Sequence[Any]) -> bool:
        """Whether an input is, or is a view of, an alive output of the path."""
        assert self._current is not None
        alive = {output.ptr for output in self._current.alive_storages()}
        if not alive:
            return False
        return any(
            isinstance(value, torch.Tensor)
            and value.layout is torch.strided
            and value.untyped_storage().data_ptr() in alive
            for value in inputs
        )

    def _twice_on_path(self, function: Function) -> bool:
        assert self._current is not None
        return sum(node.function is function for node in self._current.path_nodes()) >= 2

    def _end_path(self, move: bool = False, inputs: Sequence[Any] = ()) -> None:
        """End the path. The policy decides whether outputs that are still held move out of the pool, are poisoned, or stay.

        Args:
            move: move them out in any case, because the pool is about to go.
            inputs: inputs of the call that begins. They are moved, never poisoned.
        """
        node = self._current
        if node is None:
            return
        if move:
            for each in node.path_nodes():
                if isinstance(each, Node):
                    each.drop_caches()
        if move or self.policy.live_outputs == "clone":
            self._move_out(node.alive_storages())
        elif self.policy.live_outputs == "error" or self.state is not State.REPLAY:
            given = {storage_ptr(v) for v in inputs if isinstance(v, torch.Tensor) and is_plain(v)}
            self._move_out([output for output in node.alive_storages() if output.ptr in given])
            poisoning.poison_path(node)
        self._set_none()

    def _set_none(self) -> None:
        self._current = None
        self.state = State.NONE

    def _enter(self, node: PathNode, state: State) -> None:
        self._current = node
        self.state = state
        self._generation = self.generations.number()

    def _warn_pending(self, function: Function) -> None:
        """Warn if a pending backward keeps a loop from ever starting a new generation."""
        if function.warned_pending or self._generation == self.generations.number():
            return
        assert self._current is not None
        nodes = self._current.path_nodes()
        existing = [n for n in nodes if n.function is function]
        if len(existing) <= 1:
            return
        parents = {n.parent.function for n in (*existing, self._current) if n.parent is not None}
        if len(parents) == len(existing):
            return
        function.warned_pending = True
        warn(
            "Unable to hit fast path of graph replay because outputs from a previous step still require backward. "
            "Call backward(), detach the outputs, or call mark_step_begin() before each step."
        )

    def _siblings(self, parent: PathNode | None) -> dict[Function, list[Node]]:
        if parent is None:
            return self.roots
        assert isinstance(parent, Node)
        return parent.children

    def _move_out(self, outputs: Iterable[PathOutput]) -> None:
        with self.pool.moving():
            for output in outputs:
                self.rehomed_bytes += rehome(output.ref)
                output.moved = True

    def _restore(self) -> None:
        node = self._current
        assert isinstance(node, Node)
        self.restores += 1
        restore.restore(self.pool, node, self.policy.check_pool)
        self.state = State.CAPTURE

    def _escape(self, outputs: Sequence[Any]) -> None:
        """Move outputs that lie in the pool, except those of the path, to memory of their own."""
        live = self.pool.live_ptrs()
        if self._current is not None:
            live -= {output.ptr for output in self._current.alive_storages()}
        moved: set[int] = set()
        for out in outputs:
            if not isinstance(out, torch.Tensor) or not is_plain(out):
                continue
            ref = storage_ref(out)
            if ref.recorded_ptr in live and ref.recorded_ptr not in moved:
                moved.add(ref.recorded_ptr)
                self.rehomed_bytes += rehome(ref)

    def _check_pool(self, node: PathNode | None, when: str, more: tuple[int, ...] = ()) -> None:
        if self.policy.check_pool:
            restore.check(self.pool, node, when, more)

    def validate(self) -> None:
        """Check the invariants that hold between calls.

        Raises:
            InternalError: with the first broken invariant.
        """
        current = self._current
        if (current is None) != (self.state is State.NONE):
            raise InternalError(f"state is {self.state.value}, the current node {current}")
        if current is not None and self.state is not State.WARMUP and current not in self.nodes():
            raise InternalError(f"the current node, of {current.function.name}, is not in the tree")
        if self._suspect:
            return
        # Replays do not update the pool's bookkeeping; in all other states it matches the live storages.
        node = None if self.state is State.REPLAY else current
        restore.check(self.pool, node, f"in state {self.state.value}")

    def _warn(self, function: Function, reason: str) -> None:
        warn(f"staticrt: {function.name} runs uncaptured: {reason}")
