"""Lowers size conditions to a Program whose inputs are the symbols and whose outputs are one bool per condition.

The runtime's scalar kernels have Python's semantics, so a condition has the same value in C++ and in Python.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from typing import Any

from staticrt.errors import ArchiveError
from staticrt.frontend.graph import GuardSet
from staticrt.native import _C

_BINARY: dict[type, str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.FloorDiv: "floordiv",
    ast.Div: "truediv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.BitXor: "xor",
}
_COMPARE: dict[type, str] = {
    ast.Eq: "eq",
    ast.NotEq: "ne",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
}
_UNARY: dict[type, str] = {ast.USub: "neg", ast.UAdd: "pos", ast.Not: "not", ast.Invert: "invert"}
_CALLS: dict[str, str] = {
    **{name: name for name in ("min", "max", "abs", "int", "float", "bool", "round")},
    **{f"math.{name}": name for name in ("floor", "ceil", "trunc", "sqrt", "exp", "log", "log2")},
    **{
        f"math.{name}": name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")
    },
    "torch._sym_sqrt": "sqrt",
    "torch.sym_float": "float",
    "torch.sym_int": "int",
    "torch.sym_max": "max",
    "torch.sym_min": "min",
    "torch.sym_not": "not",
    "torch.sym_ite": "ite",
}


def lower_guards(guards: GuardSet) -> _C.Program | None:
    """The program of all conditions, or None if there are none.

    Raises:
        ArchiveError: a condition uses an operation that a Program cannot express.
    """
    if not guards.guards:
        return None
    builder = _C.ProgramBuilder()
    lowering = _Lowering(builder, [symbol.name for symbol in guards.symbols])
    outputs = []
    for guard in guards.guards:
        try:
            outputs.append(lowering.truth(ast.parse(guard.expression, mode="eval").body))
        except (KeyError, SyntaxError) as error:
            raise ArchiveError(
                f"an archive cannot hold the size condition {guard.expression}: {error}",
                at=guard.reason or None,
            ) from None
    builder.outputs(outputs)
    return builder.build()


class _Lowering:
    def __init__(self, builder: _C.ProgramBuilder, names: Sequence[str]) -> None:
        self.builder = builder
        self.values: dict[str, Any] = {name: builder.input((name, None, None)) for name in names}
        self.count = 0

    def emit(self, op: str, *args: Any) -> Any:
        self.count += 1
        name = f"{op}_{self.count}"
        facts = {
            "name": name,
            "where": "",
            "module": "",
            "unpacks_list": False,
            "has_effects": False,
            "written_args": [],
            "aliases": [],
            "bodies": [],
        }
        (value,) = self.builder.node(f"sym::{op}", list(args), [(name, None, None)], facts)
        return value

    def truth(self, node: ast.expr) -> Any:
        return self.emit("bool", self.value(node))

    def value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self.values[node.id]
        if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
            return node.value
        if isinstance(node, ast.BinOp):
            return self.emit(_BINARY[type(node.op)], self.value(node.left), self.value(node.right))
        if isinstance(node, ast.UnaryOp):
            return self.emit(_UNARY[type(node.op)], self.value(node.operand))
        if isinstance(node, ast.BoolOp):
            op = "and" if isinstance(node.op, ast.And) else "or"
            result = self.truth(node.values[0])
            for part in node.values[1:]:
                result = self.emit(op, result, self.truth(part))
            return result
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.IfExp):
            return self.emit("ite", self.truth(node.test), self.value(node.body), self.value(node.orelse))
        if isinstance(node, ast.Call) and not node.keywords:
            return self.emit(_CALLS[ast.unparse(node.func)], *map(self.value, node.args))
        if isinstance(node, ast.Attribute):
            constants = {"math.inf": math.inf, "math.nan": math.nan, "math.pi": math.pi, "math.e": math.e}
            return constants[ast.unparse(node)]
        raise KeyError(ast.unparse(node))

    def _compare(self, node: ast.Compare) -> Any:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        result = None
        for op, left, right in zip(node.ops, values[:-1], values[1:], strict=True):
            step = self.emit(_COMPARE[type(op)], left, right)
            result = step if result is None else self.emit("and", result, step)
        return result
