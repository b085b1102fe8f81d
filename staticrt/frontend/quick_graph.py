"""Graphs that are built node by node, many in each trace."""

from __future__ import annotations

from typing import Any

from torch import fx


class QuickGraph(fx.Graph):
    """An `fx.Graph` whose calls take nodes in place of symbolic numbers, so that torch need not search the arguments."""

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
            node.args = args
        if kwargs:
            node.kwargs = kwargs
        return node
