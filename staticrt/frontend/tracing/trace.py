"""Trace a callable for one set of arguments: one recorded run over fake tensors."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import locks, torch_private, tuning
from staticrt.frontend import budget
from staticrt.frontend.arguments.fakes import FakeInputs, FakeMaker, guards_of
from staticrt.frontend.arguments.structure import repeated
from staticrt.frontend.functionalize.functionalize import functionalize
from staticrt.frontend.graph import TracedGraph
from staticrt.frontend.guards.impure_calls import Watcher
from staticrt.frontend.guards.operators import definitions_of, kernels_of
from staticrt.frontend.reasons import (
    CannotTrace,
    ModelChanges,
    NeedsConstants,
    RefusesItself,
    TooSlow,
    exception_line,
    model_line,
    raise_interrupt,
    signal_handlers,
)
from staticrt.frontend.thread_state import ThreadState, certainly
from staticrt.frontend.tracing import compiling, control_flow
from staticrt.frontend.tracing.decisions import Decisions
from staticrt.frontend.tracing.escapes import Escapes, is_cached, let_go
from staticrt.frontend.tracing.fake_mode import TraceFakeMode
from staticrt.frontend.tracing.fake_run import run_on_fakes
from staticrt.frontend.tracing.finish import assert_data_dependent, finish
from staticrt.frontend.tracing.maybe_views import SizesDecideViews, layouts_show, results_show, writes_show
from staticrt.frontend.tracing.patches import tracing
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.tracer import Tracer
from staticrt.native import _C
from staticrt.shapes.size_env import NeedsShapeEnv, SizeEnv

aten = torch.ops.aten
log = logging.getLogger(__name__)
# Each trace is private to its thread. Two of one model could take each other's attributes for the model's own.
_one_at_a_time = locks.reentrant()

# Names in code that sets the `.grad` of tensors.
_SET_GRADIENTS = frozenset({"grad", "backward"})


def trace(request: TraceRequest) -> TracedGraph:
    """Record one run of `request.function` as a graph.

    Raises:
        CannotTrace: the run did something that a graph does not replay.
        NeedsShapeEnv, SizesDecideViews: another way to represent sizes is needed, see `TraceRequest.after`. Passes over
            a graph whose sizing `is_ours` may raise NeedsShapeEnv too.
        Exception: whatever the model raised.
    """
    signal_handlers()  # those that are set now: one that raises may be gone afterwards
    watcher = Watcher(request.snapshot, request.is_constant, may_change_gradients=request.is_step)
    operators = _C.OperatorWatch()
    undo: list[Callable[[], object]] = [watcher.stop, operators.stop, ThreadState().restore]

    def leave_nothing_behind(error: BaseException) -> None:
        with contextlib.ExitStack() as steps:  # each is taken, also where one before it raised
            for step in reversed((lambda: let_go(error), *undo)):
                steps.callback(step)

    traced = certainly(lambda: _trace(request, watcher, operators, undo), leave_nothing_behind)
    _check_guards(request, traced)
    return traced


def _check_guards(request: TraceRequest, traced: TracedGraph) -> None:
    """Check that the guards accept the call that was traced.

    Raises:
        NeedsConstants: a condition on sizes refuses it.
        RefusesItself: another guard does.
    """
    if (guard := traced.guards.refusing(request.leaves)) is not None:
        raise RefusesItself(guard.expression, guard.reason) if request.is_constant else NeedsConstants
    if differs := request.snapshot.differing():
        raise RefusesItself(f"{differs} differs", "")


def _trace(
    request: TraceRequest, watcher: Watcher, operators: _C.OperatorWatch, undo: list[Callable[[], object]]
) -> TracedGraph:
    with (
        _out_of_time(),
        _one_at_a_time,
        budget.charged(tuning.SHARE_OF_TRACE_SECONDS),
    ):
        try:
            return _record(request, watcher, operators, undo)
        except (CannotTrace, NeedsShapeEnv):
            raise
        except Exception as error:
            if type(error).__name__ == "GuardOnDataDependentSymNode":
                raise CannotTrace("a number that data decides", exception_line(error)) from error
            log.debug(
                "trace with %s: %s: %s",
                request.sizing,
                type(error).__name__,
                error,
                exc_info=request.sizing.is_ours,
            )
            raise


def trace_with_any_sizing(request: TraceRequest) -> TracedGraph:
    """Trace by `request`, or by the first of those that follow it whose sizes the model takes; raises as `trace`."""
    following: TraceRequest | None = request
    while following is not None:
        request = following
        try:
            return trace(request)
        except (Exception, NeedsShapeEnv) as error:
            following = request.after(error)
            if following is None:
                raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _out_of_time() -> Iterator[None]:
    try:
        yield
    except budget.OutOfTime:
        raise TooSlow(budget.reason(), "") from None


def _not_of_a_trace(record: logging.LogRecord) -> bool:
    """Filter: what torch logs, with a traceback, where a model raises on fake tensors.

    A wrong argument gets one message: what eager raises, or the trace's reason in `explain()`.
    """
    return not (compiling.thread.traces or compiling.depth())


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_not_of_a_trace)


def _unsaved(
    _call: tuple[Any, ...], _preserve: bool, context: Callable[..., Any], debug: bool
) -> Iterator[None]:
    """Around a checkpoint's function where no backward computes it again: the state of the generator is not asked."""
    if debug or not torch_private.is_plain_checkpoint(context):
        raise CannotTrace("a checkpoint with a context, or a debug mode, of its own")
    yield


def _record(
    request: TraceRequest, watcher: Watcher, operators: _C.OperatorWatch, undo: list[Callable[[], object]]
) -> TracedGraph:
    """As `trace`.

    Args:
        operators: watches those that the run calls.
        undo: gets what takes back what the run has changed, each of which may be called more than once.
    """
    sizing, leaves, snapshot = request.sizing, request.leaves, request.snapshot
    env: Any = SizeEnv(model_line) if sizing.is_ours else _shape_env(sizing.is_oblivious)
    fake_mode = TraceFakeMode(env)
    escapes = Escapes(fake_mode)
    undo.append(escapes.close)
    with tracing(sizing.is_oblivious, request.autograd):
        escapes.open()
        fakes = FakeMaker(fake_mode, sizing).make(leaves, request.known)
        tracer = Tracer(fake_mode, watcher, autograd=request.autograd, control_flow=control_flow.record)
        tracer.layers = request.layers
        _add_arguments(tracer, fakes, leaves)
        env.decider = Decisions(tracer, leaves) if request.decide else None
        outputs: list[Any] = []
        roots = (tracer, fakes, outputs, fake_mode, env)

        def owned() -> Iterator[Any]:
            yield from (*tracer.owned(), *fakes.leaves, *outputs)

        def take_back() -> list[str]:
            found = escapes.undo(owned, roots)
            if not (request.is_step or _SET_GRADIENTS.isdisjoint(snapshot.read_names)):
                found += escapes.undo_gradients(snapshot.gradients)
            return found

        undo[-1:] = [snapshot.restore, take_back, escapes.close, tracer.versions.put_back]
        try:
            operators.start()
            with contextlib.nullcontext() if request.autograd else torch_private.checkpoint_parts(_unsaved):
                out_spec = run_on_fakes(request, fakes, tracer, watcher, outputs, escapes.is_new)
        finally:
            operators.stop()
            env.decider = None
            tracer.versions.put_back()
        escaped = take_back()
        undo.remove(take_back)
        escapes.close()
        if escaped:
            # Dynamo computes anew what a cache holds.
            raise ModelChanges(escaped, does="", even_in_parts=any(map(is_cached, escaped)))
        tracer.tensors.check_memory(tracer.fake_mode.sets_data)
        tensors = [value for value in (*fakes.leaves, *outputs) if isinstance(value, torch.Tensor)]
        called = _of_model(operators, tracer)
        snapshot.add_operators(kernels_of(called, [each.device for each in tensors]), definitions_of(called))
        if not request.autograd or request.derive is not None:
            arguments = zip(fakes.leaves, leaves, strict=True)
            tracer.inputs.check_gradients(arguments, outputs if request.derive is None else None)
        written: set[fx.Node] = set()
        inference_outputs = frozenset(i for i, out in enumerate(outputs) if tracer.tensors.is_inference(out))
        if inference_outputs and request.derive is not None:
            raise CannotTrace("the model makes inference tensors beside gradients", "", even_in_parts=True)
        try:
            if tracer.maybe_views and (
                results_show(tracer.graph, tracer.maybe_views, outputs)
                or (tracer.writes and writes_show(tracer.graph, tracer.maybe_views, outputs))
                or layouts_show(
                    tracer.graph,
                    tracer.maybe_views,
                    [tracer.argument(out) for out in outputs if isinstance(out, torch.Tensor)],
                )
            ):
                raise SizesDecideViews
            if tracer.writes:
                tracer, nodes, written = functionalize(tracer, outputs)
            else:
                nodes = [tracer.argument(out) for out in outputs]
        except SizesDecideViews:
            if sizing.is_constant:
                raise CannotTrace("a view or a copy, depending on sizes that data decides") from None
            if not all(found.is_guarded for found in tracer.maybe_views):
                raise NeedsShapeEnv("a view or a copy, which torch's own sizes guard") from None
            raise
        assert_data_dependent(tracer)
    return finish(request, tracer, nodes, written, out_spec, guards_of(env, fakes), inference_outputs)


def _of_model(operators: _C.OperatorWatch, tracer: Tracer) -> list[str]:
    """Of the operators that a run called, those that the model calls: fake tensors call others to learn sizes."""
    names = operators.names()
    if tracer.bodies:  # graphs of their own
        return [*names]
    targets = (node.target for node in tracer.graph.nodes)
    recorded = {each._schema.name for each in targets if isinstance(each, torch._ops.OpOverload)}
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key
    return [
        name
        for name in names
        if name.partition(".")[0] in recorded or is_composite(name, "CompositeImplicitAutograd")
    ]


def _add_arguments(tracer: Tracer, fakes: FakeInputs, leaves: Sequence[Any]) -> None:
    """Placeholders for fake arguments."""
    placeholders: dict[int, fx.Node] = {}
    same = dict(repeated(leaves))
    for index, fake in enumerate(fakes.leaves):
        if isinstance(fake, (torch.Tensor, torch.SymInt)) and index not in same:
            placeholders[index] = tracer.inputs.add_user(fake, f"arg_{index}")
    for symbol, size in fakes.symbols.items():
        tracer.inputs.sources[symbol] = (placeholders[size.leaf], size.prop, size.dim)


def _shape_env(oblivious: bool) -> Any:
    from staticrt.frontend.tracing.shape_env import DecidingShapeEnv

    return DecidingShapeEnv(
        allow_scalar_outputs=True,
        allow_dynamic_output_shape_ops=True,
        specialize_zero_one=not oblivious,
        duck_shape=False,
    )


def failure(error: BaseException) -> tuple[str, str]:
    """Why and where a trace failed, as short texts; raises `error` where it only interrupted the trace."""
    raise_interrupt(error)
    if isinstance(error, CannotTrace):
        return error.reason, error.where
    text = str(error).strip().split("\n")[0]
    # Torch's error where a transform's level lies between an operator and the tracer's dispatcher.
    if "PythonDispatcher dispatch key" in text:
        text = "the model calls a transform of torch.func, which is not recorded with gradients"
        return text, exception_line(error)
    return f"{type(error).__name__}: {text}"[:300], exception_line(error)
