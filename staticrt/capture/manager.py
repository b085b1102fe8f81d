"""The manager of one tree: which node a call replays, or captures, or that it runs plain.

States: NONE (no path), WARMUP, CAPTURE, REPLAY, by what the last call of the path was. After a warmup, capture or
restore the pool's bookkeeping is true; replays leave it behind.
"""

from __future__ import annotations

import enum
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.capture import checks, poisoning, restore
from staticrt.capture.capturing import CannotCapture, Capturing
from staticrt.capture.checks import Mismatch
from staticrt.capture.edges import Edges
from staticrt.capture.functions import Function, Mode
from staticrt.capture.gates import unfit_input, written_elsewhere
from staticrt.capture.generations import Generations
from staticrt.capture.liveness import PathOutput
from staticrt.capture.policy import Policy
from staticrt.capture.protocol import GraphBackend
from staticrt.capture.storage import is_plain, rehome, storage_ptr, storage_ref
from staticrt.capture.tree import Node, PathNode, WarmupNode
from staticrt.errors import CaptureError, InternalError


class State(enum.Enum):
    """What the last call of the path was."""

    NONE = "none"
    WARMUP = "warmup"
    CAPTURE = "capture"
    REPLAY = "replay"


# Warmup, capture and the making of managers change what allocators and streams of the process do.
_process_lock = threading.RLock()
_busy = threading.local()


def is_capturing() -> bool:
    """Whether this thread is inside a warmup or capture: wrapped functions run plain there."""
    return getattr(_busy, "depth", 0) > 0


class Manager:
    """Trees over one pool. Not thread-safe: the context's lock is held around every call."""

    def __init__(self, backend: GraphBackend, device: int, policy: Policy, generations: Generations) -> None:
        self.backend = backend
        self.device = device
        self.policy = policy
        self.generations = generations
        self.roots: dict[Function, list[Node]] = {}
        self.edges = Edges(policy)
        with _process_lock, backend.device_scope(device):
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
        self.captures = 0
        self.restores = 0
        self.rehomed_bytes = 0
        self.evicted = 0
        self.mutation_warnings = 0
        if policy.caches_outputs:
            # Never switched off again: the switch is the process's, and cached tensors of other managers may live.
            torch._C._set_cached_tensors_enabled(True)

    # -- what tests and explain() read ---------------------------------------------------------------------------

    @property
    def seen(self) -> list[Function]:
        """Functions that were called and still exist, the oldest first."""
        return sorted(self._seen, key=lambda function: function.id)

    @property
    def current(self) -> PathNode | None:
        """The node of the last call, while what its path gave out is respected."""
        return self._current

    def nodes(self) -> list[Node]:
        """All captures, parents before children, in order of capture among siblings."""
        return [n for roots in self.roots.values() for root in roots for n in root.descendants()]

    def all_roots(self) -> list[Node]:
        """Captures without a parent."""
        return [root for roots in self.roots.values() for root in roots]

    # -- a call --------------------------------------------------------------------------------------------------

    def call(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Run `function` on `inputs`, which are emptied.

        Raises:
            BaseException: what the function raised; the manager is as before the call, or has no path.
        """
        self.in_call = True
        self._seen.add(function)
        try:
            outputs = self._call(function, inputs)
        finally:
            self.in_call = False
            if function.mode is Mode.BACKWARD:
                self.generations.backward_ran()
        if function.mode is Mode.FORWARD:
            self.generations.forward_ran()
        if (
            function.mode is Mode.BACKWARD
            and self.policy.live_outputs == "clone"
            and self._current is not None
        ):
            # Gradients outlive their step: nobody copies them out of .grad later.
            self._move_out({id(o): o for o in self._current.outputs if o is not None and o.alive()}.values())
        return outputs

    def _call(self, function: Function, inputs: list[Any]) -> list[Any]:
        if self._suspect:
            self._clear_suspicion()
        if self.backend.caps.rebind_inputs and self.backend.caps.rebind_outputs:
            return self._call_bound(function, inputs)
        self._begin(function, inputs)
        while True:
            reason = self._plain_reason(function, inputs)
            if reason is not None:
                return self._run_plain(function, inputs, reason)
            if self._needs_warmup(function):
                if (unfit := unfit_input(function, inputs, self.backend)) is not None:
                    return self._run_plain(function, inputs, unfit)
                return self._warm_up(function, inputs)
            mismatch = None
            if self.state is not State.CAPTURE:
                node, mismatch = self._find(function, inputs)
                if node is not None:
                    return self._replay(node, inputs)
                if mismatch is not None and self.edges.surprised(self._current, function, mismatch):
                    return self._run_plain(function, inputs, f"liveness: {mismatch.text()}")
                if self._current is not None and function in self.roots and self._try_end():
                    continue
            break
        if function.mutated and (written := self._gate(function, inputs)) is not None:
            return self._run_plain(function, inputs, written)
        if mismatch is not None and self.edges.count(self._current, function, mismatch):
            reason = (
                f"more than {self.policy.recapture_limit} unexpected mismatches, the last: {mismatch.text()}"
            )
            self._warn(function, reason)
            return self._run_plain(function, inputs, reason)
        if (unfit := unfit_input(function, inputs, self.backend)) is not None:
            return self._run_plain(function, inputs, unfit)
        if self.state is not State.CAPTURE and self._current is not None and not self._try_end():
            self._restore()
        return self._capture(function, inputs, mismatch.text() if mismatch else "first call here")

    def _call_bound(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Where replays take any addresses, no call depends on another: every node is a root."""
        if function.plain_reason is not None:
            return self._run_plain(function, inputs, function.plain_reason)
        mismatch = None
        for node in self.roots.get(function, ()):
            mismatch = checks.check(node, inputs)
            if mismatch is None:
                self._touch(node)
                return node.replay_bound(inputs)
            self._note_unstable(function, mismatch)
        if (unfit := unfit_input(function, inputs, self.backend)) is not None:
            return self._run_plain(function, inputs, unfit)
        return self._capture(function, inputs, mismatch.text() if mismatch else "first call here")

    # -- paths and generations -----------------------------------------------------------------------------------

    def _begin(self, function: Function, inputs: Sequence[Any]) -> None:
        """End the path if a new step begins with this call."""
        if self._current is None:
            return
        if self.policy.live_outputs != "reuse":
            if (self._twice_on_path(function) and self.generations.number() != self._generation) or (self._may_start() and not self._continues(inputs)):
                self._end_path()
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
        """End the path if nothing needs it; whether there is none now."""
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
        """Leave the path; what is still held is moved out, poisoned or left, as the policy says.

        Args:
            move: move it out in any case, because the pool ends.
            inputs: of the call that begins: they are moved, not poisoned.
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
        """Warn of a loop in which no generation ever ends."""
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
        warnings.warn(
            "Unable to hit fast path of graph replay because outputs from a previous step still require backward. "
            "Call backward(), detach the outputs, or call mark_step_begin() before each step.",
            stacklevel=6,
        )

    # -- replay --------------------------------------------------------------------------------------------------

    def _find(self, function: Function, inputs: Sequence[Any]) -> tuple[Node | None, Mismatch | None]:
        """The node to replay; else the last mismatch."""
        mismatch = None
        for node in self._siblings(self._current).get(function, ()):
            found = checks.check(node, inputs)
            if found is None:
                return node, None
            self._note_unstable(function, found)
            mismatch = found
        return None, mismatch

    def _siblings(self, parent: PathNode | None) -> dict[Function, list[Node]]:
        if parent is None:
            return self.roots
        assert isinstance(parent, Node)
        return parent.children

    def _note_unstable(self, function: Function, mismatch: Mismatch) -> None:
        limit = self.policy.unstable_after
        if limit is None:
            return
        for index in mismatch.inputs:
            function.mismatches[index] += 1
            if function.mismatches[index] >= limit:
                function.unstable.add(index)

    def _replay(self, node: Node, inputs: list[Any]) -> list[Any]:
        for index in node.managed:
            if index not in node.preserved:
                inputs[index] = None
        self._enter(node, State.REPLAY)
        self._touch(node)
        try:
            return node.replay(inputs, self.policy.caches_outputs)
        except BaseException:
            # Whatever was written, this path has no promises to keep: what is held moves out.
            self._end_path()
            raise

    # -- warmup --------------------------------------------------------------------------------------------------

    def _needs_warmup(self, function: Function) -> bool:
        if self.state is State.WARMUP:
            return True
        caps = self.backend.caps
        return self.policy.warmup and not caps.capture_executes and not function.warmed_up

    def _warm_up(self, function: Function, inputs: list[Any]) -> list[Any]:
        with _process_lock:
            if self.state is State.REPLAY:
                self._restore()
            already = function.warmed_up
            node = WarmupNode(self._number(warmup=True), function, self._current)
            known = [
                storage_ref(value)
                for value in (*inputs, *function.constants)
                if isinstance(value, torch.Tensor)
                and value.layout is torch.strided
                and not (
                    self._current is not None and self._current.gave_out(value.untyped_storage().data_ptr())
                )
            ]
            if not already:
                self._check_pool(self._current, "before a warmup")
            try:
                with _inside(), self.backend.device_scope(self.device):
                    with self.backend.warmup_scope(self.pool, self.stream):
                        outputs = list(function.model(inputs))
                node.add_outputs(outputs, known, self.backend.owns)
            except BaseException:
                self._after_failure()
                raise
            function.warmed_up = True
            self._enter(node, State.WARMUP)
            if not already:
                self._check_leaks(function, outputs, "after a warmup")
            return outputs

    # -- capture -------------------------------------------------------------------------------------------------

    def _capture(self, function: Function, inputs: list[Any], reason: str) -> list[Any]:
        parent = self._current
        assert parent is None or isinstance(parent, Node)
        with _process_lock:
            if self.backend.caps.has_streams:
                self.backend.synchronize(self.device)
            capturing = Capturing(
                self.backend,
                self.pool,
                self.stream,
                self.device,
                self._number(),
                function,
                parent,
                inputs,
                reason,
            )
            node = capturing.node
            try:
                with _inside():
                    outputs = capturing.run(lambda more: self._check_pool(parent, "before a capture", more))
            except CannotCapture as failed:
                node.drop()
                return self._plain_after(function, capturing, failed, inputs)
            except restore.PoolLeak as leak:
                node.drop()
                if self.policy.leaks == "raise":
                    raise
                given = capturing.give_back()
                assert given is not None  # nothing ran yet
                inputs[:] = given
                self._abandon_pool()
                return self._run_plain(function, inputs, f"memory of the pool was held: {leak.message}")
            except BaseException as error:
                node.drop()
                given = capturing.give_back()
                if given is not None:
                    inputs[:] = given
                self._after_failure()
                if (
                    isinstance(error, Exception)
                    and not self.backend.caps.capture_executes
                    and given is not None
                ):
                    # Either the function is wrong, which a plain run shows, or it does what no capture may.
                    outputs = self._run_plain(function, inputs, f"{type(error).__name__}: {error}")
                    function.plain_reason = f"cannot be captured: {error}"
                    return outputs
                raise
            self.captures += 1
            if node.kernels < self.policy.min_kernels:
                function.plain_reason = f"its graph launches {node.kernels} kernels: nothing to gain"
                node.drop()
                self._escape(outputs)
                return outputs
            self._siblings(parent).setdefault(function, []).append(node)
            self._evict(parent, node)
            self._touch(node)
            if not self.backend.caps.rebind_outputs:
                self._enter(node, State.CAPTURE)
            self._check_leaks(function, outputs, "after a capture")
            return outputs

    def _plain_after(
        self, function: Function, capturing: Capturing, failed: CannotCapture, inputs: list[Any]
    ) -> list[Any]:
        """The results of a call whose capture cannot be replayed."""
        if failed.forever:
            function.plain_reason = f"cannot be captured: {failed}"
        if failed.outputs is not None:
            function.skips[f"cannot be captured: {failed}"] += 1
            self._escape(failed.outputs)
            self._after_failure()
            return failed.outputs
        given = capturing.give_back()
        if given is None:
            self._after_failure()
            raise CaptureError(
                f"{function.name} cannot be captured: {failed}, and its inputs died inside the capture",
                fix="keep the arguments alive during the call, or do not wrap the function",
            )
        inputs[:] = given
        return self._run_plain(function, inputs, function.plain_reason or str(failed))

    def _check_pool(self, node: PathNode | None, when: str, more: tuple[int, ...] = ()) -> None:
        if self.policy.check_pool:
            restore.check(self.pool, node, when, more)

    def _check_leaks(self, function: Function, outputs: Sequence[Any], when: str) -> bool:
        """Whether the function kept memory of the pool to itself; the pool is then left to it."""
        try:
            self._check_pool(self._current, when)
        except restore.PoolLeak as leak:
            if self.policy.leaks == "raise":
                raise
            function.plain_reason = f"keeps memory of the capture to itself: {leak.message}"
            self._warn(function, function.plain_reason)
            self._abandon_pool()
            self._escape(outputs)
            return True
        return False

    def _after_failure(self) -> None:
        """A warmup or capture was interrupted: whoever holds the exception may hold memory of the pool."""
        self._suspect = True

    def _clear_suspicion(self) -> None:
        self._suspect = False
        try:
            restore.check(
                self.pool, self._current if self.state is not State.REPLAY else None, "after a failure"
            )
        except restore.PoolLeak:
            self._abandon_pool()

    def _abandon_pool(self) -> None:
        """Leave the pool to whoever holds memory in it, and begin anew."""
        self._end_path(move=True)
        self.drop_all()
        self.pool = self.backend.new_pool(self.device)

    # -- plain runs ----------------------------------------------------------------------------------------------

    def _run_plain(self, function: Function, inputs: list[Any], reason: str) -> list[Any]:
        function.skips[reason] += 1
        with _inside():
            return function.run_plain(inputs)

    def _plain_reason(self, function: Function, inputs: Sequence[Any]) -> str | None:
        if function.plain_reason is not None:
            return function.plain_reason
        if function.mutated and (written := self._gate(function, inputs)) is not None:
            return written
        return self.edges.limit_reached(self._current, function)

    def _gate(self, function: Function, inputs: Sequence[Any]) -> str | None:
        """Why a function that writes its inputs runs plain now."""
        reason = written_elsewhere(function, inputs, self._current, self.policy)
        if reason is not None and not function.warned_mutation:
            function.warned_mutation = True
            self.mutation_warnings += 1
            self._warn(function, reason)
        return reason

    def _warn(self, function: Function, reason: str) -> None:
        warnings.warn(f"staticrt: {function.name} runs uncaptured: {reason}", stacklevel=7)

    # -- memory --------------------------------------------------------------------------------------------------

    def _restore(self) -> None:
        node = self._current
        assert isinstance(node, Node)
        self.restores += 1
        restore.restore(self.pool, node, self.policy.check_pool)
        self.state = State.CAPTURE

    def _escape(self, outputs: Sequence[Any]) -> None:
        """Move outputs that are in the pool to memory of their own."""
        live = self.pool.live_ptrs()
        moved: set[int] = set()
        for out in outputs:
            if not isinstance(out, torch.Tensor) or not is_plain(out):
                continue
            ref = storage_ref(out)
            if ref.recorded_ptr in live and ref.recorded_ptr not in moved:
                moved.add(ref.recorded_ptr)
                self.rehomed_bytes += rehome(ref)

    def _move_out(self, outputs: Sequence[PathOutput]) -> None:
        for output in outputs:
            self.rehomed_bytes += rehome(output.ref)
            output.moved = True

    # -- limits --------------------------------------------------------------------------------------------------

    def _touch(self, node: Node) -> None:
        self._clock += 1
        node.last_use = self._clock

    def _evict(self, parent: PathNode | None, newest: Node) -> None:
        """Keep at most `max_graphs` siblings: the least recently used go, with all below them."""
        siblings = self._siblings(parent)
        every = [node for nodes in siblings.values() for node in nodes]
        current = set(map(id, self._current.path_nodes())) if self._current is not None else set()
        while len(every) > self.policy.max_graphs:
            candidates = [n for n in every if id(n) not in current and n is not newest]
            if not candidates:
                return
            oldest = min(candidates, key=lambda n: n.last_use)
            every.remove(oldest)
            self._remove(siblings, oldest)

    def _remove(self, siblings: dict[Function, list[Node]], node: Node) -> None:
        nodes = siblings[node.function]
        nodes.remove(node)
        if not nodes:
            del siblings[node.function]
        self.evicted += 1
        self.edges.forget_nodes(node.descendants())
        node.drop()

    def forget(self, function: Function) -> None:
        """Drop every capture of a function; outputs that are held move out first if need be."""
        if self._current is not None and any(n.function is function for n in self._current.path_nodes()):
            self._end_path(move=True)
        for siblings in (self.roots, *(node.children for node in self.nodes())):
            for node in list(siblings.get(function, ())):
                self._remove(siblings, node)
        self.edges.forget_function(function)

    def drop_all(self) -> None:
        """Drop every capture. REQUIRES: no path."""
        for root in self.all_roots():
            root.drop()
        self.roots.clear()
        self.edges.clear()

    def trim(self) -> int:
        """Drop every capture and give the pool's memory back; returns bytes."""
        self._end_path(move=True)
        self.drop_all()
        return self.pool.trim()

    def close(self) -> None:
        """End: what callers hold moves out of the pool, then graphs and pool go."""
        self.trim()

    def validate(self) -> None:
        """Check what always holds between calls.

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
        # After replays the pool's books are not kept; otherwise they agree with what is alive.
        books = None if self.state is State.REPLAY else current
        restore.check(self.pool, books, f"in state {self.state.value}")

    def _number(self, warmup: bool = False) -> int:
        if warmup:
            self._next_warmup -= 1
            return self._next_warmup
        self._next_number += 1
        return self._next_number - 1


class _inside:
    """Marks the thread as being in a warmup, capture or plain run: wrapped functions called there run plain."""

    def __enter__(self) -> None:
        _busy.depth = getattr(_busy, "depth", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _busy.depth -= 1
