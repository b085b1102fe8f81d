"""What a trace knows of its symbolic sizes, and what it assumed about them."""

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
    """Something that only torch's own symbolic sizes can answer.

    No `Exception`: a model that catches those must not take this for an error of its own.
    """


class SizeEnv:
    """The symbols of one trace, and what it assumed about them.

    Args:
        where: the model line that asks, for messages.
    """

    # A ShapeEnv's answers about numbers that data decides; here there are none.
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
        self._bounds: dict[Expr, int] = {}  # the most that expressions are, by what `_held` and `known` say

    def close(self) -> None:
        """No more conditions: what was assumed has been written down."""
        self.is_open = False

    def give_up(self, what: Any) -> NoReturn:
        """End this attempt.

        Raises:
            NeedsShapeEnv: always.
        """
        self.gave_up = self.gave_up or str(what)
        raise NeedsShapeEnv(self.gave_up)

    def replace(self, expr: Any) -> Any:
        """An expression with what is known of its atoms."""
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

    # What `guard_or_false` asks of a node's environment.

    def _maybe_evaluate_static(self, condition: Condition | Either | FloatCondition) -> bool | None:
        return condition.known()

    def evaluate_sym_node(self, node: Any, size_oblivious: bool, fallback_value: bool) -> bool:
        return bool(node.bool_())

    def has_index(self, size: torch.SymInt, index: int) -> bool:
        """Whether this call's size has the element."""
        return bool(-size.node.hint <= index < size.node.hint)

    def note_index(self, size: torch.SymInt, index: int) -> None:
        """Guard on a size having an element, which `has_index` says it has."""
        bool(size > (index if index >= 0 else -1 - index))

    def assume(self, condition: Condition | Either | FloatCondition) -> bool:
        """The truth of a condition in this call, which every later call of the trace shares."""
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
        """Whether an expression is at least `bound` wherever the trace's assumptions hold, as far as is seen."""
        return size_expr.is_at_least(expr, bound) or self._follows(
            Condition(">=", expr, size_expr.constant(bound), True)
        )

    def _follows(self, asked: Condition | Either | FloatCondition) -> bool:
        """Whether an inequality says no more than one that is assumed already."""
        if not isinstance(asked, Condition) or not self._bounds:
            return False
        bound = upper_bound(asked)
        return bound is not None and bound[0] in self._bounds and self._bounds[bound[0]] <= bound[1]
