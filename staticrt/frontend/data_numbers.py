"""Numbers that only running tells: `nonzero`'s length, what `item()` gives, results of control flow.

A fake operator that makes one leaves it pending in the shape environment, as an unbacked symbol. Each must have a node
that computes it, the operator's own result or a size of it, before an expression that holds it can be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt.frontend.reasons import CannotCapture

if TYPE_CHECKING:
    from staticrt.frontend.trace import Tracer

aten = torch.ops.aten


class DataNumbers:
    """The nodes of a recording's data-decided numbers.

    Attributes:
        found: symbol, the node that has it, and the dimension whose size it is (None: the node's own value).
    """

    def __init__(self, tracer: Tracer) -> None:
        self.found: list[tuple[Any, fx.Node, int | None]] = []
        self._tracer = tracer
        self._sizes = tracer.shape_env

    def pending(self) -> int:
        """How many wait for a node: what comes beyond them is the next operator's."""
        return len(self._sizes.pending_fresh_unbacked_symbols)

    def is_fresh(self, expr: Any) -> bool:
        """Whether an expression is a symbol that data decides and no node computes yet."""
        return bool(
            expr.is_Symbol and self._sizes.is_unbacked_symint(expr) and not self._tracer.symbols.has(expr)
        )

    def new(self, size: bool = False) -> torch.SymInt:
        """A number that the caller binds; `size`: it is not negative."""
        number: torch.SymInt = self._sizes.create_unbacked_symint()
        self._sizes.pending_fresh_unbacked_symbols.remove(number.node.expr)
        if size:
            torch._check(number >= 0)  # type: ignore[no-untyped-call]
        return number

    def bind_fresh(self, node: fx.Node, out: Any, known: int) -> None:
        """Bind what `node` made: the numbers pending beyond the first `known`."""
        fresh = self._sizes.pending_fresh_unbacked_symbols
        if len(fresh) > known:
            self.bind(node, out, fresh[known:])
            del fresh[known:]

    def bind(self, node: fx.Node, out: Any, symbols: list[Any]) -> None:
        """Say where in the result of `node` each of `symbols` is.

        Raises:
            CannotCapture: it is nowhere.
        """
        missing = set(symbols)
        owners = list(node.users) if isinstance(out, (tuple, list)) else [node]
        for owner in owners:
            value = owner.meta["val"]
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                free = value.node.expr.free_symbols & missing
                if value.node.expr in missing or (free and isinstance(value, torch.SymBool)):
                    if value.node.expr not in missing and self._sizes.decider is None:
                        raise CannotCapture("a boolean that data decides")
                    self._bind_one(value.node.expr, owner, None)
                missing -= free
            elif isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    if isinstance(size, torch.SymInt) and size.node.expr in missing:
                        self._bind_one(size.node.expr, owner, dim)
                        missing.discard(size.node.expr)
        if missing:
            raise CannotCapture(f"{node.target} makes numbers that no output shows")

    def _bind_one(self, symbol: Any, owner: fx.Node, dim: int | None) -> None:
        self.found.append((symbol, owner, dim))
        self.define(symbol, owner, dim)

    def define(self, symbol: Any, owner: fx.Node, dim: int | None) -> None:
        """Write `symbol` as the value of `owner`, or as the size of its dimension `dim`."""
        node = owner
        if dim is not None:
            node = self._tracer.graph.call_function(aten.sym_size.int, (owner, dim))
            node.meta["val"] = owner.meta["val"].shape[dim]
        self._tracer.symbols.define(symbol, node)
