"""Compiled training steps (`staticrt.compile_step`): a whole step as one graph, one Program, one arena.

The step's function runs once on fake tensors with autograd on, which records forward, backward and the optimiser's
update. Parameters, buffers and optimiser state are inputs that the Program writes in place. Gradients that remain when
the step ends are outputs of the Program; this file assigns them to `.grad`.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt import locks, torch_private, tuning
from staticrt.errors import TraceError
from staticrt.frontend.arguments.names import named_like
from staticrt.frontend.arguments.structure import Flattener
from staticrt.frontend.collector import seldom_collecting
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.progress import long_work
from staticrt.frontend.reasons import BROADCASTS, CannotTrace, ModelChanges, is_interrupt, warn
from staticrt.frontend.thread_state import keeping_thread_state
from staticrt.options import Options
from staticrt.runtime.branches import OTHER_DECISION, OtherDecision
from staticrt.runtime.cached_trace import Failure
from staticrt.runtime.call import Call
from staticrt.runtime.call_key import CallKey, EagerOnly, eager_reason
from staticrt.runtime.eager_runs import EagerCalls
from staticrt.runtime.executable import build
from staticrt.runtime.explain.explanation import EagerReport, Explanation
from staticrt.runtime.fast_call import FastPath
from staticrt.training.assigned_weights import AssignedWeights
from staticrt.training.checkpoints import checkpoints, recompute_parts
from staticrt.training.decomposed.decompositions import eager_operators
from staticrt.training.grad_copies import remove_copies_of_gradients
from staticrt.training.layouts import copy_for_views, has_misplaced_batch_norm, is_laid_out_otherwise
from staticrt.training.optim import NotReady, Recordable
from staticrt.training.recording import GradEffect, Recording, reachable
from staticrt.training.torch_optim import has_twin, twin_of
from staticrt.training.variant import MISSED, Variant


class CompiledStep:
    """A compiled training step; is called like the function that it wraps."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        self._name = named_like(self, function)
        self.function = function
        self._options = options
        self._variants: list[Variant] = []
        self._num_stale = 0  # variants that are kept no longer
        self._failures: dict[Any, tuple[int, Failure]] = {}
        # Keys of calls in which data decides what is broadcast; a trace only checks that.
        self._assumes: set[Any] = set()
        self._fast = FastPath(self._slow)  # for calls that no variant serves
        self._eager = EagerCalls(function, self._name, self._fast)
        self._lock = locks.reentrant()

    @torch_private.hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for variant in self._variants:
            if variant.is_ready():
                done = variant.fast.call(*args, **kwargs)
                if done is not MISSED:
                    return variant.finish(done, args, kwargs)
        return self._fast.call(*args, **kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # One step for each instance, since instances reach different modules and optimisers.
        steps = instance.__dict__.setdefault("_staticrt_steps", _Steps())
        step = steps.get(self._name)
        if step is None:
            step = steps[self._name] = CompiledStep(self.function.__get__(instance, owner), self._options)
        return step

    def __repr__(self) -> str:
        return f"<staticrt.compile_step of {self._name}>"

    def explain(self) -> Explanation:
        """What was compiled, what ran eagerly, and why."""
        eager = tuple(EagerReport(*key, calls=count) for key, count in sorted(self._eager.counts.items()))
        notes = tuple(
            dict.fromkeys(
                f"not recorded: {failure.reason}" + (f" at {failure.where}" if failure.where else "")
                for _count, failure in self._failures.values()
            )
        )
        return Explanation(self._name, tuple(v.report() for v in self._variants), eager, notes)

    # -- calls that the fast path does not serve --------------------------------------------------------------------

    @torch_private.hidden_from_dynamo
    def _slow(self, *args: Any, **kwargs: Any) -> Any:
        reason = eager_reason()
        if reason is None and not torch.is_grad_enabled():
            reason = "gradients are switched off"
        if reason is None and not torch_private.grad_layouts_are_enforced():
            reason = "gradients may have other strides than their parameters (torch.autograd.enforce_grad_layout_policy)"
        if reason is not None:
            return self._eager.run(args, kwargs, reason)
        try:
            call = Call.of(args, kwargs)
        except EagerOnly as error:
            return self._eager.run(args, kwargs, str(error))
        for leaf in call.leaves:
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.requires_grad
                and (not leaf.is_leaf or leaf.grad is not None)
            ):
                return self._eager.run(args, kwargs, "an argument has a history or a gradient already")
        tried: list[Variant] = []
        while True:
            variant = keeping_thread_state(lambda: self._found_or_recorded(call, tried))
            if isinstance(variant, Failure):
                result = self._eager.run(args, kwargs, variant.reason, variant.where)
                if self._lasts(call):
                    self._eager.will_last(args, kwargs, variant.reason, variant.where)
                return result
            if variant.traced.mutates and variant.shares_memory(call.leaves):
                return self._eager.run(
                    args, kwargs, "a tensor that is written shares memory with another input"
                )
            if variant is not self._variants[0]:
                self._variants = [variant, *(v for v in self._variants if v is not variant)]
            try:
                return variant.run(call)
            except OtherDecision:
                if call.key.key in self._assumes:
                    return self._eager.run(args, kwargs, OTHER_DECISION)
                tried.append(variant)
            except Exception as error:
                reason = variant.beyond(error)
                if not reason:
                    raise
                return self._eager.run(args, kwargs, reason)

    def _found_or_recorded(self, call: Call, tried: list[Variant]) -> Variant | Failure:
        """A variant that serves a call.

        Args:
            tried: those in which data decided otherwise.
        """
        with self._lock:
            _attempts, failed = self._failures.get(call.key.key, (0, None))
            if failed is not None and failed.reason == OTHER_DECISION:
                return failed
            for variant in self._variants:
                if variant not in tried and variant.accepts(call):
                    return variant
            if len(tried) < tuning.MAX_BRANCHES:
                return self._record(call)
            failed = Failure(OTHER_DECISION, "", True)
            self._failures[call.key.key] = (tuning.STEP_ATTEMPTS, failed)
            self._variants = [variant for variant in self._variants if variant not in tried]
            return failed

    def _lasts(self, call: Call) -> bool:
        """Whether steps like this one are not recorded any more."""
        attempts, failed = self._failures.get(call.key.key, (0, None))
        return failed is not None and (failed.impossible or attempts >= tuning.STEP_ATTEMPTS)

    # -- recording -------------------------------------------------------------------------------------------------

    def _record(self, call: Call) -> Variant | Failure:
        attempts, failed = self._failures.get(call.key.key, (0, None))
        if failed is not None and self._lasts(call):
            return failed
        kept = [v for v in self._variants if not v.is_stale()]
        self._num_stale += len(self._variants) - len(kept)
        self._variants = kept
        limit = self._options.max_traces
        given_up = None
        if len(kept) + self._num_stale >= limit:
            given_up = _to_give_up(kept, call.key)
            if given_up is None:
                return Failure(f"more than max_traces={limit} traces", "", True)
        try:
            with long_work(f"tracing {self._name}", self._options.progress), seldom_collecting():
                variant = self._trace(call)
        except NotReady as error:
            return Failure(error.reason, error.where, False)
        except Exception as error:
            return self._fail(call.key, error, attempts)
        self._failures.pop(call.key.key, None)
        self._variants = [variant, *(v for v in self._variants if v is not given_up)]
        return variant

    def _fail(self, key: CallKey, error: Exception, attempts: int) -> Failure:
        from staticrt.frontend.tracing.trace import failure

        reason, where = failure(error)
        # State that the first step creates (torch's optimisers, lazy modules) exists in the next one.
        transient = (
            not isinstance(error, CannotTrace) or isinstance(error, ModelChanges) or "changes" in reason
        )
        found = Failure(reason, where, not transient)
        self._failures[key.key] = (attempts + 1, found)
        if self._options.fullgraph and (found.impossible or attempts + 1 >= tuning.STEP_ATTEMPTS):
            raise TraceError(
                f"cannot record {self._name}: {reason}",
                at=where or None,
                fix="change the step there, or leave out fullgraph=True",
            ) from error
        if found.impossible or attempts + 1 >= tuning.STEP_ATTEMPTS:
            at = f" at {where}" if where else ""
            warn(f"staticrt: {self._name} runs eagerly: {reason}{at}")
        return found

    def _trace(self, call: Call) -> Variant:
        from staticrt.frontend.tracing.request import TraceRequest
        from staticrt.frontend.tracing.sizing import Sizing
        from staticrt.frontend.tracing.trace import trace_with_any_sizing
        from staticrt.frontend.tracing.tracer import current_tracer

        walked = Snapshot([("", self.function)], leaves_out=has_twin)
        walked.add_arguments(call.leaves)
        modules, optimizers, scalers = reachable(self.function, walked)
        twins = [(each, each if isinstance(each, Recordable) else twin_of(each)) for each in optimizers]
        twins = [(optimizer, twin) for optimizer, twin in twins if twin is not None]
        # The variant guards optimisers with a twin. Those that only the run finds are recorded as their code says.
        held = {id(optimizer) for optimizer, _twin in twins}
        snapshot = Snapshot([("", self.function)], leaves_out=lambda value: id(value) in held)
        snapshot.compares_facts = False  # a step itself changes gradients and versions
        snapshot.add_arguments(call.leaves)
        for module in modules:
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                raise CannotTrace(
                    "a DistributedDataParallel module reduces gradients in hooks of its own "
                    "(staticrt.compile of it, or of the model in it, compiles the model)"
                )
            snapshot.add(type(module).__qualname__, module)
        parameters = [p for module in modules for p in module.parameters()]
        for optimizer in optimizers:
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
            if id(optimizer) not in held:
                snapshot.add(type(optimizer).__name__, optimizer)
        for scaler in scalers:  # as they are now: while the step is recorded, they are held
            snapshot.add(type(scaler).__name__, scaler)
        _refuse_hooks(parameters)
        recording = Recording(snapshot, parameters, twins, scalers)
        effects: list[GradEffect] = []
        weights = AssignedWeights(modules, snapshot)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            flattener = Flattener()
            flattener.flatten((args, kwargs))
            try:
                recording.begin(flattener.leaves, current_tracer())
                result = self.function(*args, **kwargs)
                effects[:], grads = recording.end()
                assigned = weights.take(current_tracer().inputs.lifted)
                return pytree.tree_map_only(
                    torch.Tensor, _detached, (result, grads, assigned), is_leaf=_is_size
                )
            finally:
                weights.restore()
                recording.restore()

        layers = {id(layer): path for module in modules for path, layer in module.named_modules()}
        names = {id(b): ("buffer", name) for module in modules for name, b in module.named_buffers()}
        names.update({id(p): ("parameter", n) for module in modules for n, p in module.named_parameters()})
        dynamic = self._options.dynamic
        if dynamic is None:
            dynamic = any(variant.differs_in_sizes(call) for variant in self._variants)

        def attempt(dynamic: bool, decide: bool = True) -> Any:
            request = TraceRequest(
                recorded,
                call.spec,
                call.leaves,
                Sizing.first(dynamic, shape_env=True),
                snapshot=snapshot,
                tensors=names,
                layers=layers,
                autograd=True,
                decide=decide,
            )
            try:
                with eager_operators(), checkpoints(current_tracer, reentrant=True):
                    return trace_with_any_sizing(request)
            except CannotTrace as error:
                if not decide or error.reason != BROADCASTS:
                    raise
            self._assumes.add(call.key.key)
            return attempt(dynamic, decide=False)

        try:
            traced = attempt(dynamic)
        except CannotTrace:
            raise
        except Exception as error:
            if not dynamic or is_interrupt(error):
                raise
            traced = attempt(False)  # a derivative formula that does not support symbolic sizes
        if has_misplaced_batch_norm(traced.module):
            raise CannotTrace(
                "a batch norm of a transposed tensor, or its gradient, has other strides than in the trace"
            )
        if is_laid_out_otherwise(traced.module):
            copy_for_views(traced.module)
        remove_copies_of_gradients(traced.module)
        recompute_parts(traced.module)
        traced.inputs = tuple(_not_constant(spec) for spec in traced.inputs)
        # The step writes its weights, so values derived from them are not kept.
        executable = build(traced, self._options.executor, freeze=False, **self._options.runtime())
        stepped = recording.optimizers
        others = [twin for _optimizer, twin in twins if not any(twin is each for each in stepped)]
        return Variant(
            call,
            traced,
            executable,
            snapshot.guard(),
            effects,
            weights.places,
            [*stepped, *others],
            recording.reads,
        )


class _Steps(dict):  # type: ignore[type-arg]
    """Compiled steps of one instance; not part of its state."""

    def __deepcopy__(self, memo: Any) -> _Steps:
        return _Steps()

    def __reduce__(self) -> Any:
        return _Steps, ()


def _to_give_up(variants: Sequence[Variant], key: CallKey) -> Variant | None:
    """The variant that gives its place to a new one of `key`, as `CallStates.to_give_up` chooses among traces: the one used least recently."""
    counts = Counter(variant.key.key for variant in variants)
    most, count = counts.most_common(1)[0] if counts else (None, 0)
    if count < counts[key.key] + 2:
        return None
    return next(variant for variant in reversed(variants) if variant.key.key == most)


def _detached(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value.grad_fn is not None else value


def _is_size(value: Any) -> bool:
    return isinstance(value, torch.Size)  # of which a pytree makes a tuple


def _not_constant(spec: Any) -> Any:
    """The spec of an input that is not a constant: tensors that a step reads may change between steps."""
    return dataclasses.replace(spec, kind="buffer") if spec.kind == "constant" else spec


def _refuse_hooks(parameters: Sequence[torch.Tensor]) -> None:
    for p in parameters:
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise CannotTrace("a parameter has hooks")
