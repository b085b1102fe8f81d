"""Unbacked symbols: numbers known only at run time, such as `nonzero`'s length or the result of `item()`.

A fake operator that creates one leaves it pending in the shape environment. Each symbol must be bound to a node that
computes it (the operator's result or one of its sizes) before the graph can use an expression of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt.frontend.reasons import CannotTrace

if TYPE_CHECKING:
    from staticrt.frontend.tracing.symbols import SymbolNodes

aten = torch.ops.aten


class UnbackedSymbols:
    """The unbacked symbols of one trace and the nodes that compute them.

    Args:
        graph: holds the nodes.
        symbols: the nodes of all symbols of the graph.
        sizes: the shape environment that makes unbacked symbols.

    Attributes:
        found: symbol, its node, and the dimension whose size it is (None: the node's value itself).
    """

    def __init__(self, graph: fx.Graph, symbols: SymbolNodes, sizes: Any) -> None:
        self.found: list[tuple[Any, fx.Node, int | None]] = []
        self._graph = graph
        self._symbols = symbols
        self._sizes = sizes

    def pending(self) -> int:
        """The number of symbols without a node; symbols after these belong to the next operator."""
        return len(self._sizes.pending_fresh_unbacked_symbols)

    def is_fresh(self, expr: Any) -> bool:
        """Whether an expression is an unbacked symbol that no node computes yet."""
        return bool(expr.is_Symbol and self._sizes.is_unbacked_symint(expr) and not self._symbols.has(expr))

    def new(self, size: bool = False) -> torch.SymInt:
        """A new symbol, which the caller binds to a node; with `size`, it is not negative."""
        number: torch.SymInt = self._sizes.create_unbacked_symint()
        self._sizes.pending_fresh_unbacked_symbols.remove(number.node.expr)
        if size:
            torch._check(number >= 0)  # type: ignore[no-untyped-call]
        return number

    def bind_fresh(self, node: fx.Node, out: Any, known: int) -> None:
        """Bind the symbols that `node` created: those pending after the first `known`."""
        fresh = self._sizes.pending_fresh_unbacked_symbols
        if len(fresh) > known:
            self.bind(node, out, fresh[known:])
            del fresh[known:]

    def bind(self, node: fx.Node, out: Any, symbols: list[Any]) -> None:
        """Bind each of `symbols` to its place in the result of `node`.

        Raises:
            CannotTrace: it is nowhere.
        """
        missing = set(symbols)
        owners = list(node.users) if isinstance(out, (tuple, list)) else [node]
        for owner in owners:
            value = owner.meta["val"]
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                free = value.node.expr.free_symbols & missing
                if value.node.expr in missing or (free and isinstance(value, torch.SymBool)):
                    if value.node.expr not in missing and self._sizes.decider is None:
                        raise CannotTrace("a boolean that data decides")
                    self.bind_to(value.node.expr, owner)
                missing -= free
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr in missing:
                        self.bind_to(size.node.expr, owner, dim)
                        missing.discard(size.node.expr)
        if missing:
            raise CannotTrace(f"{node.target} makes numbers that no output shows")

    def bind_to(self, symbol: Any, owner: fx.Node, dim: int | None = None) -> None:
        """Bind `symbol` to the value of `owner`, or to the size of its dimension `dim`."""
        self.found.append((symbol, owner, dim))
        self.define(symbol, owner, dim)

    def define(self, symbol: Any, owner: fx.Node, dim: int | None) -> None:
        """Write `symbol` as the value of `owner`, or as the size of its dimension `dim`."""
        node = owner
        if dim is not None:
            node = self._graph.call_function(aten.sym_size.int, (owner, dim))
            node.meta["val"] = owner.meta["val"].shape[dim]
        self._symbols.define(symbol, node)
