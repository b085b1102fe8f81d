"""Operators that turn a tensor into a view of its former self: `x.unsqueeze_(0)`, `x.t_()`."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.trace_tensor import set_data
from staticrt.shapes.fake_rules import fake_by_rule

aten = torch.ops.aten


def record(tracer: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record the view that `func` makes of the tensor `args[0]`, which becomes it.

    Raises:
        CannotTrace: the tensor is the caller's or the model's, or gets other memory; or autograd records the trace, and the
            tensor is or has a view: the backward of a later write makes views anew, without this one.
    """
    tensor = args[0]
    name = func._schema.name.split("::")[1]
    view_of = getattr(getattr(aten, name[:-1], None), func._overloadname, None)
    known = [node for node in tracer.graph.nodes if _holds(node, tensor)]
    is_viewed = tracer.autograd and (
        tensor._is_view() or any(_views(node, tensor) for node in tracer.graph.nodes)
    )
    is_given = any(node.op == "placeholder" for node in known)
    if is_viewed or is_given or view_of is None or not _makes_a_view(view_of):
        raise CannotTrace(f"{name} changes the shape of a tensor in place", even_in_parts=True)
    before = aten.alias.default(tensor)
    for node in known:
        node.meta["val"] = _replaced(node.meta["val"], tensor, before)
    # Torch's own rule of squeeze keeps a symbol of size 1 and guards nothing.
    view = fake_by_rule(tracer.fake_mode, view_of, (tensor, *args[1:]), kwargs)
    if view is None:
        view = view_of(tensor, *args[1:], **kwargs)
    # Not by `func`: `as_strided_` asks for the bytes of the memory, which that of symbolic sizes does not have.
    set_data(tensor, view)
    node = tracer.record(view_of, (tensor, *args[1:]), kwargs, view, tracer.unbacked.pending())
    node.meta["val"] = tensor
    tracer.tensors.track(tensor, node)
    return tensor


def _holds(node: fx.Node, tensor: torch.Tensor) -> bool:
    value = node.meta.get("val")
    return value is tensor or (isinstance(value, (tuple, list)) and any(item is tensor for item in value))


def _views(node: fx.Node, tensor: torch.Tensor) -> bool:
    value = node.meta.get("val")
    return any(
        isinstance(item, torch.Tensor) and item._is_view() and item._base is tensor
        for item in (value if isinstance(value, (tuple, list)) else (value,))
    )


def _replaced(value: Any, tensor: torch.Tensor, other: torch.Tensor) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)([other if item is tensor else item for item in value])
    return other


def _makes_a_view(func: Any) -> bool:
    return any(result.alias_info is not None for result in func._schema.returns)


@contextlib.contextmanager
def resizing(outs: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within, torch's rule of an operator does not warn that it resizes one of `outs`: eager warns, in its own words."""
    with warnings.catch_warnings() if outs else contextlib.nullcontext():
        if outs:
            warnings.filterwarnings("ignore", "An output with one or more elements was resized")
        yield
