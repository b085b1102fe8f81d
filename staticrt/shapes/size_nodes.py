"""Symbolic sizes without sympy: what stands behind the `torch.SymInt`s of a trace.

torch's own (`ShapeEnv`) knows everything about numbers, takes a third of a second to import and a millisecond to
answer. A trace begins with these instead. They cover whole numbers in sums, products, floor divisions, remainders,
minima, maxima and comparisons; at anything else `SizeEnv.give_up` ends the attempt, and the trace begins anew with
a `ShapeEnv`. So what is missing here costs time and nothing else.

Source of the protocol: torch/csrc/utils/python_symnode.h, torch/fx/experimental/sym_node.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch

from staticrt import tuning
from staticrt.shapes import size_expr
from staticrt.shapes.size_conditions import Condition, Either
from staticrt.shapes.size_expr import Atom, Expr
from staticrt.shapes.size_facts import facts, implied


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

    def symbol(self, name: str, hint: int, positive: bool) -> torch.SymInt:
        """A number of the caller's, `hint` in this call.

        Args:
            positive: it is at least 1 in every call of this trace.
        """
        made: Any = torch.SymInt  # it is not typed
        symbolic: torch.SymInt = made(SizeNode(self, size_expr.symbol(name, positive), hint))
        return symbolic

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
            expr = expr.substitute(values)
        return expr

    def is_unbacked_symint(self, expr: Any) -> bool:
        return False

    def create_unbacked_symint(self) -> NoReturn:
        self.give_up("a number that data decides")

    def has_index(self, size: torch.SymInt, index: int) -> bool:
        """Whether this call's size has the element."""
        return bool(-size.node.hint <= index < size.node.hint)

    def note_index(self, size: torch.SymInt, index: int) -> None:
        """Guard on a size having an element, which `has_index` says it has."""
        bool(size > (index if index >= 0 else -1 - index))

    def assume(self, condition: Condition | Either) -> bool:
        """The truth of a condition in this call, which every later call of the trace shares."""
        known = condition.known()
        if known is not None:
            return known
        for held in (condition if condition.hint else condition.opposite()).held():
            text = held.text
            if text in self.guards or held.known():
                continue
            if not self.is_open:
                self.give_up(f"a new condition: {text}")
            self.guards[text] = self._where()
            if isinstance(held, Condition):
                for atom, value in facts(held, self.replace):
                    others = {a: v.substitute({atom: value}) for a, v in self.known.items()}
                    self.known = {**others, atom: value}
                    self._seen = {}
        return condition.hint


Text = str  # nodes have a method of that name


class _Node:
    """What both kinds of nodes answer alike."""

    __slots__ = ("env",)
    env: SizeEnv
    constant = None

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __getattr__(self, name: Text) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.env.give_up(f"{type(self).__name__}.{name}")

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        return True

    def clone(self) -> Any:
        return self

    def str(self) -> Text:
        raise NotImplementedError

    def __repr__(self) -> Text:
        return self.str()

    def _graph_repr(self) -> Text:
        return self.str()

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(self.env, size_expr.constant(number), number)

    def wrap_bool(self, value: bool) -> TruthNode:
        zero = size_expr.constant(0)
        return TruthNode(self.env, Condition("==" if value else "!=", zero, zero, value))

    def wrap_float(self, value: float) -> Any:
        self.env.give_up("a fractional number beside a size")


class SizeNode(_Node):
    """A whole number: what a `torch.SymInt` of a trace holds.

    Args:
        hint: the number in this call.
    """

    __slots__ = ("_expr", "_fixed", "_known", "hint")
    pytype = int

    def __init__(self, env: SizeEnv, expr: Expr, hint: int) -> None:
        self.env = env
        self.hint = hint
        self._expr = expr
        self._fixed = False  # the number is a constant of the trace
        self._known: Any = None  # what the environment knew when `_expr` was brought up to date

    @property
    def expr(self) -> Expr:
        known = self.env.known
        if known is not self._known:
            self._known = known
            self._expr = self.env.replace(self._expr)
        return self._expr

    def is_int(self) -> bool:
        return True

    def str(self) -> Text:
        return Text(self.hint) if self._fixed else self.expr.text

    def maybe_as_int(self) -> int | None:
        expr = self.expr
        return int(expr) if expr.is_Integer else None

    def int_(self) -> int:
        """The number, which from here on is a constant of the trace."""
        self.env.assume(Condition("==", self.expr, size_expr.constant(self.hint), True))
        self._fixed = True
        return self.hint

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def require_hint(self, *_args: Any) -> int:
        return self.hint

    def expect_size(self, file: Any, line: Any) -> bool:
        return self.env.assume(self._compare(">=", operator.ge, self.wrap_int(0)).condition)

    def _made(self, function: Callable[[Expr, Expr], Expr], hint: int, other: SizeNode) -> SizeNode:
        return SizeNode(self.env, function(self.expr, self._number(other).expr), hint)

    def _number(self, other: Any) -> SizeNode:
        if not isinstance(other, SizeNode):
            self.env.give_up("a size beside a number of another kind")
        return other

    def add(self, other: Any) -> SizeNode:
        return self._made(size_expr.add, self.hint + self._number(other).hint, other)

    def sub(self, other: Any) -> SizeNode:
        return self._made(size_expr.subtract, self.hint - self._number(other).hint, other)

    def mul(self, other: Any) -> SizeNode:
        return self._made(size_expr.multiply, self.hint * self._number(other).hint, other)

    def sym_sum(self, terms: Any) -> SizeNode:
        result = self.wrap_int(0)
        for term in terms:
            result = result.add(term)
        return result

    def neg(self) -> SizeNode:
        return SizeNode(self.env, size_expr.negate(self.expr), -self.hint)

    def pos(self) -> SizeNode:
        return self

    def _check_divisor(self, other: SizeNode) -> None:
        if not self.env.assume(other._compare("!=", operator.ne, self.wrap_int(0)).condition):
            raise ZeroDivisionError("integer division or modulo by zero")

    def int_floordiv(self, other: Any) -> SizeNode:
        self._check_divisor(self._number(other))
        return self._made(size_expr.floordiv, self.hint // other.hint, other)

    floordiv = int_floordiv

    def mod(self, other: Any) -> SizeNode:
        self._check_divisor(self._number(other))
        return self._made(size_expr.modulo, self.hint % other.hint, other)

    def sym_max(self, other: Any) -> SizeNode:
        return self._made(size_expr.maximum, max(self.hint, self._number(other).hint), other)

    def sym_min(self, other: Any) -> SizeNode:
        return self._made(size_expr.minimum, min(self.hint, self._number(other).hint), other)

    def pow_by_natural(self, other: Any) -> SizeNode:
        exponent = self._number(other).maybe_as_int()
        if exponent is None or not 0 <= exponent <= 8:
            self.env.give_up("a power of a size")
        result = self.wrap_int(1)
        for _ in range(exponent):
            result = result.mul(self)
        return result

    def _compare(self, name: Text, function: Callable[[int, int], bool], other: Any) -> TruthNode:
        hint = function(self.hint, self._number(other).hint)
        return TruthNode(self.env, Condition(name, self.expr, other.expr, hint))

    def eq(self, other: Any) -> TruthNode:
        return self._compare("==", operator.eq, other)

    def ne(self, other: Any) -> TruthNode:
        return self._compare("!=", operator.ne, other)

    def lt(self, other: Any) -> TruthNode:
        return self._compare("<", operator.lt, other)

    def le(self, other: Any) -> TruthNode:
        return self._compare("<=", operator.le, other)

    def gt(self, other: Any) -> TruthNode:
        return self._compare(">", operator.gt, other)

    def ge(self, other: Any) -> TruthNode:
        return self._compare(">=", operator.ge, other)


class TruthNode(_Node):
    """Comparisons of sizes: what a `torch.SymBool` of a trace holds."""

    __slots__ = ("condition",)
    pytype = bool

    def __init__(self, env: SizeEnv, condition: Condition | Either) -> None:
        self.env = env
        self.condition = condition

    @property
    def hint(self) -> bool:
        return self.condition.hint

    def is_bool(self) -> bool:
        return True

    def str(self) -> Text:
        return self.condition.text

    def bool_(self) -> bool:
        return self.env.assume(self.condition)

    def guard_bool(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def expect_true(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def guard_or_false(self, file: Any, line: Any) -> bool:
        return self.condition.known() is True

    def guard_or_true(self, file: Any, line: Any) -> bool:
        return self.condition.known() is not False

    def guard_size_oblivious(self, file: Any, line: Any) -> bool:
        return self.bool_()

    def statically_known_true(self, file: Any, line: Any) -> bool:
        return self.condition.known() is True

    def sym_not(self) -> TruthNode:
        return TruthNode(self.env, self.condition.opposite())

    def _joined(self, other: Any, all_of: bool) -> TruthNode:
        if not isinstance(other, TruthNode):
            self.env.give_up("a comparison of sizes beside another truth value")
        return TruthNode(self.env, Either((self.condition, other.condition), all_of))

    def sym_and(self, other: Any) -> TruthNode:
        return self._joined(other, True)

    def sym_or(self, other: Any) -> TruthNode:
        return self._joined(other, False)


def env_of(value: Any) -> SizeEnv | None:
    """The environment of a symbolic number, if it is one of these."""
    node = getattr(value, "node", None)
    return node.env if isinstance(node, _Node) else None


def statically_known_true(condition: Any) -> bool:
    """Whether a condition on sizes holds for all of them, as far as is seen; adds no guard."""
    if isinstance(condition, bool):
        return condition
    if env_of(condition) is not None:
        return condition.node.condition.known() is True
    from torch.fx.experimental import symbolic_shapes

    return bool(symbolic_shapes.statically_known_true(condition))


def check(condition: Any) -> None:
    """`torch._check`: guard on a condition.

    Raises:
        RuntimeError: it does not hold.
    """
    if not isinstance(condition, bool) and env_of(condition) is None:
        torch._check(condition)  # type: ignore[no-untyped-call]
    elif not condition:
        raise RuntimeError(f"sizes do not fit: {condition} does not hold")
