"""Conditions on sizes under which an exported model is valid.

A module that asks `if x.shape[0] > 4` is exported as the branch that its example arguments took, and ONNX has no
assertions. The conditions are therefore stored in the model's metadata, in terms of its dimension names, and
`staticrt.from_onnx` checks calls against them.
"""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

KEY = "staticrt.size_conditions"
_LIMIT = 10_000  # characters of one condition; staticrt writes no longer ones

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max}


class SizeCondition:
    """A relation between sizes, such as `height % 32 == 0`.

    Args:
        text: Python's syntax: names, integers, `+ - * // %`, min, max, comparisons, and, or, not.

    Raises:
        ValueError: the text is not such a relation.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LIMIT:
            raise ValueError("too long")
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError("no expression") from error
        self.text = text
        self.names = frozenset(node.id for node in ast.walk(self._tree) if isinstance(node, ast.Name))
        self.names -= _FUNCTIONS.keys()
        if not isinstance(self._tree, (ast.Compare, ast.BoolOp)):
            raise ValueError("no comparison")
        try:
            _check(self._tree)
        except RecursionError as error:
            raise ValueError("too deep") from error

    def holds(self, sizes: Mapping[str, Any]) -> bool:
        """Whether the condition holds for sizes by name, which may be symbolic. False if it divides by 0."""
        try:
            return bool(_value(self._tree, sizes))
        except ZeroDivisionError:
            return False


def _check(node: ast.AST) -> None:
    """Raise ValueError for anything that `_value` does not compute."""
    if isinstance(node, ast.Constant):
        if type(node.value) is not int:
            raise ValueError("a constant that is not an integer")
        return
    if isinstance(node, ast.Name):
        return
    if isinstance(node, ast.BinOp):
        parts: list[ast.AST] = [node.left, node.right]
        known = type(node.op) in _OPERATORS
    elif isinstance(node, ast.UnaryOp):
        parts, known = [node.operand], type(node.op) in _OPERATORS
    elif isinstance(node, ast.BoolOp):
        parts, known = list(node.values), True
    elif isinstance(node, ast.Compare):
        parts, known = [node.left, *node.comparators], type(node.ops[0]) in _OPERATORS and len(node.ops) == 1
    elif isinstance(node, ast.Call):
        parts = list(node.args)
        known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        known = known and not node.keywords and len(parts) > 1
    else:
        parts, known = [], False
    if not known:
        raise ValueError(f"{type(node).__name__} is not arithmetic on sizes")
    for part in parts:
        _check(part)


def _value(node: ast.AST, sizes: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_value(node.operand, sizes))
    if isinstance(node, ast.BoolOp):
        found = (bool(_value(part, sizes)) for part in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    if isinstance(node, ast.Compare):
        return _OPERATORS[type(node.ops[0])](_value(node.left, sizes), _value(node.comparators[0], sizes))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return _FUNCTIONS[node.func.id](*[_value(part, sizes) for part in node.args])


def evaluate(text: str) -> int | None:
    """The value of an arithmetic expression of integers; None if the text is not one."""
    try:
        tree = ast.parse(text, mode="eval").body
        _check(tree)
        return int(_value(tree, {}))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def write(conditions: Sequence[str]) -> str:
    """Conditions as the value of a model's metadata."""
    return json.dumps(list(conditions))


def read(model: onnx.ModelProto, names: Iterable[str]) -> tuple[SizeCondition, ...]:
    """The conditions of a model on the given names. Other metadata is ignored."""
    known = frozenset(names)
    found: list[SizeCondition] = []
    for entry in model.metadata_props:
        if entry.key != KEY:
            continue
        try:
            texts = json.loads(entry.value)
        except (ValueError, RecursionError):
            continue
        for text in texts if isinstance(texts, list) else []:
            try:
                condition = SizeCondition(text) if isinstance(text, str) else None
            except ValueError:
                continue
            if condition is not None and condition.names <= known:
                found.append(condition)
    return tuple(found)
