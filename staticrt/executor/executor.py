"""The executor behind every compiled callable: pick a trace for a call, or make one, or run eagerly."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from staticrt import tuning
from staticrt.executor import prepare as ahead
from staticrt.executor.call_state import STATE_CHANGES_OFTEN, Route
from staticrt.executor.cost_trials import CostTrials
from staticrt.executor.explanation import explanation
from staticrt.executor.graph_splits import GraphSplits
from staticrt.executor.handed_back import NeedsNone
from staticrt.executor.joint_calls import JointCalls
from staticrt.executor.machine import Outcome, Progress, Stage, advance
from staticrt.executor.state import ExecutorState
from staticrt.executor.trace_cache import TraceCache
from staticrt.executor.trace_maker import TraceMaker
from staticrt.executor.training_calls import TrainingCalls
from staticrt.frontend.dynamo.dynamo import NotCompiled
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.guards.global_hooks import has_global_hooks
from staticrt.native import _C
from staticrt.options import Options
from staticrt.runtime import donation
from staticrt.runtime.branches import OtherDecision, run_decided
from staticrt.runtime.cached_trace import (
    FAILED_EARLY,
    CachedTrace,
    Failure,
    beyond_trace,
    first_run_raised,
    share_memory,
    undo_of,
    writes_inference_tensors,
)
from staticrt.runtime.call import Call
from staticrt.runtime.call_key import EagerOnly, eager_reason, needs_gradients
from staticrt.runtime.eager_runs import EagerCalls
from staticrt.runtime.executable import StaticExecutable
from staticrt.runtime.explain.explanation import Explanation
from staticrt.runtime.explain.inspectable import Graph
from staticrt.runtime.fast_call import FastPath
from staticrt.runtime.weights import new_weights
from staticrt.torch_private import hidden_from_dynamo

_UNHASHABLE = "an argument is neither a tensor nor hashable"


class Executor:
    """Runs a function or module compiled. `staticrt/executor/machine.py` says which way a call goes.

    Args:
        function: what to run; also what runs eagerly.
        options: checked options.
        name: for messages.
        is_partial: the function is a partial graph, which Dynamo made: it guards the Python state, and nothing splits
            the graph further.
        known: what is known about the flat arguments of a partial graph.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        name: str,
        is_partial: bool = False,
        known: KnownInputs | None = None,
    ) -> None:
        self.function = function
        self.options = options
        self.name = name
        self.known = known or KnownInputs()
        self.fast = FastPath(self)
        self._is_partial = is_partial
        self._maker = TraceMaker(function, options, name, is_partial, self.known)
        self._splits = GraphSplits(function, partial(_partial_executor, name, options), options, name)
        self._joint = JointCalls(self._maker, self.fast, self._splits.forget, options, name)
        self._trace_cache = TraceCache(function, self._maker, self.fast.forget, options, name, is_partial)
        # A donated argument is given up by Python.
        self._eager = EagerCalls(function, name, None if options.donate else self.fast)
        self._training = TrainingCalls(
            self._joint, self._splits, self._eager, options, name, compiles=not is_partial
        )
        if not is_partial:
            donation.check_names(function, options.donate)

    # -- calls -------------------------------------------------------------------------------------------------

    @hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.options.donate and not self._is_partial:
            if torch.is_grad_enabled() and self.wants_gradients():
                raise donation.needs_gradients(self.options.donate)
            return donation.call(self._serve, self.function, self.options.donate, args, kwargs)
        return self._serve(*args, **kwargs)

    @hidden_from_dynamo
    def _serve(self, *args: Any, **kwargs: Any) -> Any:
        stage = Stage.FLATTEN
        while stage is Stage.FLATTEN:
            reason = eager_reason()
            if reason is not None:
                return self._eager.run(args, kwargs, reason)
            if torch.is_grad_enabled():
                # Joint traces and Dynamo key such calls themselves, so plain arguments are not flattened here.
                needs = needs_gradients((*args, *kwargs.values()))
                if needs or (needs is not None and self.wants_gradients()):
                    return self._train(args, kwargs)
            try:
                call = Call.of(args, kwargs)
            except EagerOnly as error:
                return self._eager.run(args, kwargs, str(error))
            if torch.is_grad_enabled() and (call.key.needs_grad or self.wants_gradients()):
                return self._train(args, kwargs, call)
            try:
                progress = Progress(call, self._trace_cache.state(call))
            except TypeError:  # an argument that cannot be hashed
                return self._eager.run(args, kwargs, _UNHASHABLE)
            stage = self._advance(progress)
        return progress.result

    def _advance(self, progress: Progress) -> Stage:
        """Take a call through its stages until it is done, or has to be flattened again."""
        stage = Stage.FIND
        while stage is not Stage.DONE and stage is not Stage.FLATTEN:
            if stage is Stage.TRACE:
                stage = self._trace_cache.make(progress)
            else:
                outcome = _ACTIONS[stage](self, progress)
                stage = advance(outcome, progress.state)
        return stage

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Held while a trace is made."""
        return self._trace_cache.lock

    def trace_for(self, call: Call) -> CachedTrace | Failure:
        """See `TraceCache.trace_for`."""
        return self._trace_cache.trace_for(call)

    def wants_gradients(self) -> bool:
        """Whether the function is a module, or a method of one, with parameters that require gradients."""
        return any(p.requires_grad for p in self._maker.parameters())

    # -- stages ------------------------------------------------------------------------------------------------

    def _run(self, progress: Progress) -> Outcome:
        trace, call = progress.trace, progress.call
        assert trace is not None
        traced = trace.traced
        if traced.mutates:
            if share_memory(traced, call.leaves):
                progress.reason = "an argument that is written shares memory with another input"
                return Outcome.LEFT_TO_EAGER
            if not torch.is_inference_mode_enabled() and writes_inference_tensors(traced, call.leaves):
                progress.reason = "an inference tensor is written"  # which raises
                return Outcome.LEFT_TO_EAGER
        trace.calls += 1
        executable = trace.executable
        flat = trace.inputs(call.leaves)
        undo = undo_of(traced, call.leaves)
        try:
            outputs = run_decided(trace, flat) if traced.decided else executable.run(flat)
        except OtherDecision:
            progress.tried.append(trace)
            return Outcome.OTHER_DECISION
        except Exception as error:
            progress.reason = beyond_trace(error, trace, undo)
            if progress.reason in ("", FAILED_EARLY):
                drop = partial(self._drop, progress)
                progress.reason = first_run_raised(trace, error, drop) or progress.reason
            if not progress.reason:
                raise
            return Outcome.LEFT_TO_EAGER
        if progress.tried and not progress.fresh:
            with self.lock:
                progress.state.move_to_front(trace)
        takes_bytes = traced.decided and self.options.donate  # after the run, in Python
        if isinstance(executable, StaticExecutable) and not traced.catches and not takes_bytes:
            self.fast.learn(
                trace.call_spec,
                executable.native,
                executable.outputs,
                trace.state,
                call.args,
                call.kwargs,
                takes_sizes=None if self.options.donate else trace.takes_sizes,
                inputs=flat,
            )
        progress.result = traced.out_spec.build(outputs, call.containers)
        return Outcome.RETURNED

    def _drop(self, progress: Progress) -> None:
        assert progress.trace is not None
        self._trace_cache.drop(progress.trace, progress.state)
        progress.dropped = True

    def _split(self, progress: Progress) -> Outcome:
        """Run graph splits, or eagerly where timings prefer that."""
        call, state = progress.call, progress.state
        if has_global_hooks():
            return Outcome.LEFT_TO_EAGER
        failed = state.failure
        assert failed is not None
        if state.watched is not None and not state.watched.holds():
            return self._state_changed(progress)
        if state.trials is None:
            state.trials = CostTrials(not self.options.deterministic)
        try:
            progress.result, compiled = state.trials.run(
                call.leaves,
                lambda: self._splits.infer(call.args, call.kwargs),
                partial(self._eager.run_as_tried, call.args, call.kwargs, failed.reason, failed.where),
            )
        except NotCompiled:
            progress.not_compiled = True
            return Outcome.NOT_COMPILED
        finally:
            if state.watched is not None:
                state.watched.ran()
        if not compiled:  # nothing to compile, or Dynamo's recompile limit
            self._eager.counts["call", failed.reason, failed.where] += 1
        return Outcome.RETURNED

    def _state_changed(self, progress: Progress) -> Outcome:
        """State changed that Dynamo may not guard: trace again, and let Dynamo compile anew."""
        state = progress.state
        with self.lock:
            self._splits.forget()
            state.trials = progress.request = None
            if not state.state_changed(sum(tuning.MAX_INTERVENTIONS)):
                return Outcome.STATE_CHANGED
            state.failure = STATE_CHANGES_OFTEN
            return Outcome.ONLY_EAGER

    def _eager_stage(self, progress: Progress) -> Outcome:
        call, state, failed = progress.call, progress.state, progress.state.failure
        is_only_this = bool(progress.reason) or failed is None
        reason, where = (
            (progress.reason, "") if failed is None or is_only_this else (failed.reason, failed.where)
        )
        try:
            progress.result = self._eager.run(call.args, call.kwargs, reason, where)
            if state.watched is not None:
                state.watched.ran()
        except Exception:
            state.refuse(call.sizes())
            # The call itself is wrong, since eager raises too. The next call of its key is traced again.
            if (
                failed is not None
                and not is_only_this
                and not failed.impossible
                and not progress.not_compiled
            ):
                advance(Outcome.EAGER_RAISED, state)
            raise
        state.refused.discard(call.sizes())
        if progress.dropped:
            state.changes += 1
            if state.changes > tuning.MAX_CHANGES:
                state.failure = Failure(reason, where, impossible=True)
                return Outcome.REPLACED
        if is_only_this:
            return Outcome.RETURNED
        if state.route is Route.EAGER:
            self._eager.will_last(call.args, call.kwargs, reason, where)
        return Outcome.REPLACED if progress.not_compiled else Outcome.EAGER_RETURNED

    def _train(self, args: Any, kwargs: Any, call: Call | None = None) -> Any:
        """Run a call whose results need gradients, or turn out to need none. `call`: as of `JointCalls.serve`."""
        try:
            return self._training.run(args, kwargs, call)
        except NeedsNone as none:
            return self._without_gradients(none, args, kwargs)

    def _train_stage(self, progress: Progress) -> Outcome:
        progress.result = self._train(progress.call.args, progress.call.kwargs, progress.call)
        return Outcome.RETURNED

    def _without_gradients(self, none: NeedsNone, args: Any, kwargs: Any) -> Any:
        """Run a call none of whose results needs a gradient, although arguments or weights require some."""
        try:
            progress = Progress(none.call, self._trace_cache.state(none.call), gradients=False)
        except TypeError:
            return self._eager.run(args, kwargs, _UNHASHABLE)
        state = progress.state
        if state.find(none.call) is None:
            if not none.is_new and state.route in (Route.WHOLE, Route.TRAIN):
                none.ask_again()
                return self._train(args, kwargs)
            advance(Outcome.NEEDS_NO_GRADIENT, state)
        if self._advance(progress) is Stage.FLATTEN:
            return self._eager.run(args, kwargs, "no result needs a gradient, and an argument is changed")
        return progress.result

    # -- what callers may ask ----------------------------------------------------------------------------------

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ahead.Readiness:
        """Trace and plan for these arguments without running the model on them."""
        return ahead.prepare(self, args, kwargs)

    def snapshot(self) -> ExecutorState:
        """What was compiled and what ran eagerly until now."""
        return ExecutorState(
            name=self.name,
            function=self.function,
            options=self.options,
            traces=tuple(self._trace_cache.kept),
            keyed={key: state.traces for key, state in self._trace_cache.states.items()},
            routes={key: state.route for key, state in self._trace_cache.states.items()},
            failures=self._trace_cache.states.failures(),
            eager_calls=dict(self._eager.counts),
            regions=tuple(self._splits.regions),
            joint_traces=self._joint.traces,
            joint_failures=self._joint.states.failures(),
            breaks=tuple(self._splits.breaks),
            partial_graphs=tuple(executor.snapshot() for executor in self._splits.executors),
            fast_calls=self.fast_calls,
        )

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""
        return explanation(self.snapshot())

    def graphs(self) -> list[Graph]:
        """The graphs that the C++ runtime runs, see `Inspectable.graphs`."""
        return self.snapshot().graphs()

    @property
    def fast_calls(self) -> int:
        """Calls that were served without Python."""
        return self.fast.calls

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CachedTrace | None:
        """The kept trace that serves these arguments, if there is one."""
        try:
            call = Call.of(args, kwargs)
            return self._trace_cache.state(call).find(call)
        except (EagerOnly, TypeError):
            return None

    def natives(self) -> list[_C.Executable]:
        """The C++ objects that run the traces, in the order these were made."""
        found = [trace.executable for trace in self._trace_cache.kept]
        return [executable.native for executable in found if isinstance(executable, StaticExecutable)]

    # -- what is held between calls ----------------------------------------------------------------------------

    def deallocate_output_tensors(self) -> None:
        """With `manage_outputs`: take back the results of the last call, all of which must have been dropped.

        Raises:
            InputError: a result, or a view of one, is still held.
        """
        for native in self.natives():
            native.deallocate_output_tensors()

    def disable_manage_output_tensors(self) -> None:
        """The same, and results are the caller's from now on."""
        for native in self.natives():
            native.disable_manage_output_tensors()

    def swap_weights(self, weights: Mapping[str, torch.Tensor], strict: bool = True) -> None:
        """See `CompiledModule.swap_weights`."""
        assert isinstance(self.function, torch.nn.Module)
        pairs = new_weights(self.function, weights, strict)
        with self.lock:
            # Running calls hold the old tensors. `map` over a C function lets no other thread run in between.
            deque(map(torch._C._swap_tensor_impl, *zip(*pairs, strict=True)), maxlen=0)
            self.fast.forget()

    def trim(self) -> None:
        """Free the arenas of idle frames. The next call allocates them again."""
        for native in self.natives():
            native.trim()

    def drop_plans(self) -> None:
        """See `CompiledModule.drop_plans`."""
        self.snapshot().drop_plans()


def _partial_executor(
    name: str, options: Options, function: Callable[..., Any], number: int, known: KnownInputs
) -> Executor:
    # The split function, not the caller, holds the values between partial graphs.
    own = Options({**options.values, "manage_outputs": False})
    return Executor(function, own, f"{name}, partial graph {number}", is_partial=True, known=known)


_ACTIONS: dict[Stage, Callable[[Executor, Progress], Outcome]] = {
    Stage.FIND: lambda executor, progress: executor._trace_cache.find(progress),
    Stage.RUN: Executor._run,
    Stage.SPLIT: Executor._split,
    Stage.TRAIN: Executor._train_stage,
    Stage.EAGER: Executor._eager_stage,
}
