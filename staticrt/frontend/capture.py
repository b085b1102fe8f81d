"""Capture a callable for one set of arguments: one recorded run over fake tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from staticrt.frontend import budget
from staticrt.frontend.fakes import FakeMaker, guards_of
from staticrt.frontend.graph import CapturedGraph, InputSpec, KnownInputs
from staticrt.frontend.maybe_views import SizesDecideViews, results_show, writes_show
from staticrt.frontend.reasons import OTHERWISE, CannotCapture, ModelChanges, exception_line, model_line
from staticrt.frontend.state import Snapshot
from staticrt.frontend.structure import (
    Builder,
    Flattener,
    ResultSpec,
    Structure,
    contents,
    repeated,
    same_contents,
)
from staticrt.frontend.tracing import SymbolicInt, alone, random_state, tracing, uncollected
from staticrt.frontend.watch import ImpureCall, Watcher
from staticrt.ops.size_nodes import NeedsShapeEnv, SizeEnv

aten = torch.ops.aten
log = logging.getLogger(__name__)

# Of the time that is left, what one capture may take: Dynamo, or the other parts of a cut model, get as much.
_OF_WHAT_IS_LEFT = 0.5

# What a graph's output may be.
_IN_GRAPHS = (
    *(torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def capture(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    names: Sequence[str] = (),
    snapshot: Snapshot | None = None,
    tensors: dict[int, tuple[str, str]] | None = None,
    dynamic: bool = True,
    known: KnownInputs | None = None,
    autograd: bool = False,
    decide: bool = False,
    quick: bool = True,
) -> CapturedGraph:
    """Record `function(*args, **kwargs)` as a graph with symbolic sizes.

    Args:
        function: a module or function. It runs once over fake tensors; no real data is touched.
        args, kwargs: as in a call. Their containers are rebuilt, never handed to the model themselves.
        names: readable names of the flat arguments, for messages.
        snapshot: state the model may change; what it reads from globals is added. Put back before returning.
        tensors: id of a model's tensor -> ("parameter" or "buffer", qualified name).
        dynamic: sizes are symbols; else constants.
        known: what is known of the leaves.
        autograd: record what autograd computes too: the function calls `backward()` or `autograd.grad` itself.
        decide: branches that data decides are followed as these arguments' values tell, with checks in the graph.
        quick: try sizes without sympy first (`ops/size_nodes.py`). Passes over such a graph may raise
            `NeedsShapeEnv`: it has to be captured again without.

    Raises:
        CannotCapture: the run did something that a graph does not replay.
        Exception: whatever the model raised.
    """
    snapshot = snapshot if snapshot is not None else Snapshot()
    with _out_of_time(), alone(), _quiet_fakes(), uncollected(), budget.charged(_OF_WHAT_IS_LEFT):
        # (sizes 0 and 1 are like any other, sizes are constants, without sympy); the first that the model takes.
        attempts = [(True, False, False), (False, False, False), (False, True, False)]
        if not dynamic:
            attempts = attempts[-1:]
        elif not _has_small_sizes((args, kwargs)):
            del attempts[1]
        if quick and not autograd:
            attempts.insert(0, (*attempts[0][:2], True))
        views_matter = False
        plain_int = False
        while attempts:
            attempt = attempts.pop(0)
            oblivious, static, light = attempt
            if views_matter and not static:
                continue
            try:
                return _attempt(
                    function,
                    args,
                    kwargs,
                    names,
                    snapshot,
                    tensors or {},
                    oblivious,
                    static,
                    known or KnownInputs(),
                    autograd,
                    decide,
                    light,
                    plain_int,
                )
            except NeedsShapeEnv as error:
                if not light:
                    raise
                log.debug("captured again with torch's own sizes: %s", error)
            except CannotCapture:
                raise
            except SizesDecideViews:
                views_matter = True
            except Exception as error:
                if type(error).__name__ == "GuardOnDataDependentSymNode":
                    raise CannotCapture("a number that data decides", exception_line(error)) from error
                log.debug("attempt %s: %s: %s", attempt, type(error).__name__, error, exc_info=light)
                if (
                    not plain_int
                    and isinstance(error, TypeError)
                    and type(SymbolicInt).__name__ in str(error)
                ):
                    plain_int = True  # `dtype=int`: torch takes no other type for it
                    attempts.insert(0, attempt)
                elif not attempts:
                    raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _out_of_time() -> Iterator[None]:
    try:
        yield
    except budget.OutOfTime:
        raise CannotCapture(budget.reason(), "") from None


@contextlib.contextmanager
def _quiet_fakes() -> Iterator[None]:
    """Keep torch from printing a traceback where the model raises on fake tensors.

    A wrong argument gets one message: what eager raises, or the capture's reason in `explain()`. Nor may torch note
    each symbol with a traceback in its structured trace, which it does whether or not anyone reads that.
    """
    log, trace = logging.getLogger("torch._subclasses.fake_tensor"), logging.getLogger("torch.__trace")
    disabled, log.disabled = log.disabled, True
    handlers, trace.handlers = trace.handlers, []
    try:
        yield
    finally:
        log.disabled, trace.handlers = disabled, handlers


def _has_small_sizes(value: Any) -> bool:
    flattener = Flattener()
    flattener.flatten(value)
    return any(
        isinstance(leaf, torch.Tensor) and any(size in (0, 1) for size in leaf.shape)
        for leaf in flattener.leaves
    )


def _attempt(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: Sequence[str],
    snapshot: Snapshot,
    tensors: dict[int, tuple[str, str]],
    oblivious: bool,
    static: bool,
    known: KnownInputs,
    autograd: bool,
    decide: bool,
    light: bool,
    plain_int: bool,
) -> CapturedGraph:
    from torch._dispatch.python import enable_python_dispatcher

    from staticrt.frontend.decisions import Decisions
    from staticrt.frontend.fake_mode import CaptureFakeMode
    from staticrt.frontend.functionalize import functionalize
    from staticrt.frontend.trace import Tracer

    flattener = Flattener()
    in_spec = flattener.flatten((args, kwargs))
    leaves = flattener.leaves
    env: Any = SizeEnv(model_line) if light else _shape_env(oblivious)
    fake_mode = CaptureFakeMode(env)
    watcher = Watcher(snapshot, plain_int)
    with random_state(), tracing(oblivious):
        maker = FakeMaker(fake_mode, oblivious=oblivious, static=static)
        fakes = maker.make(leaves, known)
        tracer = Tracer(fake_mode, watcher, autograd=autograd)
        # With autograd on, composite operators are taken apart above the tracer: in Python, on symbolic sizes.
        level = enable_python_dispatcher() if autograd else torch._C._AutoDispatchBelowAutograd()
        placeholders: dict[int, fx.Node] = {}
        same = dict(repeated(leaves))
        for index, fake in enumerate(fakes.leaves):
            if isinstance(fake, (torch.Tensor, torch.SymInt)) and index not in same:
                placeholders[index] = tracer.add_user(fake, f"arg_{index}")
        for symbol, size in fakes.symbols.items():
            tracer.sources[symbol] = (placeholders[size.leaf], size.prop, size.dim)
        builder = Builder(fakes.leaves)
        fake_args, fake_kwargs = builder.build(in_spec)
        containers = builder.containers
        before = [contents(container) for container in containers]
        env.decider = Decisions(tracer, leaves) if decide and not light else None
        try:
            with fake_mode, level, tracer:
                watcher.start()
                try:
                    result = function(*fake_args, **fake_kwargs)
                except ImpureCall:
                    result = None
                finally:
                    watcher.stop()
            changed = snapshot.changes()
        finally:
            env.decider = None
            snapshot.restore()
        if light and env.gave_up:  # and the model caught it
            raise NeedsShapeEnv(env.gave_up)
        if watcher.impure:
            what, where = watcher.impure[0]
            raise CannotCapture(f"the model {what}", where)
        if changed:
            raise ModelChanges(changed)
        outputs, out_spec = _flatten_result(result, containers, before, snapshot)
        for out in (*outputs, *out_spec.objects.values()):
            _check_output(out)
        tracer.check_storages()
        if tracer.maybe_views and (
            results_show(tracer, outputs) or (tracer.writes and writes_show(tracer, outputs))
        ):
            if static:
                raise CannotCapture("what may be a view or a copy, as sizes tell that data decides")
            raise SizesDecideViews
        written: set[fx.Node] = set()
        if tracer.writes:
            tracer, nodes, written = functionalize(tracer, outputs)
        else:
            nodes = [tracer.argument(out) for out in outputs]
        _assert_data_dependent(tracer)
    captured = _finish(
        tracer, nodes, written, names, tensors, in_spec, out_spec, guards_of(env, fakes), known.weights
    )
    return dataclasses.replace(captured, same=repeated(leaves))


def _shape_env(oblivious: bool) -> Any:
    from staticrt.frontend.shape_env import DecidingShapeEnv

    return DecidingShapeEnv(
        allow_scalar_outputs=True,
        allow_dynamic_output_shape_ops=True,
        specialize_zero_one=not oblivious,
        duck_shape=False,
    )


def _flatten_result(
    result: Any, containers: list[Any], before: list[Any], snapshot: Snapshot
) -> tuple[list[Any], ResultSpec]:
    """Flat outputs: the result's leaves, then the new contents of each argument container the model changed."""
    known = {id(container): number for number, container in enumerate(containers)}
    flattener = Flattener(known, snapshot.knows)
    structure = flattener.flatten(result)
    writes: list[tuple[int, Structure]] = []
    for number, (container, old) in enumerate(zip(containers, before, strict=True)):
        new = contents(container)
        if not same_contents(old, new):
            if type(container) not in (list, dict) and not hasattr(container, "__dict__"):
                raise CannotCapture(f"the model changes its argument, a {type(container).__name__}")
            values = [item for _key, item in new]
            as_plain = values if isinstance(container, list) else dict(new)
            writes.append((number, flattener.flatten(as_plain)))
    objects = {i: leaf for i, leaf in enumerate(flattener.leaves) if not isinstance(leaf, _IN_GRAPHS)}
    leaves = [None if i in objects else leaf for i, leaf in enumerate(flattener.leaves)]
    return leaves, ResultSpec(structure, writes, objects)


def _check_output(out: Any) -> None:
    if isinstance(out, torch.Tensor):
        if out.requires_grad and torch.is_grad_enabled() and out.grad_fn is not None:
            raise CannotCapture("an output needs gradients")
        return
    if isinstance(out, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return
    for value in (getattr(out, "__dict__", None) or {}).values():
        if isinstance(value, torch.Tensor):
            raise CannotCapture(f"an output of type {type(out).__name__} holds tensors")


def _assert_data_dependent(tracer: Any) -> None:
    """Conditions on numbers that data decides become assertions in the graph, before its first write.

    Bounds of one number hold, or the model asked for them (`torch._check`). Other conditions were assumed for this call's
    data: a call for which they do not hold takes another capture.
    """
    env = tracer.shape_env
    graph = tracer.graph
    if not env.deferred_runtime_asserts:
        return
    write = next((node for node in graph.nodes if _writes(node)), None)
    with contextlib.nullcontext() if write is None else graph.inserting_before(write):
        for asserts in env.deferred_runtime_asserts.values():
            for item in asserts:
                expr = env.replace(item.expr)
                node = tracer.symbols.from_expr(expr, env)
                if isinstance(node, fx.Node):
                    bounds = len(expr.args) == 2 and sorted(arg.is_Atom for arg in expr.args) == [True, True]
                    assumed = not (
                        bounds and expr.is_Relational and not expr.func.__name__.endswith("quality")
                    )
                    text = f"{OTHERWISE} than {item.expr}" if assumed else f"{item.expr} does not hold"
                    check = graph.call_function(aten._assert_scalar.default, (node, text))
                    check.meta["val"] = None


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _finish(
    tracer: Any,
    outputs: list[Any],
    written: set[fx.Node],
    names: Sequence[str],
    tensors: dict[int, tuple[str, str]],
    in_spec: Any,
    out_spec: Any,
    guards: Any,
    weights: Set[int],
) -> CapturedGraph:
    from staticrt.frontend.hops import body_holder

    graph = tracer.graph
    graph.output(tuple(outputs))
    by_node = {lifted.node: lifted.value for lifted in tracer.lifted.values()}
    literals = {lifted.node for lifted in tracer.lifted.values() if lifted.literal}
    order = {"parameter": 0, "buffer": 1, "constant": 2}
    specs: dict[fx.Node, InputSpec] = {}
    for node in graph.find_nodes(op="placeholder"):
        if node in by_node:
            kind, name = tensors.get(id(by_node[node]), ("constant", node.name))
            specs[node] = InputSpec(kind, name, name, node in written, literal=node in literals)  # type: ignore[arg-type]
        else:
            index = int(str(node.target).removeprefix("arg_"))
            name = names[index] if index < len(names) else f"argument {index}"
            specs[node] = InputSpec("user", index, name, node in written, index in weights)
    lifted = sorted((n for n in specs if n in by_node), key=lambda n: order[specs[n].kind])
    anchor = next(node for node in graph.nodes if node not in by_node)
    for node in lifted:
        anchor.prepend(node)
    ordered = graph.find_nodes(op="placeholder")
    module = _LazyGraphModule(body_holder(tracer), graph)  # its Python code is made once somebody runs it
    return CapturedGraph(
        module=module,
        inputs=tuple(specs[node] for node in ordered),
        values=tuple(by_node[node] for node in ordered if node in by_node),
        in_spec=in_spec,
        out_spec=out_spec,
        guards=guards,
        random=tracer.random,
        decided=_decided(graph),
    )


def _decided(graph: fx.Graph) -> int:
    """How many decisions a graph checks: all before its first write, so that a failed check has changed nothing."""
    from staticrt.frontend.decisions import checks_of

    checks = set(checks_of(graph))
    wrote = False
    for node in graph.nodes if checks else ():
        if node in checks and wrote:
            raise CannotCapture("a branch that data decides, after a write that stays in place")
        wrote |= _writes(node)
    return len(checks)


def failure(error: BaseException) -> tuple[str, str]:
    """Why and where a capture failed, as short texts."""
    if isinstance(error, CannotCapture):
        return error.reason, error.where
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text}"[:300], exception_line(error)
