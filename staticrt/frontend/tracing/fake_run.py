"""Run the traced function on fake arguments, and refuse what no graph would replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch._dispatch.python import enable_python_dispatcher

from staticrt.frontend.arguments import unread
from staticrt.frontend.arguments.fakes import FakeInputs
from staticrt.frontend.arguments.structure import (
    Builder,
    Flattener,
    ResultSpec,
    Structure,
    contents,
    same_contents,
)
from staticrt.frontend.guards.impure_calls import ImpureCall, Watcher
from staticrt.frontend.guards.model_builtins import NeedsNumber, given_attributes
from staticrt.frontend.guards.process_state import settings
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import (
    SETS_DATA,
    ArgumentRead,
    CannotTrace,
    FirstCalls,
    ModelChanges,
    NeedsConstants,
)
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.frontend.tracing.tracer import Tracer
from staticrt.native import _C
from staticrt.shapes.size_env import NeedsShapeEnv

# What a graph's output may be.
_IN_GRAPHS = (
    *(torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, complex, str, bytes, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)


def run_on_fakes(
    request: TraceRequest,
    fakes: FakeInputs,
    tracer: Tracer,
    watcher: Watcher,
    outputs: list[Any],
    is_new: Callable[[Any], bool],
) -> ResultSpec:
    """Run the function on fakes, and leave its state as it was.

    Args:
        outputs: gets the flat outputs; no other reference to anything of the run is left.
        is_new: whether the run made an object.

    Raises:
        CannotTrace: no graph replays what the function did.
        Exception: whatever the function raised.
    """
    snapshot = request.snapshot
    # With autograd on, composite operators are taken apart above the tracer: in Python, on symbolic sizes.
    level = enable_python_dispatcher() if request.autograd else torch._C._AutoDispatchBelowAutograd()
    builder = Builder(fakes.leaves)
    args, kwargs = builder.build(request.spec)
    before = [contents(container) for container in builder.containers]
    # Where the run ends early, Dynamo reads these, and does not guard their methods.
    for kind in request.spec.kinds():
        snapshot.add_class(kind)
    snapshot.begin_run()
    try:
        with tracer.fake_mode, level, tracer:
            found = settings()
            watcher.start(is_new, [*filter(torch.is_tensor, fakes.leaves), *builder.containers])
            try:
                result = request.function(*args, **kwargs)
            except ImpureCall:
                result = None
            except NeedsNumber:
                watcher.needs_constants = True
            except unread.Read:
                result = None
            finally:
                watcher.stop()
            left = [name for name, value in settings().items() if value != found[name]]
        if left:
            _refuse_settings(left)
        _check_memory(snapshot)
        snapshot.compared_tensors.update(tracer.inputs.lifted)
        changed = snapshot.changes()
        changes_misread = bool(changed) and snapshot.changes_misread()
    except Exception:
        _check_memory(snapshot)
        raise
    finally:
        snapshot.restore()
    if unread.was_read(request.spec):
        raise ArgumentRead
    if request.sizing.is_ours and tracer.shape_env.gave_up:  # and the model caught it
        raise NeedsShapeEnv(tracer.shape_env.gave_up)
    if watcher.impure:
        what, where = watcher.impure[0]
        if watcher.often_once:
            raise FirstCalls(f"the model {what}", where)
        even_in_parts = watcher.even_in_parts or snapshot.may_draw or snapshot.reaches_coroutines()
        raise CannotTrace(f"the model {what}", where, even_in_parts)
    if watcher.needs_constants:
        raise NeedsConstants
    if watcher.asks_for_class and tracer.unbacked.found:
        raise CannotTrace(
            "the model may check the type of a number that data decides", watcher.asks_for_class
        )
    if tracer.fake_mode.raised and snapshot.catches:  # fake tensors raise errors of other texts
        raise CannotTrace(f"the model catches an error of {tracer.fake_mode.raised}", "", even_in_parts=True)
    if changed:
        raise ModelChanges(changed, even_in_parts=changes_misread or watcher.even_in_parts)
    if (path := snapshot.weak_read()) is not None:
        raise CannotTrace(f"the model reads {path}, a weak reference", "")
    if not request.autograd and tracer.fake_mode.unseen_reads:
        raise CannotTrace(*tracer.fake_mode.unseen_reads[0])
    _check_attributes(request)
    _check_constants(request, tracer)
    flat, out_spec = _flatten_result(result, builder.containers, before, snapshot, is_new)
    if any(given_attributes(fake) for fake in (*fakes.leaves, *flat)):
        raise CannotTrace("the model sets an attribute of a tensor that its caller sees", "")
    if any(isinstance(leaf, unread.StandIn) for leaf in out_spec.objects.values()):
        unread.compare(request.spec)
        raise ArgumentRead
    if request.derive is not None:
        with tracer.fake_mode, enable_python_dispatcher(), tracer:
            flat += request.derive(tracer, fakes.leaves, flat)
    else:
        for out in flat:
            _check_output(out)
    outputs += flat
    return out_spec


def _refuse_settings(names: list[str]) -> NoReturn:
    """Raise: settings differ after the run. Another thread may have changed those that all threads share.

    Calls with another value of a flag have another key, so it may be traced again; a trace with the other settings would
    serve calls in which the model changes them.
    """
    shared = {name for name, of_thread in _C.process_flags() if not of_thread}
    what = f"{names[0]} than it found"
    if shared.issuperset(names):
        raise ModelChanges([what], "leaves another ", even_in_parts=True)
    raise CannotTrace(f"the model leaves another {what}", "", even_in_parts=True)


def _check_memory(snapshot: Snapshot) -> None:
    """Check that no tensor of the model has the memory of a fake one.

    Raises:
        CannotTrace: one does.
    """
    if snapshot.sets_data():
        raise CannotTrace(SETS_DATA, "", even_in_parts=True)


def _check_attributes(request: TraceRequest) -> None:
    """Fake tensors lack the attributes that the caller gave to tensors."""
    for index, leaf in enumerate(request.leaves):
        if isinstance(leaf, torch.Tensor):
            read = request.snapshot.read_names & (_C.attributes_of(leaf) or {}).keys()
            if read:
                name = request.names[index] if index < len(request.names) else f"argument {index}"
                raise CannotTrace(f"the model may read {name}.{min(read)}, an attribute of a tensor", "")


def _check_constants(request: TraceRequest, tracer: Tracer) -> None:
    """Check that no gradient is a constant of the graph: code names `.grad` to read it, or a C function reads it unseen.

    Raises:
        CannotTrace: one is.
    """
    tensors = [lifted.value for lifted in tracer.inputs.lifted.values()]
    constants = {id(tensor) for tensor in tensors if id(tensor) not in request.tensors}
    if request.is_step or not constants or "grad" in request.snapshot.facts:
        return
    if isinstance(request.function, torch.nn.Module):
        tensors += request.function.parameters()
    if any(tensor.is_leaf and id(tensor.grad) in constants for tensor in tensors):
        raise CannotTrace("the model reads a gradient by another name than `.grad`", "", even_in_parts=True)


def _flatten_result(
    result: Any, containers: list[Any], before: list[Any], snapshot: Snapshot, is_new: Callable[[Any], bool]
) -> tuple[list[Any], ResultSpec]:
    """Flat outputs: the result's leaves, then the new contents of each argument container the model changed."""
    known = {id(container): number for number, container in enumerate(containers)}
    flattener = Flattener(known, snapshot.knows, is_new)
    structure = flattener.flatten(result)
    writes: list[tuple[int, Structure]] = []
    for number, (container, old) in enumerate(zip(containers, before, strict=True)):
        new = contents(container)
        if not same_contents(old, new):
            writes.append((number, flattener.flatten_contents(container)))
    objects = {i: leaf for i, leaf in enumerate(flattener.leaves) if not isinstance(leaf, _IN_GRAPHS)}
    for value in objects.values():
        snapshot.returns(value)
    leaves = [None if i in objects else leaf for i, leaf in enumerate(flattener.leaves)]
    return leaves, ResultSpec(structure, writes, objects)


def _check_output(out: Any) -> None:
    if (
        isinstance(out, torch.Tensor)
        and out.requires_grad
        and torch.is_grad_enabled()
        and out.grad_fn is not None
    ):
        raise CannotTrace("an output needs gradients")
