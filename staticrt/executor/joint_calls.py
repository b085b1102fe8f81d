"""Serves calls that need gradients by joint traces: forward and backward traced in one run, without Dynamo.

Each call key has its traces, as for calls without gradients. A trace has constant sizes until a call of its key has
other sizes. Calls that no joint trace serves run by graph splits, with the reason in `explain()`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from staticrt import locks, torch_private, tuning
from staticrt.errors import LoweringError, PassError
from staticrt.executor.call_state import STATE_CHANGES_OFTEN, CallState, CallStates
from staticrt.executor.handed_back import (
    NEEDS_CHANGE_OFTEN,
    LeftToEager,
    NeedsNone,
    failure_with_backward,
)
from staticrt.executor.trace_maker import TraceMaker, constant_ints
from staticrt.frontend import budget
from staticrt.frontend.collector import seldom_collecting
from staticrt.frontend.dynamo.parallel import bucket_limits
from staticrt.frontend.guards.watched_state import WatchedState
from staticrt.frontend.progress import long_work
from staticrt.frontend.reasons import (
    BROADCASTS,
    CannotTrace,
    NeedsNoGradient,
    RefusesItself,
    TooSlow,
)
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.native import _C
from staticrt.options import Options
from staticrt.runtime.branches import OTHER_DECISION, OtherDecision, run_decided
from staticrt.runtime.cached_trace import (
    CachedTrace,
    beyond_trace,
    first_run_raised,
    share_memory,
    undo_of,
)
from staticrt.runtime.call import Call
from staticrt.runtime.call_key import EagerOnly
from staticrt.runtime.fast_call import FastPath

_HOOKED = "saved tensors hooks, as of checkpoint or save_on_cpu"
_CHANGE_GRADIENTS = frozenset({"grad", "backward"})  # names without which no code changes a `.grad`
_MATERIALIZE = "set_materialize_grads"  # Dynamo traces custom Functions without it


class JointCalls:
    """The joint traces of one function.

    Args:
        maker: makes traces of the function.
        fast: learns the calls that joint traces serve.
        forget_splits: drops the graph splits, so that Dynamo compiles anew.
        options: checked options.
        name: for messages.

    Attributes:
        states: the states of all keys.
        traces: those kept, in the order they were made.
    """

    def __init__(
        self,
        maker: TraceMaker,
        fast: FastPath,
        forget_splits: Callable[[], None],
        options: Options,
        name: str,
    ) -> None:
        self._maker = maker
        self._fast = fast
        self._forget_splits = forget_splits
        self._options = options
        self._name = name
        self.states = CallStates(self._forgotten)
        self._lock = locks.reentrant()
        self._made = 0
        self.traces: tuple[CachedTrace, ...] = ()

    def serve(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call | None = None
    ) -> tuple[Any] | CallState | None:
        """Run a call by a joint trace, if one serves it; else nothing has run.

        Args:
            args, kwargs: of the call.
            call: them flattened, if that was done.

        Returns:
            The result in a tuple; or the state of the call's key, for graph splits; or None.

        Raises:
            LeftToEager: the call must run eagerly.
            NeedsNone: the call needs no backward.
        """
        if torch.is_anomaly_enabled():
            raise LeftToEager("anomaly mode, which names eager's operators", "", _nothing)
        try:
            call = call or Call.of(args, kwargs)
            state = self.states.get(_key(call)) or CallState()
        except (EagerOnly, TypeError):  # an argument that cannot be hashed
            return None
        tried: list[CachedTrace] = []  # in which data takes another branch
        while True:
            trace = state.find(call, tried)
            if is_new := trace is None:
                trace, state = self._new_trace(call, state, tried)
                if trace is None:
                    return state
            traced = trace.traced
            if traced.mutates and share_memory(traced, call.leaves):
                return None
            trace.calls += 1
            flat = trace.inputs(call.leaves)
            executable: Any = trace.executable
            undo = undo_of(traced, call.leaves)
            try:
                outputs = run_decided(trace, flat) if traced.decided else executable.run(flat)
                break
            except OtherDecision:
                if is_new or not state.follows_branches:
                    raise LeftToEager(OTHER_DECISION, "", _nothing) from None
                tried.append(trace)
            except Exception as error:
                if reason := beyond_trace(error, trace, undo):
                    raise LeftToEager(reason, "", _nothing) from None
                if reason := first_run_raised(trace, error, partial(self._drop, trace, state)):
                    raise LeftToEager(reason, "", self._answered(call, state)) from None
                raise
        if tried and not is_new:
            with self._lock:
                state.move_to_front(trace)
        # What Python makes of the results, and errors that the model may catch, C++ does not see.
        if executable.views is not None or traced.catches:
            return (traced.out_spec.build(outputs, call.containers),)
        self._fast.learn(
            trace.call_spec,
            executable.native,
            executable.layout,
            trace.state,
            call.args,
            call.kwargs,
            [int(isinstance(value, torch.Tensor) and value.requires_grad) for value in flat],
            executable.region,
        )
        return (traced.out_spec.build(outputs, call.containers),)

    def _new_trace(
        self, call: Call, state: CallState, tried: Sequence[CachedTrace]
    ) -> tuple[CachedTrace | None, CallState]:
        """A trace of a call that no kept one serves, and the state of its key; None: Dynamo may have the call.

        Raises:
            LeftToEager, NeedsNone: as `serve`.
        """
        watched = state.watched
        if watched is not None and not watched.holds():
            self._state_changed(state)
        if self._is_refused(state):
            self._leave_to_eager(call, state)
            return None, state
        if call.sizes() in state.refused:
            raise LeftToEager("eager raised for such a call before", "", self._answered(call, state))
        trace = keeping_thread_state(lambda: self._make(call, tried))
        state = self.states.get(_key(call)) or state
        if trace is None:
            self._leave_to_eager(call, state, is_new=True)
        return trace, state

    def _leave_to_eager(self, call: Call, state: CallState, is_new: bool = False) -> None:
        """Raise `LeftToEager`, or `NeedsNone`, for a call without a trace, unless Dynamo may have it.

        Args:
            is_new: its trace has just failed, and an eager call may show that the call itself is wrong.
        """
        failed = state.failure
        if failed is None:
            return
        if failed.needs_none:
            raise NeedsNone(call, is_new, lambda: self._forget_failure(state))
        if self._options.fullgraph:
            return
        if is_new and failed.eager_first:
            raise LeftToEager(failed.reason, failed.where, self._answered(call, state))
        if failed.even_in_parts:
            raise LeftToEager(failed.reason, failed.where, partial(_ran, state), lasts=True)

    def _forget_failure(self, state: CallState) -> None:
        """The state that the failed trace depends on has changed: trace the next call of its key again, up to a limit."""
        state.changes += 1
        state.failure = None if state.changes < sum(tuning.MAX_INTERVENTIONS) else NEEDS_CHANGE_OFTEN

    def _state_changed(self, state: CallState) -> None:
        """State changed that Dynamo may not guard: let it compile anew, and trace again, up to a limit."""
        with self._lock:
            self._forget_splits()
            state.changes = 0
            state.trials = None
            often = state.state_changed(tuning.MAX_INTERVENTIONS[1])
            state.failure = STATE_CHANGES_OFTEN if often else None

    def _answered(self, call: Call, state: CallState) -> Callable[[], None]:
        """Remember these sizes as refused until the returned function is called, once eager has returned."""
        state.refuse(call.sizes())

        def answered() -> None:
            state.refused.discard(call.sizes())
            state.changes += 1
            _ran(state)

        return answered

    # -- traces ------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_refused(state: CallState) -> bool:
        failed = state.failure
        return failed is not None and (failed.impossible or state.changes >= tuning.STEP_ATTEMPTS)

    def _make(self, call: Call, tried: Sequence[CachedTrace]) -> CachedTrace | None:
        with self._lock, budget.account(self._options.seconds_to_trace()), seldom_collecting():
            state = self.states.get(_key(call)) or CallState()
            trace = state.find(call, tried)
            if trace is not None or self._is_refused(state):
                return trace
            if (kept := self.states.without_stale(self.traces)) is not self.traces:
                self.traces = tuple(kept)
                self._fast.forget()
            try:
                with long_work(f"tracing {self._name} with its backward", self._options.progress):
                    if len(tried) >= tuning.MAX_BRANCHES:
                        state.follows_branches = False
                        for each in state.drop_decided():
                            self._drop(each, state)
                    trace = self._trace(call, state)
            except Exception as error:
                self._fail(call, state, error)
                return None
            finally:
                torch.clear_autocast_cache()  # of casts made of fake tensors
            state.failure = None
            if self._is_full():
                given_up = self.states.to_give_up(state, self.traces)
                self.traces = tuple(self.states.give_up(given_up, self.traces))
            else:
                self._made += 1
            state.traces = (*state.traces, trace)
            self.states.keep(_key(call), state)
            self.traces = (*self.traces, trace)
            self._fast.forget()
            return trace

    def _fail(self, call: Call, state: CallState, error: Exception) -> None:
        if self._options.executor == "static" and isinstance(error, (PassError, LoweringError)):
            raise error
        state.failure = failure_with_backward(error)
        state.changes += not state.failure.eager_first or self._options.fullgraph
        self.states.keep(_key(call), state)

    def _drop(self, trace: CachedTrace, state: CallState) -> None:
        """Forget a trace of a key."""
        with self._lock:
            state.traces = tuple(kept for kept in state.traces if kept is not trace)
            self.traces = tuple(kept for kept in self.traces if kept is not trace)
            self._fast.forget()

    def _forgotten(self, state: CallState) -> None:
        """Drop the traces of a key whose objects are gone, because they serve no further call and would hold tensors."""
        self.traces = tuple(trace for trace in self.traces if trace not in state.traces)
        self._fast.forget()

    def _trace(self, call: Call, state: CallState) -> CachedTrace:
        """A joint trace that serves a call.

        Raises:
            CannotTrace: no joint trace does.
            Exception: what the model raised.
        """
        from staticrt.training.joint_trace import Backward, refuse_distributed

        dynamic = self._options.dynamic
        if dynamic is None:
            dynamic = not state.constant_sizes and any(
                not trace.traced.guards.holds(call.leaves) for trace in state.traces
            )
        request = self._maker.request(call, state.traces)
        backward = Backward(request)
        request = dataclasses.replace(
            request,
            sizing=Sizing.first(dynamic, shape_env=False),
            autograd=True,
            derive=backward,
            decide=state.follows_branches,
        )
        limits = bucket_limits()
        request.snapshot.add_answer(bucket_limits)
        gradients = _C.HeldGradients(self._maker.parameters())
        following: TraceRequest | None = request
        try:
            self._refuse_options(state)
            refuse_distributed(request.snapshot)
            while following is not None:
                try:
                    made = self._attempt(call, following, limits)
                except TooSlow:
                    if following.is_constant or self._options.dynamic:
                        raise
                    state.constant_sizes = True
                    made = following.constant()
                except CannotTrace as error:
                    if error.reason != BROADCASTS or not following.decide:
                        raise
                    state.follows_branches = False
                    made = dataclasses.replace(request, decide=False)
                if isinstance(made, CachedTrace):
                    return made
                following = made
        except Exception as error:
            if isinstance(error, CannotTrace):
                names = request.snapshot.model_names
                error.even_in_parts |= backward.has_functions or _MATERIALIZE in names
            if request.snapshot.complete and not isinstance(error, (NeedsNoGradient, RefusesItself)):
                # Numbers may change in each step, and Dynamo guards them.
                state.watched = WatchedState(request.snapshot, seldom=True, numbers=False)
                if state.watched.is_misread and isinstance(error, CannotTrace):
                    error.even_in_parts = True
            raise
        finally:
            # Code without these names changes no `.grad`: what has changed was added by backwards of other threads.
            if not _CHANGE_GRADIENTS.isdisjoint(request.snapshot.read_names):
                gradients.restore()
        raise AssertionError("unreachable")

    def _attempt(
        self, call: Call, request: TraceRequest, limits: Sequence[int]
    ) -> CachedTrace | TraceRequest:
        from staticrt.frontend.tracing.trace import trace
        from staticrt.frontend.tracing.tracer import current_tracer
        from staticrt.shapes.size_env import NeedsShapeEnv
        from staticrt.training.checkpoints import checkpoints
        from staticrt.training.decomposed.decompositions import eager_operators
        from staticrt.training.joint_program import build_joint

        try:
            with (
                eager_operators(),
                checkpoints(current_tracer),
                torch.autograd.graph.disable_saved_tensors_hooks(_HOOKED),
            ):
                traced = trace(request)
                self._maker.check(request, traced, " with its backward")
                alone, executable = build_joint(
                    traced,
                    request.derive,  # type: ignore[arg-type]
                    self._options,
                    self._name,
                    limits,
                )
        except (Exception, NeedsShapeEnv) as error:
            if _HOOKED in str(error):
                raise CannotTrace(_HOOKED, even_in_parts=True) from error
            following = request.after(error)
            if following is None:
                raise
            return following
        return CachedTrace(alone, executable, request.snapshot.guard(), constant_ints(call, request))

    def _is_full(self) -> bool:
        return bool(self._made >= self._options.max_traces)

    def _refuse_options(self, state: CallState) -> None:
        options = self._options
        if self._is_full() and self.states.to_give_up(state, self.traces) is None:
            raise CannotTrace(f"more than max_traces={options.max_traces} traces")
        for name in ("graphs", "accelerators"):
            if getattr(options, name) not in (False, None):
                raise CannotTrace(f"the option {name}")
        if options.executor == "reference" or options.backward_node == "aot":
            raise CannotTrace("an option asks for another executor or autograd node")
        if torch_private.budget_value(options.activation_memory_budget) < 1:
            raise CannotTrace("an activation budget below 1")


def _key(call: Call) -> tuple[Any, ...]:
    """The key of a call's traces: the call's own, and the limits of gradient buckets, which decide where traces are cut."""
    limits = bucket_limits()
    return (*call.key.key, limits) if limits else call.key.key


def _ran(state: CallState) -> None:
    """Watch the state as it is after an eager call."""
    if state.watched is not None:
        state.watched.ran()


def _nothing() -> None:
    """Do nothing after such an eager call."""
