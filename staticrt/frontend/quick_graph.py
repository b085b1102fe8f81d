"""Graphs that are built node by node, many in each trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import fx
from torch._ops import OpOverload
from torch.fx._lazy_graph_module import _LazyGraphModule

# Without `Node.__setattr__`, which enters the node anew into the graph's table of operators.
_set_args: Any = fx.Node.args.fset  # type: ignore[attr-defined]
_set_kwargs: Any = fx.Node.kwargs.fset  # type: ignore[attr-defined]


class QuickGraph(fx.Graph):
    """An `fx.Graph` whose calls take nodes in place of symbolic numbers, so that torch need not search the arguments."""

    _texts: ClassVar[dict[object, str]] = {}  # of operators, which names of nodes begin with

    def _target_to_str(self, target: Any) -> str:
        found = self._texts.get(target)
        if found is None:
            found = super()._target_to_str(target)
            if isinstance(target, OpOverload):  # few, and never gone
                self._texts[target] = found
        return found

    def create_node(
        self,
        op: str,
        target: Any,
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> fx.Node:
        """As the base class."""
        node = super().create_node(op, target, None, None, name, type_expr)
        if args:
            _set_args(node, args)
        if kwargs:
            _set_kwargs(node, kwargs)
        return node

    def node_copy(self, node: fx.Node, arg_transform: Callable[[fx.Node], Any] = lambda x: x) -> fx.Node:
        """As the base class."""
        args: Any = fx.map_arg(node.args, arg_transform)
        kwargs: Any = fx.map_arg(node.kwargs, arg_transform)
        made = self.create_node(node.op, node.target, args, kwargs, node.name, node.type)
        made.meta.update(node.meta)
        return made


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with copied nodes and the same attributes; its Python code is generated when it first runs."""
    graph = QuickGraph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return _LazyGraphModule(gm, graph)
