"""In-place views, which Dynamo records without noting the new sizes.

After `x.t_()`, Dynamo still returns the old `x.shape`, with every backend, and the change of an argument by `aten.t_(x)`
does not reach the caller. This is corrected only in graphs for our backend.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.dynamo.ours import is_for_us

# Dynamo's variables of tensors in graphs for us, and no others. A tensor has one more for each operator in place.
_variables: weakref.WeakSet[Any] = weakref.WeakSet()


@functools.cache
def note_new_sizes() -> None:
    """Patch Dynamo's variables of tensors, once per process: they note sizes in graphs for us."""
    from torch._dynamo.variables.tensor import TensorVariable
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    initialize, call_method = TensorVariable.__init__, TensorVariable.call_method
    call_function = TorchInGraphFunctionVariable.call_function

    @functools.wraps(initialize)
    def remembering(self: Any, proxy: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, proxy, *args, **kwargs)
        if is_for_us(getattr(proxy.tracer, "output_graph", None)):
            _variables.add(self)

    @functools.wraps(call_method)
    def noting(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        return _noted(tx, self, name, lambda: call_method(self, tx, name, args, kwargs))

    @functools.wraps(call_function)
    def noting_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        name = str(getattr(self.value, "__name__", "")).partition(".")[0]  # the overload's name follows
        tensor = args[0] if args else kwargs.get("self")
        return _noted(tx, tensor, name, lambda: call_function(self, tx, args, kwargs))

    TensorVariable.__init__ = remembering  # type: ignore[method-assign]
    TensorVariable.call_method = noting  # type: ignore[method-assign]
    TorchInGraphFunctionVariable.call_function = noting_function  # type: ignore[method-assign]


def _noted(tx: Any, tensor: Any, name: str, call: Callable[[], Any]) -> Any:
    """What Dynamo's call of an operator gives, with the new sizes noted; of an argument, a graph break instead."""
    if not _is_in_place_view(name) or tensor is None or (tensor := tensor.realize()) not in _variables:
        return call()
    value = tensor.proxy.node.meta.get("example_value")
    given = tx.output.graph.find_nodes(op="placeholder")
    if any(node.meta.get("example_value") is value for node in given):
        from torch._dynamo.variables.misc import DelayGraphBreakVariable

        what = f"{name} changes the sizes of an argument in place"
        return DelayGraphBreakVariable(msg=what).call_function(tx, [], {})
    result = call()
    for variable in list(_variables):
        if variable.proxy.node.meta.get("example_value") is value:
            variable.synchronize_attributes(tx)
    return result


@functools.cache
def _is_in_place_view(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return False  # `__reduce_ex__` and the like are attributes of any object
    overloads: Any = packet
    return any(torch.Tag.inplace_view in getattr(packet, each).tags for each in overloads.overloads())
