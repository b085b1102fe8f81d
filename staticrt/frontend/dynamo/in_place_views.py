"""In-place views of tensors that a function made, which Dynamo records without noting the new sizes.

`x.t_()` leaves what Dynamo knows of `x`, and `x.shape` read later is the old one: with every backend.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def note_new_sizes() -> None:
    """Let Dynamo note them, for good."""
    from torch._dynamo.exc import unimplemented
    from torch._dynamo.variables.tensor import TensorVariable

    call_method = TensorVariable.call_method

    @functools.wraps(call_method)
    def noting(self: Any, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not _is_in_place_view(name):
            return call_method(self, tx, name, args, kwargs)
        value = self.proxy.node.meta.get("example_value")
        others = [node for node in self.proxy.node.graph.nodes if node.meta.get("example_value") is value]
        if len(others) > 1:
            unimplemented(
                gb_type="In-place view of a tensor that has another name",
                context=f"call_method {self} {name}",
                explanation=f"{name} changes the sizes of a tensor that an operator in place returned before.",
                hints=[],
            )
        call_method(self, tx, name, args, kwargs)
        self.synchronize_attributes(tx)
        return self

    TensorVariable.call_method = noting  # type: ignore[method-assign]


@functools.cache
def _is_in_place_view(name: str) -> bool:
    packet = getattr(torch.ops.aten, name, None) if name.endswith("_") else None
    return packet is not None and any(
        torch.Tag.inplace_view in getattr(packet, overload).tags for overload in packet.overloads()
    )
