"""In-place views of tensors that a function made, which Dynamo records without noting the new sizes.

`x.t_()` leaves what Dynamo knows of `x`, and `x.shape` read later is the old one: with every backend. Mended where the
graphs come to us; Dynamo for other backends stays as it is.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

# Dynamo's variables of tensors in graphs for us, and no others. A tensor has one more for each operator in place.
_variables: weakref.WeakSet[Any] = weakref.WeakSet()
# Where Dynamo's wrappers of a backend, `functools.partial` and a DDP optimiser's method hold what they call.
_INNER = ("__wrapped__", "compiler_fn", "func", "backend_compile_fn", "__self__")


@functools.cache
def note_new_sizes() -> None:
    """Patch Dynamo's variables of tensors, once in a process and for good: they note sizes in graphs for us."""
    from torch._dynamo.variables.tensor import TensorVariable

    initialize, call_method = TensorVariable.__init__, TensorVariable.call_method

    @functools.wraps(initialize)
    def remembering(self: Any, proxy: Any, *args: Any, **kwargs: Any) -> None:
        initialize(self, proxy, *args, **kwargs)
        if _is_for_us(getattr(proxy.tracer, "output_graph", None)):
            _variables.add(self)

    @functools.wraps(call_method)
    def noting(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        result = call_method(self, tx, name, args, kwargs)
        if self in _variables and _is_in_place_view(name):
            value = self.proxy.node.meta.get("example_value")
            for variable in list(_variables):
                if variable.proxy.node.meta.get("example_value") is value:
                    variable.synchronize_attributes(tx)
        return result

    TensorVariable.__init__ = remembering  # type: ignore[method-assign]
    TensorVariable.call_method = noting  # type: ignore[method-assign]


def _is_for_us(graph: Any) -> bool:
    """Whether what Dynamo makes goes to a backend of ours."""
    backend = getattr(graph, "compiler_fn", None)
    for _ in range(8):  # wrappers
        if str(getattr(backend, "__module__", "")).startswith("staticrt."):
            return True
        inner = next((name for name in _INNER if hasattr(backend, name)), None)
        if inner is None:
            return False
        backend = getattr(backend, inner)
    return False


@functools.cache
def _is_in_place_view(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
    return packet is not None and any(
        torch.Tag.inplace_view in getattr(packet, overload).tags for overload in packet.overloads()
    )
