"""The traces that an executor keeps, by call key, and the stage of a call that makes one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from staticrt import locks, tuning
from staticrt.errors import LoweringError, PassError, TraceError
from staticrt.executor.call_state import CallState, CallStates, Route
from staticrt.executor.machine import Outcome, Progress, Stage, advance
from staticrt.executor.prepare import ArgumentsChanged
from staticrt.executor.trace_maker import TraceMaker
from staticrt.frontend import budget
from staticrt.frontend.arguments import unread
from staticrt.frontend.arguments.structure import take_apart
from staticrt.frontend.collector import seldom_collecting
from staticrt.frontend.device_work import wait_for_devices
from staticrt.frontend.guards.watched_state import WatchedState
from staticrt.frontend.progress import long_work
from staticrt.frontend.reasons import (
    ArgumentRead,
    CannotTrace,
    ModelChanges,
    NeedsBackward,
    TooSlow,
    raise_interrupt,
    warn,
)
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.options import Options
from staticrt.runtime import donation
from staticrt.runtime.cached_trace import CachedTrace, Failure
from staticrt.runtime.call import Call


class TraceCache:
    """Finds the trace of a call, or makes it.

    Args:
        maker: makes traces.
        changed: called when the set of kept traces changes.
        function, options, name, is_partial: as of `Executor`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        maker: TraceMaker,
        changed: Callable[[], None],
        options: Options,
        name: str,
        is_partial: bool,
    ) -> None:
        self.lock: AbstractContextManager[Any] = locks.reentrant()  # held while a trace is made
        self.kept: list[CachedTrace] = []  # of all keys, in the order they were made
        self.states = CallStates(self._forgotten)
        self._maker = maker
        self._changed = changed
        self._options = options
        self._name = name
        self._is_partial = is_partial
        self._whole_or_eager = is_partial or getattr(type(function), "runs_whole_or_eagerly", False)
        self._num_forgotten = 0  # traces that are kept no longer
        self._warned: set[str] = set()

    def state(self, call: Call) -> CallState:
        """The state of a call's key; a new one is kept once there is something to remember."""
        return self.states.get(call.key.key) or CallState()

    def find(self, progress: Progress) -> Outcome:
        """Stage FIND."""
        progress.trace = progress.state.find(progress.call, progress.tried)
        progress.fresh = False
        return Outcome.NOT_FOUND if progress.trace is None else Outcome.FOUND

    def drop(self, trace: CachedTrace, state: CallState) -> None:
        """Forget a trace of a key."""
        with self.lock:
            state.traces = tuple(kept for kept in state.traces if kept is not trace)
            self.kept = [kept for kept in self.kept if kept is not trace]

    def trace_for(self, call: Call) -> CachedTrace | Failure:
        """The trace that serves a call, which may be made now, or why there is none. Nothing runs.

        Raises:
            ArgumentsChanged: the argument structure changed; retry with a new `Call`.
            TypeError: an argument that cannot be hashed.
            TraceError: with `fullgraph=True`, it cannot be traced.
        """
        with self.lock:
            progress = Progress(call, self.state(call), limited=False)
            stage = advance(self.find(progress), progress.state)
            if stage is Stage.TRACE:
                stage = self.make(progress)
            if stage is Stage.FLATTEN:
                raise ArgumentsChanged
            if stage is Stage.RUN and progress.trace is not None:
                return progress.trace
            return progress.state.failure or Failure("", "", False)

    def make(self, progress: Progress) -> Stage:
        """Stage TRACE, until another stage follows: all attempts hold one lock and share one time budget.

        Raises:
            RuntimeError: work that the caller enqueued on a device failed. Tracing waits for devices, and would
                treat that as an error of the trace.
        """
        wait_for_devices(progress.call.leaves)
        return keeping_thread_state(lambda: self._trace_until_done(progress))

    def _trace_until_done(self, progress: Progress) -> Stage:
        stage = Stage.TRACE
        with self.lock, budget.account(self._options.seconds_to_trace()), seldom_collecting():
            while stage is Stage.TRACE:
                outcome = self._trace(progress)
                stage = advance(outcome, progress.state)
        return stage

    def _trace(self, progress: Progress) -> Outcome:
        call = progress.call
        if progress.request is None:
            progress.state = self.state(call)  # another thread may have traced for this key
            if progress.state.route is not Route.WHOLE:
                return Outcome.NOT_FOUND
            if self.find(progress) is Outcome.FOUND:
                return Outcome.FOUND
            if (trace := progress.state.take_remade(call, progress.tried)) is not None:
                self._changed()
                progress.trace = trace
                return Outcome.FOUND
            if (changes := progress.state.will_change()) is not None:
                progress.reason = changes.reason
                return Outcome.LEFT_TO_EAGER
            if call.sizes() in progress.state.refused:
                progress.reason = "eager raised for such a call before"
                return Outcome.LEFT_TO_EAGER
            if len(progress.tried) >= tuning.MAX_BRANCHES:
                dropped = progress.state.drop_decided()
                self.kept = [kept for kept in self.kept if kept not in dropped]
                self._changed()
                return self._failed(
                    progress,
                    CannotTrace(f"data decides branches in more than {tuning.MAX_BRANCHES} ways", ""),
                )
            if (
                progress.limited
                and self._is_full()
                and self.states.to_give_up(progress.state, self.kept) is None
            ):
                progress.reason = f"more than max_traces={self._options.max_traces} traces"
                self._warn_once(f"{self._name}: {progress.reason}; further ones run eagerly")
                return Outcome.LEFT_TO_EAGER
            if (kept := self.states.without_stale(self.kept)) is not self.kept:
                self._num_forgotten += len(self.kept) - len(kept)
                self.kept = list(kept)
                self._changed()
            request = self._maker.request(call, progress.state.traces)
            progress.request = request.constant() if progress.state.constant_sizes else request
        request = progress.request
        try:
            with long_work(f"tracing {self._name}", self._options.progress):
                made = self._maker.make(call, request, progress.gradients)
        except donation.WrittenDonation:
            raise
        except ArgumentRead:
            return Outcome.ARGUMENTS_CHANGED
        except NeedsBackward:
            self.states.keep(call.key.key, progress.state)
            progress.request = None
            return Outcome.NEEDS_BACKWARD
        except TooSlow as error:
            if request.sizing.is_ours or request.is_constant or self._options.dynamic:
                return self._failed(progress, error)
            progress.state.constant_sizes = True
            progress.request = request.constant()
            return Outcome.NEEDS_OTHER_SIZES
        except ModelChanges as error:
            changed = request.snapshot.changed_arguments(error.paths)
            if any(take_apart(call.leaves[index]) for index in changed):
                return Outcome.ARGUMENTS_CHANGED
            return self._failed(progress, error)
        except (PassError, LoweringError) as error:
            raise_interrupt(error)
            if self._options.executor == "static":
                raise
            return self._failed(progress, CannotTrace(str(error), ""))
        except Exception as error:
            if isinstance(error, TypeError) and unread.was_refused(call.spec, str(error)):
                return Outcome.ARGUMENTS_CHANGED
            return self._failed(progress, error)
        if isinstance(made, TraceRequest):
            progress.request = made
            return Outcome.NEEDS_OTHER_SIZES
        if progress.limited and self._is_full():
            given_up = self.states.to_give_up(progress.state, self.kept)
            self.kept = list(self.states.give_up(given_up, self.kept))
        self._changed()
        self.states.keep(call.key.key, progress.state)
        progress.state.traces = (*progress.state.traces, made)
        self.kept.append(made)
        progress.trace, progress.fresh, progress.request = made, True, None
        return Outcome.TRACED

    def _is_full(self) -> bool:
        return bool(len(self.kept) + self._num_forgotten >= self._options.max_traces)

    def _forgotten(self, state: CallState) -> None:
        """Drop traces of objects that are gone, because they serve no further call."""
        for trace in state.traces:
            if trace in self.kept:
                self.kept.remove(trace)
                self._num_forgotten += 1
        self._changed()

    def _failed(self, progress: Progress, error: Exception) -> Outcome:
        """Remember why a trace failed."""
        from staticrt.frontend.tracing.trace import failure

        reason, where = failure(error)
        if self._options.fullgraph:
            raise TraceError(
                f"cannot trace {self._name}: {reason}",
                at=where or None,
                fix="change the model there, or leave out fullgraph=True",
            ) from error
        state = progress.state
        self.states.keep(progress.call.key.key, state)
        state.failure = Failure(reason, where, impossible=isinstance(error, CannotTrace))
        if isinstance(error, ModelChanges) and state.changes < tuning.MAX_CHANGES:
            if state.traces and progress.request is not None and progress.request.snapshot.complete:
                state.fills.append((state.failure, progress.request.snapshot.guard()))
            return Outcome.MODEL_CHANGED
        if self._whole_or_eager:
            return Outcome.ONLY_EAGER
        if isinstance(error, CannotTrace) and error.even_in_parts:
            return Outcome.ONLY_EAGER
        if progress.request is not None and progress.request.snapshot.complete:
            seldom = state.interventions >= tuning.MAX_INTERVENTIONS[0]
            state.watched = WatchedState(progress.request.snapshot, seldom)
            state.watched.ran()
            if state.watched.is_misread:
                return Outcome.ONLY_EAGER
        if isinstance(error, CannotTrace):
            return Outcome.CANNOT_TRACE
        return Outcome.RAISED  # maybe the caller's mistake: eager decides

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn(f"staticrt: {text}")
