"""torch's symbolic sizes, for traces that `staticrt/shapes/size_nodes.py` cannot serve, such as unbacked symbols.

Importing this imports sympy.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch._guards import ShapeGuard, SLoc
from torch.fx.experimental.recording import record_shapeenv_event
from torch.fx.experimental.sym_node import SymNode, wrap_node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from staticrt.frontend import budget
from staticrt.frontend.reasons import BROADCASTS, CannotTrace, model_line
from staticrt.frontend.tracing.fake_mode import copied, without_dynamo

if TYPE_CHECKING:
    from staticrt.frontend.tracing.decisions import Decisions


def _without_log(method: Any) -> Any:
    """A method of torch's that adds nothing to its structured log: the same code.

    Each entry has a traceback, for which torch imports Inductor even if the log is not read.
    """
    return copied(method, trace_structured=lambda *args, **options: None)


def _of_natural(shift: Any) -> Any:
    """An operator of symbolic numbers with a guard on the second one, as torch's has none: a negative shift raises."""

    @functools.wraps(shift)
    def guarded(number: Any, count: Any) -> Any:
        if isinstance(number.shape_env, DecidingShapeEnv):
            bool(wrap_node(count.ge(count.wrap_int(0))))
        return shift(number, count)

    return guarded


SymNode.lshift = _of_natural(SymNode.lshift)  # type: ignore[method-assign]
SymNode.rshift = _of_natural(SymNode.rshift)  # type: ignore[method-assign]


class DecidingShapeEnv(ShapeEnv):
    """A ShapeEnv that asks `decider` where torch's would raise because data decides."""

    decider: Decisions | None = None

    def __init__(self, **options: Any) -> None:
        without_dynamo(ShapeEnv.__init__)(self, **options)

        self._indexed: set[tuple[Any, int]] = set()

    def _init(self, **options: Any) -> None:
        without_dynamo(ShapeEnv._init)(self, **options)

    def _get_stack_summary(
        self, is_debug: bool = False, framework_loc: str | None = None
    ) -> tuple[SLoc, str]:
        # Torch's own walks every frame twice, and imports Dynamo to tell whose file it is.
        return SLoc(framework_loc or model_line(), None), ""

    def has_index(self, size: torch.SymInt, index: int) -> bool:
        """Whether the index is valid for this call's size; False where data decides the size."""
        hint = size.node.hint
        return isinstance(hint, int) and -hint <= index < hint

    def note_index(self, size: torch.SymInt, index: int) -> None:
        """Guard on an index being valid for a size, after `has_index` returned True: `size > index`."""
        expr, least = size.node.expr, index if index >= 0 else -1 - index
        if not expr.is_Integer and (expr, least) not in self._indexed:
            self._indexed.add((expr, least))
            bounds = self.var_to_range.get(expr)
            if bounds is None or not bounds.lower.is_finite or int(bounds.lower) <= least:
                self.guards.append(
                    ShapeGuard(
                        sympy.Gt(expr, least, evaluate=False), SLoc(model_line(), None), size_oblivious=False
                    )
                )

    def _log_guard(self, *args: Any, **options: Any) -> None:
        pass  # torch's method walks the stack for a log message

    def _log_create_unbacked_symbol(self, *args: Any, **options: Any) -> None:
        pass

    create_symbol = record_shapeenv_event()(_without_log(inspect.unwrap(ShapeEnv.create_symbol)))
    _set_replacement = _without_log(ShapeEnv._set_replacement)

    def _make_data_dependent_error(
        self, expr: Any, unhinted_expr: Any, **_options: Any
    ) -> GuardOnDataDependentSymNode:
        return GuardOnDataDependentSymNode(expr, f"data decides {unhinted_expr}")

    def guard_or_defer_runtime_assert(self, orig_expr: Any, msg: str, fx_node: Any = None) -> bool:  # type: ignore[override]
        """As torch's, but an assumption must be true for this call's data; otherwise the trace would not serve this call.

        Where a size that data decides is combined with another one, torch assumes that both are equal, without broadcasting.

        Raises:
            CannotTrace: two sizes differ.
        """
        holds = super().guard_or_defer_runtime_assert(orig_expr, msg, fx_node)
        if (
            holds
            and isinstance(orig_expr, sympy.Eq)
            and self.decider
            and self.decider.value_now(orig_expr) is False
        ):
            raise CannotTrace(BROADCASTS)
        return holds

    def _evaluate_expr(self, orig_expr: Any, *args: Any, **kwargs: Any) -> Any:
        budget.check()
        try:
            return super()._evaluate_expr(orig_expr, *args, **kwargs)
        except GuardOnDataDependentSymNode:
            if self._is_positive_sum(orig_expr):
                return sympy.sympify(isinstance(orig_expr, sympy.Ne))
            answer = None if self.decider is None else self.decider.decide(orig_expr)
            if answer is None:
                raise
            return answer

    def _is_positive_sum(self, expr: Any) -> bool:
        """Whether `expr` asks if a sum of sizes is 0 while one of them is positive in this call; adds the guard that it is."""
        if not (isinstance(expr, (sympy.Eq, sympy.Ne)) and expr.rhs == 0 and isinstance(expr.lhs, sympy.Add)):
            return False
        sizes = expr.lhs.args
        if not all(size.is_Symbol and self.var_to_range[size].lower >= 0 for size in sizes):
            return False
        known = (size for size in sizes if not self.is_unbacked_symint(size))
        return any(super(DecidingShapeEnv, self)._evaluate_expr(sympy.Gt(size, 0)) for size in known)
