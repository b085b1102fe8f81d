"""Traces modules for `to_onnx` that torch's exporter cannot export directly.

That exporter fails on three kinds of modules. It makes a size whose example is 1 symbolic, and then cannot tell which
operands broadcast. To find types, it runs operators again without autograd or Python dispatch: attention then returns
another layout, and a view that fitted the first one raises. And it finds no overload of a clamp between an integer and
a float.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_ATTENTION = aten.scaled_dot_product_attention.default
_MOVES = frozenset({aten.transpose.int, aten.permute.default, aten.view.default})


def trace(module: torch.nn.Module, args: Any, kwargs: Any, dynamic_shapes: Any) -> Any:
    """An ExportedProgram whose sizes of 1 are constants, and whose attention has the same layout on every device."""
    program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    for part in program.graph_module.modules():
        if isinstance(part, fx.GraphModule):
            _settle_layouts(part.graph)
            _settle_bounds(part.graph)
            part.recompile()
    return program


def _settle_layouts(graph: fx.Graph) -> None:
    """Copy the result of attention to the contiguous layout of its sizes, and replace its views by reshapes."""
    for node in graph.find_nodes(op="call_function", target=_ATTENTION):
        with graph.inserting_after(node):
            copy = graph.call_function(
                aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        copy.meta.update(node.meta)
        node.replace_all_uses_with(copy, delete_user_cb=lambda user, copy=copy: user is not copy)  # type: ignore[misc]
        _reshape(copy)


def _settle_bounds(graph: fx.Graph) -> None:
    """Make both bounds of a clamp floats if one of them is, as the operator does."""
    for node in graph.find_nodes(op="call_function", target=aten.clamp.default):
        if any(type(bound) is float for bound in node.args[1:]):
            node.args = (
                node.args[0],
                *(float(bound) if type(bound) is int else bound for bound in node.args[1:]),
            )


def _reshape(node: fx.Node) -> None:
    """Replace views of a node by reshapes, unless an operator writes into the node."""
    pending, views = [node], []
    while pending:
        for user in pending.pop().users:
            if not isinstance(user.target, torch._ops.OpOverload) or user.target._schema.is_mutable:
                return
            if user.target in _MOVES:
                pending.append(user)
                if user.target is aten.view.default:
                    views.append(user)
    for view in views:
        view.target = aten.reshape.default
