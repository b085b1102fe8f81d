"""Symbolic sizes: from sympy expressions to graph nodes and to guard source."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt.frontend.reasons import CannotTrace
from staticrt.shapes import size_expr
from staticrt.shapes.size_conditions import Condition
from staticrt.shapes.size_expr import Atom, Expr, Operation, Quotient
from staticrt.shapes.size_nodes import FloatNode, Rounded, SizeNode, TruthNode

_OPERATIONS = {
    size_expr.FLOORDIV: operator.floordiv,
    size_expr.MOD: operator.mod,
    size_expr.MAX: torch.sym_max,
    size_expr.MIN: torch.sym_min,
}


_COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _fold(function: Callable[[Any, Any], Any]) -> Callable[[Any, list[Any]], Any]:
    def build(emit: Callable[..., Any], args: list[Any]) -> Any:
        result = args[0]
        for arg in args[1:]:
            result = emit(function, result, arg)
        return result

    return build


def _plain(function: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    return lambda emit, args: emit(function, *args)


def _ceil_or_trunc(function: Callable[..., Any]) -> Callable[[Any, list[Any]], Any]:
    return lambda emit, args: emit(function, args[0])


_BUILDERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "Add": _fold(operator.add),
    "Mul": _fold(operator.mul),
    "FloorDiv": _plain(operator.floordiv),
    "CleanDiv": _plain(operator.floordiv),
    "Mod": _plain(operator.mod),
    "PythonMod": _plain(operator.mod),
    "IntTrueDiv": _plain(operator.truediv),
    "FloatTrueDiv": _plain(operator.truediv),
    "PowByNatural": _plain(operator.pow),
    "FloatPow": _plain(operator.pow),
    "Pow": _plain(operator.pow),
    "Max": _fold(torch.sym_max),
    "Min": _fold(torch.sym_min),
    "ToFloat": _plain(torch.sym_float),
    "TruncToInt": _plain(torch.sym_int),
    "Abs": _plain(operator.abs),
    "Equality": _plain(operator.eq),
    "Eq": _plain(operator.eq),
    "Unequality": _plain(operator.ne),
    "Ne": _plain(operator.ne),
    "StrictLessThan": _plain(operator.lt),
    "LessThan": _plain(operator.le),
    "StrictGreaterThan": _plain(operator.gt),
    "GreaterThan": _plain(operator.ge),
    "And": _fold(operator.and_),
    "Or": _fold(operator.or_),
    "Not": _plain(torch.sym_not),
    "Where": _plain(torch.sym_ite),
    "Identity": lambda emit, args: args[0],
    "ModularIndexing": lambda emit, args: emit(
        operator.mod, emit(operator.floordiv, args[0], args[1]), args[2]
    ),
    "OpaqueUnaryFn_sqrt": _plain(torch._sym_sqrt),  # type: ignore[attr-defined]
}


def _lazy_builders() -> None:
    import math

    _BUILDERS.setdefault("CeilToInt", _plain(math.ceil))
    _BUILDERS.setdefault("FloorToInt", _plain(math.floor))
    _BUILDERS.setdefault("RoundToInt", _plain(round))


_lazy_builders()


class SymbolNodes:
    """Graph nodes for symbolic numbers of one graph, each expression built once.

    Args:
        graph: where nodes are appended.
        bind: gives the node of a free symbol (`aten.sym_size` of the input that has it), or None.
    """

    def __init__(self, graph: fx.Graph, bind: Callable[[Any], fx.Node | None]) -> None:
        self._graph = graph
        self._bind = bind
        self._nodes: dict[Any, Any] = {}
        self._values: dict[fx.Node, Any] = {}

    def define(self, symbol: Any, node: fx.Node) -> None:
        """State that `node` computes `symbol`; its meta["val"] is set already."""
        self._nodes[symbol] = node

    def has(self, symbol: Any) -> bool:
        """Whether a node computes `symbol`."""
        return symbol in self._nodes

    def lookup(self, value: Any) -> Any:
        """The node of a symbolic number, or the Python number where it is known.

        Args:
            value: torch.SymInt, SymFloat or SymBool.
        """
        sym_node = value.node
        if isinstance(sym_node, SizeNode):
            return self._of_size(sym_node.expr)
        if isinstance(sym_node, FloatNode):
            return self._of_float(sym_node)
        if isinstance(sym_node, TruthNode):
            return self._of_truth(sym_node)
        expr = sym_node.expr
        if expr.is_number or (getattr(expr, "is_Boolean", False) and not expr.free_symbols):
            return sym_node.pytype(expr)
        return self._build(expr, sym_node.shape_env)

    def from_expr(self, expr: Any, shape_env: Any) -> Any:
        """As `lookup`, for a bare sympy expression."""
        return self._build(expr, shape_env)

    def _build(self, expr: Any, shape_env: Any) -> Any:
        found = self._nodes.get(expr)
        if found is not None:
            return found
        if expr.is_Integer:
            return int(expr)
        if expr.is_Float:
            return float(expr)
        if (
            expr.is_Boolean
            and not expr.free_symbols
            and expr.func.__name__ in ("BooleanTrue", "BooleanFalse")
        ):
            return bool(expr)
        if expr.is_Symbol:
            node = self._bind(expr)
            if node is None:
                replaced = shape_env.replace(expr)
                node = self._build(replaced, shape_env) if replaced != expr else self._from_truth(expr)
            self._nodes[expr] = node
            return node
        result = self._compose(expr, shape_env)
        self._nodes[expr] = result
        return result

    def _of_size(self, expr: Expr) -> Any:
        """The node of a size expression."""
        if expr.is_Integer:
            return int(expr)
        found = self._nodes.get(expr)
        if found is None:
            parts = [self._of_term(*term) for term in expr.terms]
            found = self._nodes[expr] = functools.reduce(functools.partial(self._emit, operator.add), parts)
        return found

    def _of_truth(self, truth: TruthNode) -> Any:
        """The node of a comparison."""
        condition = truth.condition
        if not isinstance(condition, Condition):
            truth.env.give_up("a comparison of sizes as a value")
        found = self._nodes.get(condition.text)
        if found is None:
            sides = self._of_size(condition.left), self._of_size(condition.right)
            found = self._nodes[condition.text] = self._emit(_COMPARISONS[condition.name], *sides)
        return found

    def _of_float(self, number: FloatNode) -> Any:
        """The node of a fractional number."""
        if number.function is None:
            return number.hint
        found = self._nodes.get(number.text)
        if found is None:
            args = [
                self._of_float(a) if isinstance(a, FloatNode) else self._of_size(a.expr) for a in number.args
            ]
            found = self._nodes[number.text] = self._emit(number.function, *args)
        return found

    def _of_term(self, monomial: Sequence[Atom], coefficient: int) -> Any:
        factors = []
        for atom in monomial:
            divisor = int(atom.args[1]) if isinstance(atom, Quotient) and atom.args[1].is_Integer else 0
            if isinstance(atom, Quotient) and divisor and coefficient % divisor == 0:
                coefficient //= divisor
                factors.append(self._of_size(atom.args[0]))  # what was divided, which has a node mostly
            else:
                factors.append(self._of_atom(atom))
        if coefficient != 1 or not factors:
            factors.append(coefficient)
        return functools.reduce(functools.partial(self._emit, operator.mul), factors)

    def _of_atom(self, atom: Atom) -> Any:
        found = self._nodes.get(atom)
        if found is None:
            if isinstance(atom, Operation):
                args = [self._of_size(arg) for arg in atom.args]
                found = self._emit(_OPERATIONS[atom.name], *args)
            elif isinstance(atom, Rounded):
                found = self._emit(atom.function, self._of_float(atom.node))
            else:
                found = self._bind(atom)
            self._nodes[atom] = found
        return found

    def _from_truth(self, symbol: Any) -> fx.Node:
        """The number of a truth value that data decides: torch writes that as `symbol == 1`."""
        import sympy

        truth = self._nodes.get(sympy.Eq(symbol, 1))
        if not isinstance(truth, fx.Node):
            raise CannotTrace(f"the size {symbol} comes from no input")
        node: fx.Node = self._emit(torch.sym_ite, truth, 1, 0)
        return node

    def _compose(self, expr: Any, shape_env: Any) -> Any:
        name = expr.func.__name__
        if expr.is_Rational and not expr.is_Integer:
            return float(expr)
        if name == "Pow" and expr.args[1] == -1:  # sympy writes a true division this way
            return self._emit(operator.truediv, 1, self._build(expr.args[0], shape_env))
        builder = _BUILDERS.get(name)
        if builder is None:
            raise CannotTrace(f"size expression {expr} uses {name}, which has no graph form")
        return builder(self._emit, [self._build(arg, shape_env) for arg in expr.args])

    def _emit(self, function: Callable[..., Any], *args: Any) -> Any:
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        node = self._graph.call_function(function, args)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        node.meta["val"] = function(*values)
        return node


def guard_source(expr: Any) -> str:
    """Python source of a guard's sympy expression, over the symbols' names."""
    from torch.utils._sympy.printers import PythonPrinter

    return str(PythonPrinter().doprint(expr))
