"""What a trace knows and assumes about its symbolic sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch

from staticrt import tuning
from staticrt.shapes import size_expr
from staticrt.shapes.size_conditions import Condition, Either, FloatCondition
from staticrt.shapes.size_division import substitute
from staticrt.shapes.size_expr import Atom, Expr
from staticrt.shapes.size_facts import facts, implied, upper_bound


class NeedsShapeEnv(BaseException):
    """Only torch's own symbolic sizes can answer.

    It is not an `Exception`, so that a model that catches exceptions does not catch it.
    """


class SizeEnv:
    """The symbols of one trace, and its assumptions about them.

    Args:
        where: the model line that asks, for messages.
    """

    # What a ShapeEnv says about unbacked symbols, of which there are none here.
    pending_fresh_unbacked_symbols: tuple[Any, ...] = ()
    deferred_runtime_asserts: Mapping[Any, Any] = MappingProxyType({})
    decider: Any = None

    def __init__(self, where: Callable[[], str] = lambda: "") -> None:
        self.guards: dict[str, str] = {}  # condition as Python source -> model line
        self.known: dict[Atom, Expr] = {}
        self.gave_up = ""
        self.is_open = True
        self._seen: dict[Atom, Expr | None] = {}  # atoms, and what `known` says of them
        self._where = where
        self._held: list[Condition] = []
        self._bounds: dict[Expr, int] = {}  # upper bounds of expressions, from `_held` and `known`

    def close(self) -> None:
        """Allow no more conditions: the guards have been written."""
        self.is_open = False

    def give_up(self, what: Any) -> NoReturn:
        """End this attempt.

        Raises:
            NeedsShapeEnv: always.
        """
        self.gave_up = self.gave_up or str(what)
        raise NeedsShapeEnv(self.gave_up)

    def replace(self, expr: Any) -> Any:
        """An expression with its atoms replaced by what is known of them."""
        if not self.known or not isinstance(expr, Expr):
            return expr
        for _ in range(
            tuning.MAX_DIVISION_STEPS
        ):  # a division of what was put in may be one that is known, too
            for atom in expr.atoms:
                if atom not in self._seen:
                    self._seen[atom] = self.known.get(atom) or implied(atom, self.known)
            values = {atom: value for atom in expr.atoms if (value := self._seen[atom]) is not None}
            if not values:
                break
            expr = substitute(expr, values)
        return expr

    def is_unbacked_symint(self, expr: Any) -> bool:
        return False

    def create_unbacked_symint(self) -> NoReturn:
        self.give_up("a number that data decides")

    # `guard_or_false` calls these on the environment of a node.

    def _maybe_evaluate_static(self, condition: Condition | Either | FloatCondition) -> bool | None:
        return condition.known()

    def evaluate_sym_node(self, node: Any, size_oblivious: bool, fallback_value: bool) -> bool:
        return bool(node.bool_())

    def has_index(self, size: torch.SymInt, index: int) -> bool:
        """Whether the index is valid for this call's size."""
        return bool(-size.node.hint <= index < size.node.hint)

    def note_index(self, size: torch.SymInt, index: int) -> None:
        """Guard on an index being valid for a size, after `has_index` returned True."""
        bool(size > (index if index >= 0 else -1 - index))

    def assume(self, condition: Condition | Either | FloatCondition) -> bool:
        """The truth of a condition in this call; becomes a guard unless it is always the same."""
        known = condition.known()
        if known is not None:
            return known
        for held in (condition if condition.hint else condition.opposite()).held():
            text = held.text
            if text in self.guards or held.known() or self._follows(held):
                continue
            if not self.is_open:
                self.give_up(f"a new condition: {text}")
            self.guards[text] = self._where()
            if isinstance(held, Condition):
                self._learn(held)
        return condition.hint

    def _learn(self, held: Condition) -> None:
        self._held.append(held)
        before = self.known
        for atom, value in facts(held, self.replace):
            others = {a: substitute(v, {atom: value}) for a, v in self.known.items()}
            self.known = {**others, atom: value}
            self._seen = {}
        if self.known is not before:  # expressions from now on are of other atoms
            self._bounds = {}
        for one in self._held if self.known is not before else (held,):
            replaced = Condition(one.name, self.replace(one.left), self.replace(one.right), one.hint)
            if (bound := upper_bound(replaced)) is not None:
                self._bounds[bound[0]] = min(bound[1], self._bounds.get(*bound))

    def is_at_least(self, expr: Expr, bound: int) -> bool:
        """Whether the trace's assumptions are known to imply that an expression is at least `bound`."""
        return size_expr.is_at_least(expr, bound) or self._follows(
            Condition(">=", expr, size_expr.constant(bound), True)
        )

    def _follows(self, asked: Condition | Either | FloatCondition) -> bool:
        """Whether an assumption already made implies an inequality."""
        if not isinstance(asked, Condition) or not self._bounds:
            return False
        bound = upper_bound(asked)
        return bound is not None and bound[0] in self._bounds and self._bounds[bound[0]] <= bound[1]
