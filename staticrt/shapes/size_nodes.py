"""Symbolic sizes without sympy: the nodes of a trace's `torch.SymInt`s.

torch's own (`ShapeEnv`) is general, but it takes a third of a second to import and a millisecond per question. A trace
begins with these instead. They cover whole numbers in sums, products, floor divisions, remainders, minima, maxima and
comparisons, and fractional numbers computed from them. For anything else, `SizeEnv.give_up` ends the attempt, and the
trace begins again with a `ShapeEnv`: what is missing here only costs time.

Source of the protocol: torch/csrc/utils/python_symnode.h, torch/fx/experimental/sym_node.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from staticrt import tuning
from staticrt.shapes import size_division, size_expr
from staticrt.shapes.size_conditions import Condition, Either, FloatCondition
from staticrt.shapes.size_env import SizeEnv
from staticrt.shapes.size_expr import Atom, Expr, Symbol

Text = str  # nodes have a method of that name


class Node:
    """Methods that all kinds of nodes share."""

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

    is_bool = is_float = is_nested_int = is_constant = is_int

    def is_symbolic(self) -> bool:
        return True

    def has_hint(self) -> bool:
        """False: torch would compare the hints itself, instead of calling the comparisons here."""
        return False

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

    def wrap_float(self, value: float) -> FloatNode:
        if not math.isfinite(value):
            self.env.give_up("a size beside infinity or not a number")
        return FloatNode(self.env, repr(value), value)


def _comparison(sign: Text, function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], TruthNode]:
    def compare(self: _NumberNode, other: Any) -> TruthNode:
        return self._compare(sign, function, other)

    return compare


class _NumberNode(Node):
    """Methods that whole and fractional numbers share."""

    __slots__ = ()

    def _compare(self, sign: Text, function: Callable[[Any, Any], bool], other: Any) -> TruthNode:
        raise NotImplementedError

    def pos(self) -> Any:
        return self

    eq, ne = _comparison("==", operator.eq), _comparison("!=", operator.ne)
    lt, le = _comparison("<", operator.lt), _comparison("<=", operator.le)
    gt, ge = _comparison(">", operator.gt), _comparison(">=", operator.ge)


def _sum(a: Expr, b: Expr) -> Expr:
    return size_division.without_remainders(size_expr.add(a, b))


def _difference(a: Expr, b: Expr) -> Expr:
    return size_division.without_remainders(size_expr.subtract(a, b))


class SizeNode(_NumberNode):
    """A whole number: what a `torch.SymInt` of a trace holds.

    Args:
        hint: the number in this call.
    """

    __slots__ = ("_expr", "_fixed", "_known", "hint")
    pytype = int

    def __init__(self, env: SizeEnv, expr: Expr, hint: int) -> None:
        if len(expr.text) > tuning.MAX_SIZE_TEXT:
            env.give_up("a long expression of sizes")
        self.env = env
        self.hint = hint
        self._expr = expr
        self._fixed = False  # the number is a constant of the trace
        self._known: Any = None  # `env.known` when `_expr` was last updated

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

    def int_(self, *_place: Any) -> int:
        """The number, which from here on is a constant of the trace."""
        self.env.assume(Condition("==", self.expr, size_expr.constant(self.hint), True))
        self._fixed = True
        return self.hint

    guard_int = int_

    def require_hint(self, *_args: Any) -> int:
        return self.hint

    def expect_size(self, *_place: Any) -> bool:
        return self.env.assume(self.ge(self.wrap_int(0)).condition)

    def _made(self, function: Callable[[Expr, Expr], Expr], hint: int, other: SizeNode) -> SizeNode:
        return SizeNode(self.env, function(self.expr, self._number(other).expr), hint)

    def _number(self, other: Any) -> SizeNode:
        if not isinstance(other, SizeNode):
            self.env.give_up("a size beside a number of another kind")
        return other

    def add(self, other: Any) -> SizeNode:
        return self._made(_sum, self.hint + self._number(other).hint, other)

    def sub(self, other: Any) -> SizeNode:
        return self._made(_difference, self.hint - self._number(other).hint, other)

    def mul(self, other: Any) -> SizeNode:
        return self._made(size_expr.multiply, self.hint * self._number(other).hint, other)

    def sym_sum(self, terms: Any) -> SizeNode:
        result = self.wrap_int(0)
        for term in terms:
            result = result.add(term)
        return result

    def neg(self) -> SizeNode:
        return SizeNode(self.env, size_expr.negate(self.expr), -self.hint)

    def _check_divisor(self, other: SizeNode) -> None:
        if not self.env.assume(other.ne(self.wrap_int(0)).condition):
            raise ZeroDivisionError("integer division or modulo by zero")

    def int_floordiv(self, other: Any) -> SizeNode:
        self._check_divisor(self._number(other))
        return self._made(size_division.floordiv, self.hint // other.hint, other)

    floordiv = int_floordiv

    def mod(self, other: Any) -> SizeNode:
        self._check_divisor(self._number(other))
        return self._made(size_division.modulo, self.hint % other.hint, other)

    def int_truediv(self, other: Any) -> FloatNode:
        self._check_divisor(self._number(other))
        text = f"({size_expr.operand(self.expr)} / {size_expr.operand(other.expr)})"
        return FloatNode(self.env, text, self.hint / other.hint, operator.truediv, (self, other))

    def sym_float(self) -> FloatNode:
        return FloatNode(self.env, f"float({self.expr.text})", float(self.hint), torch.sym_float, (self,))

    def sym_max(self, other: Any) -> SizeNode:
        return self._made(size_division.maximum, max(self.hint, self._number(other).hint), other)

    def sym_min(self, other: Any) -> SizeNode:
        return self._made(size_division.minimum, min(self.hint, self._number(other).hint), other)

    def pow_by_natural(self, other: Any) -> SizeNode:
        exponent = self._number(other).maybe_as_int()
        if exponent is None or not 0 <= exponent <= 8:
            self.env.give_up("a power of a size")
        result = self.wrap_int(1)
        for _ in range(exponent):
            result = result.mul(self)
        return result

    def _compare(self, sign: Text, function: Callable[[Any, Any], bool], other: Any) -> TruthNode:
        hint = function(self.hint, self._number(other).hint)
        return TruthNode(self.env, Condition(sign, self.expr, other.expr, hint))


class Rounded(Atom):
    """The whole number that a fractional one is rounded to.

    Args:
        function: of Python's `math`.
    """

    __slots__ = ("function", "node")

    def __init__(self, function: Callable[[float], int], node: FloatNode) -> None:
        super().__init__(f"math.{function.__name__}({node.text})", None)
        self.function = function
        self.node = node

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return self.node.free_symbols


_MOST_EXPONENT = 4.0


class FloatNode(_NumberNode):
    """A fractional number computed from sizes: what a `torch.SymFloat` of a trace holds.

    Only its value in this call is known: each question about it becomes a guard.

    Args:
        text: Python source over the names of symbols.
        hint: the number in this call.
        function: computes it from the numbers of `args`; None: it is a constant.
    """

    __slots__ = ("args", "function", "hint", "text")
    pytype = float

    def __init__(
        self,
        env: SizeEnv,
        text: Text,
        hint: float,
        function: Callable[..., Any] | None = None,
        args: tuple[SizeNode | FloatNode, ...] = (),
    ) -> None:
        self.env = env
        self.text = text
        self.hint = hint
        self.function = function
        self.args = args

    def is_float(self) -> bool:
        return True

    def str(self) -> Text:
        return self.text

    @property
    def expr(self) -> Text:
        """What identifies this number."""
        return self.text

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        parts = (a.free_symbols if isinstance(a, FloatNode) else a.expr.free_symbols for a in self.args)
        return frozenset().union(*parts)

    def guard_float(self, file: Any, line: Any) -> float:
        """The number, which from here on is a constant of the trace."""
        if self.function is not None:
            self.env.assume(self.eq(self.wrap_float(self.hint)).condition)
        return self.hint

    def require_hint(self, *_args: Any) -> float:
        return self.hint

    def _made(self, sign: Text, function: Callable[[Any, Any], Any], other: Any) -> FloatNode:
        if not isinstance(other, FloatNode):
            self.env.give_up("a fractional number beside a number of another kind")
        hint = function(self.hint, other.hint)
        if not isinstance(hint, float) or not math.isfinite(hint):
            self.env.give_up("infinity or not a number, computed from sizes")
        if self.function is None and other.function is None:
            return self.wrap_float(hint)
        return FloatNode(self.env, f"({self.text} {sign} {other.text})", hint, function, (self, other))

    def add(self, other: Any) -> FloatNode:
        return self._made("+", operator.add, other)

    def sub(self, other: Any) -> FloatNode:
        return self._made("-", operator.sub, other)

    def mul(self, other: Any) -> FloatNode:
        return self._made("*", operator.mul, other)

    def _check_divisor(self, other: FloatNode, error: Text) -> None:
        if not self.env.assume(other.ne(self.wrap_float(0.0)).condition):
            raise ZeroDivisionError(error)

    def float_truediv(self, other: Any) -> FloatNode:
        self._check_divisor(other, "float division by zero")
        return self._made("/", operator.truediv, other)

    def mod(self, other: Any) -> FloatNode:
        self._check_divisor(other, "float modulo")
        return self._made("%", operator.mod, other)

    def float_pow(self, other: Any) -> FloatNode:
        if other.function is not None or abs(other.hint) > _MOST_EXPONENT:  # no size overflows then
            self.env.give_up("a power of a size whose exponent is large or not constant")
        if not self.env.assume(self.gt(self.wrap_float(0.0)).condition):
            self.env.give_up("a power of a number that is not positive")
        return self._made("**", operator.pow, other)

    def neg(self) -> FloatNode:
        return FloatNode(self.env, f"(-{self.text})", -self.hint, operator.neg, (self,))

    def sym_float(self) -> FloatNode:
        return self

    def _rounded(self, function: Callable[[float], int]) -> SizeNode:
        hint = function(self.hint)
        if self.function is None:
            return self.wrap_int(hint)
        return SizeNode(self.env, size_expr.of_atom(Rounded(function, self)), hint)

    def floor(self) -> SizeNode:
        return self._rounded(math.floor)

    def ceil(self) -> SizeNode:
        return self._rounded(math.ceil)

    def trunc(self) -> SizeNode:
        return self._rounded(math.trunc)

    sym_int = trunc

    def _compare(self, sign: Text, function: Callable[[Any, Any], bool], other: Any) -> TruthNode:
        if not isinstance(other, FloatNode):
            self.env.give_up("a fractional number beside a number of another kind")
        hint = function(self.hint, other.hint)
        if self.function is None and other.function is None:
            return self.wrap_bool(hint)
        return TruthNode(self.env, FloatCondition(f"{self.text} {sign} {other.text}", hint))


class TruthNode(Node):
    """Comparisons of sizes: what a `torch.SymBool` of a trace holds."""

    __slots__ = ("condition",)
    pytype = bool

    def __init__(self, env: SizeEnv, condition: Condition | Either | FloatCondition) -> None:
        self.env = env
        self.condition = condition

    @property
    def hint(self) -> bool:
        return self.condition.hint

    # torch's own functions look up a node's expression in its environment.

    @property
    def expr(self) -> Condition | Either | FloatCondition:
        return self.condition

    @property
    def shape_env(self) -> SizeEnv:
        return self.env

    def is_bool(self) -> bool:
        return True

    def str(self) -> Text:
        return self.condition.text

    def bool_(self, *_place: Any) -> bool:
        return self.env.assume(self.condition)

    guard_bool = expect_true = guard_size_oblivious = bool_

    def statically_known_true(self, *_place: Any) -> bool:
        return self.condition.known() is True

    guard_or_false = statically_known_true

    def guard_or_true(self, *_place: Any) -> bool:
        return self.condition.known() is not False

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


def new_size(env: SizeEnv, name: str, hint: int, positive: bool) -> torch.SymInt:
    """A symbolic size of the caller's arguments, `hint` in this call.

    Args:
        positive: it is at least 1 in every call of this trace.
    """
    made: Any = torch.SymInt  # it is not typed
    symbolic: torch.SymInt = made(SizeNode(env, size_expr.symbol(name, positive), hint))
    return symbolic
