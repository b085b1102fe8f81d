"""`staticrt.compile_step`: a whole training step as one graph, one Program, one arena.

The step's function runs once over fake tensors with autograd on, so forward, backward and the optimiser's update
are recorded alike; parameters, buffers and optimiser state are inputs that the Program writes back in place.
What a Program does not do is left to this file: gradients that are still there when the step ends are outputs,
which are put into `.grad`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch.utils import _pytree as pytree

from staticrt import _compat
from staticrt.entry import Failure
from staticrt.errors import CaptureError
from staticrt.executable import build
from staticrt.frontend.keys import CallKey, EagerOnly, call_key, eager_reason
from staticrt.frontend.reasons import CannotCapture
from staticrt.frontend.state import Snapshot
from staticrt.frontend.structure import Flattener
from staticrt.options import Options, parse_options
from staticrt.report.explain import EagerReport, Explanation
from staticrt.training.grad_copies import remove_copies_of_gradients
from staticrt.training.layouts import has_misplaced_batch_norm
from staticrt.training.optim import NotReady, Recordable
from staticrt.training.recording import GradEffect, Recording, reachable
from staticrt.training.variant import MISSED, Variant

F = TypeVar("F", bound=Callable[..., Any])

# A step that cannot be recorded is tried again this often: state may be missing only at first.
_ATTEMPTS = 3


class CompiledStep:
    """A training step that runs compiled. Calls like the function it wraps."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._options = options
        self._name = getattr(function, "__qualname__", type(function).__qualname__)
        self._variants: list[Variant] = []
        self._failures: dict[Any, tuple[int, Failure]] = {}
        self._eager: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.RLock()

    @_compat.hidden_from_dynamo
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for variant in self._variants:
            if variant.is_ready():
                done = variant.fast.call(*args, **kwargs)
                if done is not MISSED:
                    return variant.finish(done, args, kwargs)
        return self._slow(args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        # One step for each instance: what it reaches differs.
        steps = instance.__dict__.setdefault("_staticrt_steps", _Steps())
        step = steps.get(self._name)
        if step is None:
            step = steps[self._name] = CompiledStep(self._function.__get__(instance, owner), self._options)
        return step

    def __repr__(self) -> str:
        return f"<staticrt.compile_step of {self._name}>"

    def explain(self) -> Explanation:
        """What was compiled, what ran eagerly, and why."""
        eager = tuple(EagerReport(*key, calls=count) for key, count in sorted(self._eager.items()))
        notes = tuple(
            dict.fromkeys(
                f"not recorded: {failure.reason}" + (f" at {failure.where}" if failure.where else "")
                for _count, failure in self._failures.values()
            )
        )
        return Explanation(self._name, tuple(v.report() for v in self._variants), eager, notes)

    # -- calls that no variant serves at once ----------------------------------------------------------------------

    def _slow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = eager_reason()
        if reason is None and not torch.is_grad_enabled():
            reason = "gradients are switched off"
        if reason is not None:
            return self._run_eagerly(args, kwargs, reason)
        flattener = Flattener()
        spec = flattener.flatten((args, kwargs))
        leaves = flattener.leaves
        try:
            key = call_key(leaves, spec)
        except EagerOnly as error:
            return self._run_eagerly(args, kwargs, str(error))
        for leaf in leaves:
            if (
                isinstance(leaf, torch.Tensor)
                and leaf.requires_grad
                and (not leaf.is_leaf or leaf.grad is not None)
            ):
                return self._run_eagerly(args, kwargs, "an argument has a history or a gradient already")
        with self._lock:
            variant = self._find(key, leaves) or self._record(key, leaves, args, kwargs)
        if isinstance(variant, Failure):
            return self._run_eagerly(args, kwargs, variant.reason, variant.where)
        if variant.captured.mutates and variant.shares_memory(leaves):
            return self._run_eagerly(
                args, kwargs, "a tensor that is written shares memory with another input"
            )
        if variant is not self._variants[0]:
            self._variants = [variant, *(v for v in self._variants if v is not variant)]
        return variant.run(flattener, args, kwargs)

    def _find(self, key: CallKey, leaves: Sequence[Any]) -> Variant | None:
        for variant in self._variants:
            if variant.accepts(key, leaves):
                return variant
        return None

    def _run_eagerly(self, args: Any, kwargs: Any, reason: str, where: str = "") -> Any:
        self._eager["call", reason, where] += 1
        return self._function(*args, **kwargs)

    # -- recording -------------------------------------------------------------------------------------------------

    def _record(self, key: CallKey, leaves: Sequence[Any], args: Any, kwargs: Any) -> Variant | Failure:
        attempts, failed = self._failures.get(key.key, (0, None))
        if failed is not None and (failed.impossible or attempts >= _ATTEMPTS):
            return failed
        self._variants = [v for v in self._variants if not v.is_stale()]
        limit = self._options.max_captures
        if len(self._variants) >= limit:
            return Failure(f"more than max_captures={limit} captures", "", True)
        try:
            variant = self._capture(key, leaves, args, kwargs)
        except NotReady as error:
            return Failure(error.reason, error.where, False)
        except Exception as error:
            return self._fail(key, error, attempts)
        self._failures.pop(key.key, None)
        self._variants.insert(0, variant)
        return variant

    def _fail(self, key: CallKey, error: Exception, attempts: int) -> Failure:
        from staticrt.frontend.capture import failure

        reason, where = failure(error)
        # State that the first step makes (torch's optimisers, lazy modules) is there the next time.
        transient = not isinstance(error, CannotCapture) or "changes" in reason
        found = Failure(reason, where, not transient)
        self._failures[key.key] = (attempts + 1, found)
        if self._options.fullgraph and (found.impossible or attempts + 1 >= _ATTEMPTS):
            raise CaptureError(f"cannot record {self._name}: {reason}", at=where or None) from error
        if found.impossible or attempts + 1 >= _ATTEMPTS:
            at = f" at {where}" if where else ""
            warnings.warn(f"staticrt: {self._name} runs eagerly: {reason}{at}", stacklevel=6)
        return found

    def _capture(self, key: CallKey, leaves: Sequence[Any], args: Any, kwargs: Any) -> Variant:
        from staticrt.frontend.capture import capture

        snapshot = Snapshot([("", self._function)])
        snapshot.add_arguments(leaves)
        modules, optimizers = reachable(self._function, snapshot)
        for module in modules:
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                raise CannotCapture("a DistributedDataParallel module reduces gradients in hooks of its own")
            snapshot.add(type(module).__qualname__, module)
        parameters = [p for module in modules for p in module.parameters()]
        for optimizer in optimizers:
            parameters += [p for group in optimizer.param_groups for p in group["params"]]
            if not isinstance(optimizer, Recordable):
                snapshot.add(type(optimizer).__name__, optimizer)
            elif not optimizer.is_ready():
                raise NotReady("an optimiser's first step: torch makes its state in an eager step")
        _refuse_hooks(parameters)
        recording = Recording(snapshot, parameters)
        effects: list[GradEffect] = []

        def traced(*args: Any, **kwargs: Any) -> Any:
            flattener = Flattener()
            flattener.flatten((args, kwargs))
            recording.begin(flattener.leaves, _tracer())
            try:
                result = self._function(*args, **kwargs)
                effects[:] = recording.end()
                grads = tuple(e.leaf.tensor.grad for e in effects if e.effect == "new")
                return pytree.tree_map_only(torch.Tensor, _detached, (result, grads))
            finally:
                recording.restore()

        names = {id(b): ("buffer", name) for module in modules for name, b in module.named_buffers()}
        names.update({id(p): ("parameter", n) for module in modules for n, p in module.named_parameters()})
        dynamic = self._options.dynamic
        if dynamic is None:
            dynamic = any(variant.differs_in_sizes(key, leaves) for variant in self._variants)

        def attempt(dynamic: bool) -> Any:
            with _compat.recurrent_networks():
                return capture(
                    traced, args, kwargs, snapshot=snapshot, tensors=names, dynamic=dynamic, autograd=True
                )

        try:
            captured = attempt(dynamic)
        except CannotCapture:
            raise
        except Exception:
            if not dynamic:
                raise
            captured = attempt(False)  # a formula that does not take symbolic sizes
        if has_misplaced_batch_norm(captured.module):
            raise CannotCapture(
                "a batch norm of a transposed tensor, or its gradient, lies in memory unlike in the trace"
            )
        remove_copies_of_gradients(captured.module)
        captured.inputs = tuple(_not_constant(spec) for spec in captured.inputs)
        # The step writes its weights: nothing made of them is worth keeping.
        executable = build(captured, self._options.executor, freeze=False, **self._options.runtime())
        return Variant(key, leaves, captured, executable, snapshot.guard(), effects, recording.optimizers)


class _Steps(dict):  # type: ignore[type-arg]
    """Compiled steps of one instance; not part of its state."""

    def __deepcopy__(self, memo: Any) -> _Steps:
        return _Steps()

    def __reduce__(self) -> Any:
        return _Steps, ()


def _tracer() -> Any:
    """The tracer that records just now."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from staticrt.frontend.trace import Tracer

    return next(mode for mode in reversed(_get_current_dispatch_mode_stack()) if isinstance(mode, Tracer))


def _detached(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value.grad_fn is not None else value


def _not_constant(spec: Any) -> Any:
    """Everything a step reads may have another value in the next."""
    return dataclasses.replace(spec, kind="buffer") if spec.kind == "constant" else spec


def _refuse_hooks(parameters: Sequence[torch.Tensor]) -> None:
    for p in parameters:
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise CannotCapture("a parameter has hooks")


@overload
def compile_step(function: F, **options: Any) -> F: ...
@overload
def compile_step(function: None = None, **options: Any) -> Callable[[F], F]: ...
def compile_step(function: Any = None, *, dynamic: bool | None = None, **options: Any) -> Any:
    """Compile a whole training step: forward, backward and update as one Program with one arena.

    The function computes a loss, calls `loss.backward()` or `torch.autograd.grad`, and updates parameters, with an
    optimiser of `staticrt.training.optim` or by hand under `torch.no_grad()`. It may be used as a decorator.
    Parameters, buffers, optimiser state and `.grad` are afterwards as after an eager call; results are detached.
    Learning rates and other numbers of the optimisers may change between calls without recording again.

    The first call runs eagerly where the optimiser has yet to make its state. A step that cannot be recorded (it
    prints, reads a value with `item()`, …) runs eagerly, with a warning; `explain()` says why.
    Gradients that are left in `.grad` are results, allocated in each call; those reset before the step ends
    (`optimizer.zero_grad()` last) live in the arena.

    Args:
        function: the step.
        dynamic: None: sizes are constants of the first recording, symbols once a second size comes. True: symbols
            at once. False: each size is recorded.
        options: see `staticrt.options.OPTIONS`.

    Returns:
        A `CompiledStep`, or without `function` a decorator.

    Raises:
        OptionError: an unknown option or value.
        CaptureError: with `fullgraph=True`, the step cannot be recorded.
    """
    parsed = parse_options({"dynamic": dynamic, **options})
    if function is None:
        return lambda function: CompiledStep(function, parsed)
    if isinstance(function, CompiledStep):
        function = function._function
    if not callable(function) or isinstance(function, torch.nn.Module):
        from staticrt.errors import InputError

        raise InputError(
            f"staticrt.compile_step takes a function that trains, got {type(function).__name__}",
            fix="write a function that computes the loss, calls backward() and steps the optimiser",
        )
    return CompiledStep(function, parsed)
