"""The manager of one tree: decides whether a call replays a node, captures a new one, or runs uncaptured."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.errors import CaptureError, ReplayError
from staticrt.graphs import checks, restore
from staticrt.graphs.capturing import CannotCapture, Capturing
from staticrt.graphs.checks import Mismatch
from staticrt.graphs.functions import Function, Mode
from staticrt.graphs.limits import Limits
from staticrt.graphs.paths import State, process_lock
from staticrt.graphs.preconditions import inputs_to_watch, unsupported_input, why_writes_prevent_capture
from staticrt.graphs.storage import Places, Writes, digest, storage_ref
from staticrt.graphs.tree import Node, WarmupNode

_busy = threading.local()


def is_capturing() -> bool:
    """Whether this thread is inside a warmup, capture or uncaptured run, where wrapped functions run plain."""
    return getattr(_busy, "depth", 0) > 0


class Manager(Limits):
    """Trees over one pool. Not thread-safe: the context's lock is held around every call."""

    def call(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Run `function` on `inputs`, which are emptied.

        Raises:
            BaseException: what the function raised; the manager is as before the call, or has no path.
        """
        self.in_call = True
        try:
            if not self.bound:
                self._note_thread()
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
            # Gradients outlive their step: they stay in .grad, and later code does not copy them.
            self._move_out({id(o): o for o in self._current.outputs if o is not None and o.alive()}.values())
        if self.shared:
            self._end_path(move=True)  # while no other thread can be using the results
        return outputs

    def call_plain(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Run a function uncaptured because of an override. The current step goes on."""
        try:
            return self._run_plain(function, inputs, "an override says so", wanted=True)
        finally:
            if function.mode is Mode.BACKWARD:
                self.generations.backward_ran()

    def _call(self, function: Function, inputs: list[Any]) -> list[Any]:
        if not function.asked:
            function.asked = True
            captures = self.policy.captures
            if captures is not None and not captures(function.name, function.mode.value):
                function.plain_reason = "the policy does not capture it"
                function.left_out = True
        if self._suspect:
            self._clear_suspicion()
        if self.bound:
            return self._call_bound(function, inputs)
        self._begin(function, inputs)
        while True:
            reason = self._plain_reason(function, inputs)
            if reason is not None:
                return self._run_plain(function, inputs, reason)
            if self._needs_warmup(function):
                if (unfit := unsupported_input(function, inputs, self.owns)) is not None:
                    return self._run_plain(function, inputs, unfit)
                return self._warm_up(function, inputs)
            mismatch = None
            if self.state is not State.CAPTURE:
                node, mismatch = self._find(function, inputs)
                if node is not None:
                    return self._replay(node, inputs)
                if mismatch is not None and self.recaptures.outlived(self._current, function, mismatch):
                    return self._run_plain(function, inputs, f"liveness: {mismatch.text()}")
                if self._current is not None and function in self.roots and self._try_end():
                    continue
            break
        if function.mutated and (written := self._why_writes_prevent_capture(function, inputs)) is not None:
            return self._run_plain(function, inputs, written)
        if mismatch is not None and self.recaptures.count_mismatch(self._current, function, mismatch):
            reason = (
                f"more than {self.policy.recapture_limit} unexpected mismatches, the last: {mismatch.text()}"
            )
            self._warn(function, reason)
            return self._run_plain(function, inputs, reason)
        if (unfit := unsupported_input(function, inputs, self.owns)) is not None:
            return self._run_plain(function, inputs, unfit)
        if self.state is not State.CAPTURE and self._current is not None and not self._try_end():
            self._restore()
        return self._capture(function, inputs, mismatch.text() if mismatch else "first call here")

    def _call_bound(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Call on a device whose replays take any addresses. No call depends on another there, so every node is a root."""
        if function.plain_reason is not None:
            return self._run_plain(function, inputs, function.plain_reason)
        mismatch = None
        for node in self.roots.get(function, ()):
            mismatch = checks.check(node, inputs)
            if mismatch is None:
                if node.unproven is not None and node.unproven != digest([inputs[i] for i in node.rebound]):
                    return self._prove(node, inputs)
                self._touch(node)
                try:
                    return node.replay_bound(inputs)
                except ReplayError as error:
                    return self._stop_replaying(function, inputs, error)
            node.passed_over[mismatch.check] += 1
            self._note_unstable(function, mismatch)
        if (unfit := unsupported_input(function, inputs, self.owns)) is not None:
            return self._run_plain(function, inputs, unfit)
        return self._capture(function, inputs, mismatch.text() if mismatch else "first call here")

    def _prove(self, node: Node, inputs: list[Any]) -> list[Any]:
        """Capture again in a call with other values, and compare the values that no operator made.

        Code outside operators (a C++ extension, another compiler, another thread) may compute such values from the
        arguments without a record. A constant table of the function is the same in each call.
        """
        function = node.function
        siblings = self.roots[function]
        siblings.remove(node)
        try:
            outputs = self._capture(function, inputs, node.reason)
        except BaseException:
            self.roots.setdefault(function, []).append(node)
            raise
        made = self.roots[function][-1] if self.roots.get(function) else None
        if made is not None and not made.graph.agrees_with(node.graph):
            function.plain_reason = (
                "cannot be captured: it uses values that no operator made and that differ from call to call"
            )
        if function.plain_reason is not None:
            self.forget(function)
        elif made is not None:
            self.captures -= 1  # it replaces the first one
            function.proven = True
            made.replace(node)
            for each in siblings:
                each.unproven = None
        node.drop()
        return outputs

    def _stop_replaying(self, function: Function, inputs: list[Any], error: ReplayError) -> list[Any]:
        """The function depends on values that a replay does not follow: run this and all later calls uncaptured."""
        function.plain_reason = f"cannot be captured: {error.message}"
        self.forget(function)
        return self._run_plain(function, inputs, function.plain_reason)

    def _find(self, function: Function, inputs: Sequence[Any]) -> tuple[Node | None, Mismatch | None]:
        """The node to replay, or the last mismatch."""
        mismatch = None
        for node in self._siblings(self._current).get(function, ()):
            found = checks.check(node, inputs)
            if found is None:
                return node, None
            node.passed_over[found.check] += 1
            self._note_unstable(function, found)
            mismatch = found
        return None, mismatch

    def _note_unstable(self, function: Function, mismatch: Mismatch) -> None:
        limit = self.policy.unstable_after
        if limit is None:
            return
        for index in mismatch.inputs:
            if index in function.read_in_place and not self.bound:
                continue
            function.mismatches[index] += 1
            if function.mismatches[index] >= limit:
                function.unstable.add(index)

    def _replay(self, node: Node, inputs: list[Any]) -> list[Any]:
        # An uncaptured run would need the inputs that die inside the replay.
        kept = list(inputs) if node.graph.may_vary and not node.dead_after else None
        for index in node.managed:
            if index not in node.preserved:
                inputs[index] = None
        self._enter(node, State.REPLAY)
        self._touch(node)
        try:
            return node.replay(inputs, self.policy.caches_outputs)
        except ReplayError as error:
            self._end_path()
            if kept is None:
                raise
            inputs[:] = kept
            return self._stop_replaying(node.function, inputs, error)
        except BaseException:
            # The pool's contents are unknown now: live outputs move out of it.
            self._end_path()
            raise

    def _needs_warmup(self, function: Function) -> bool:
        if self.state is State.WARMUP:
            return True
        caps = self.backend.caps
        return self.policy.warmup and not caps.capture_executes and not function.warmed_up

    def _warm_up(self, function: Function, inputs: list[Any]) -> list[Any]:
        with process_lock:
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
            watched = inputs_to_watch(function, inputs, self._current)
            # Replays write static inputs in place as well, so comparing their bytes is not needed.
            writes = Writes(watched, compare=watched.keys() - function.static_inputs)
            places = Places(watched)
            del watched
            try:
                with (
                    _inside(),
                    self.backend.device_scope(self.device),
                    self.backend.warmup_scope(self.pool, self.stream),
                ):
                    outputs = list(function.model(inputs))
                function.found_writing(writes.seen())
                if changed := places.changed():
                    function.plain_reason = function.changes(changed)
                    self._escape(list(changed.values()))
                del writes, places, changed
                node.add_outputs(outputs, known, self.owns, self.pool.live_ptrs())
            except BaseException:
                self._after_failure()
                raise
            function.warmed_up = True
            self._enter(node, State.WARMUP)
            if not already:
                self._check_leaks(function, outputs, "after a warmup")
            return outputs

    def _capture(self, function: Function, inputs: list[Any], reason: str) -> list[Any]:
        parent = self._current
        assert parent is None or isinstance(parent, Node)
        self._seen.add(function)
        with process_lock:
            if self.backend.caps.has_streams:
                self.backend.synchronize(self.device)
            capturing = Capturing(
                self.backend,
                self.pool,
                self.stream,
                self.device,
                owns=self.owns,
                number=self._number(),
                function=function,
                parent=parent,
                inputs=inputs,
                reason=reason,
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
                    and not self.policy.or_error
                ):
                    # An uncaptured run shows whether the function itself is wrong or only does what a capture forbids.
                    outputs = self._run_plain(function, inputs, f"{type(error).__name__}: {error}")
                    function.plain_reason = f"cannot be captured: {error}"
                    return outputs
                raise
            self.captures += 1
            if node.kernels < self.policy.min_kernels:
                function.plain_reason = f"its graph launches {node.kernels} kernels, fewer than min_kernels"
                function.left_out = True
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
        """The results of a call whose capture failed."""
        function.failures += 1
        # Without a warmup, the first call may have compiled code inside that the second call only runs.
        again = self.backend.caps.capture_executes and function.failures == 1
        if failed.forever and not again:
            function.plain_reason = f"cannot be captured: {failed}"
        if failed.outputs is not None:
            function.skips[f"cannot be captured: {failed}"] += 1
            self._escape([*failed.outputs, *capturing.changed])
            self._after_failure()
            if self.policy.or_error:
                raise uncaptured(function.name, f"cannot be captured: {failed}")
            return failed.outputs
        given = capturing.give_back()
        if given is None:
            self._after_failure()
            raise CaptureError(
                f"{function.name} cannot be captured: {failed}, and its inputs died inside the capture",
                fix="keep the arguments alive during the call, or do not wrap the function",
            )
        inputs[:] = given
        prefix = "cannot be captured: " if failed.forever else ""
        return self._run_plain(function, inputs, f"{prefix}{failed}")

    def _run_plain(
        self, function: Function, inputs: list[Any], reason: str, wanted: bool = False
    ) -> list[Any]:
        self._seen.add(function)
        function.skips[reason] += 1
        if self.policy.or_error and not wanted and not function.left_out:
            raise uncaptured(function.name, reason)
        with _inside():
            return function.run_plain(inputs)

    def _plain_reason(self, function: Function, inputs: Sequence[Any]) -> str | None:
        if function.plain_reason is not None:
            return function.plain_reason
        if function.mutated and (written := self._why_writes_prevent_capture(function, inputs)) is not None:
            return written
        return self.recaptures.limit_reached(self._current, function)

    def _why_writes_prevent_capture(self, function: Function, inputs: Sequence[Any]) -> str | None:
        """Why a function that writes its inputs runs uncaptured now; None if it does not. Warns once per function."""
        reason = why_writes_prevent_capture(function, inputs, self._current, self.policy)
        if reason is not None and not function.warned_mutation:
            function.warned_mutation = True
            self.mutation_warnings += 1
            self._warn(function, reason)
        return reason


def uncaptured(name: str, reason: str) -> CaptureError:
    """The error for a call that would run uncaptured although `Policy.or_error` is set."""
    return CaptureError(
        f"{name} would run uncaptured: {reason}",
        fix="change what the reason names, allow it with staticrt.graphs.override(False), or take or_error=False",
    )


class _inside:
    """Marks the thread as inside a warmup, capture or uncaptured run. Wrapped functions called there run plain."""

    def __enter__(self) -> None:
        _busy.depth = getattr(_busy, "depth", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _busy.depth -= 1
