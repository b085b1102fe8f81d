"""Determines which sizes of an exported model are free.

torch.onnx leaves every requested dimension free, and drops the assertions that torch.export made of the module's
demands. This file applies them: a size that must be one number becomes that number, and the caller gets all other
demands as conditions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from staticrt.frontend.tracing.symbols import guard_source

_NAME = re.compile(r"[A-Za-z_]\w*")
_UNBOUNDED = 2**31  # torch writes infinity, or a number near 2**63, for a size without an upper bound


def settle_sizes(program: Any) -> list[str]:
    """Write the sizes that a module fixed into its ONNX form.

    Args:
        program: `torch.onnx.ONNXProgram` with its exported program; its model is changed.

    Returns:
        Conditions under which the model holds, over the names of its inputs' dimensions, in a fixed order. Conditions
        that a size is not 1 are left out: broadcasting adds one everywhere.
    """
    exported = program.exported_program
    symbols = _input_symbols(exported)
    if not symbols:
        return []
    fixed = {
        str(symbol): int(bounds.lower)
        for symbol, bounds in exported.range_constraints.items()
        if bounds.lower == bounds.upper
    }
    names = _names(program.model, exported)
    _write(program.model, {names.get(symbol, symbol): size for symbol, size in fixed.items()})
    conditions = [
        *_bounds(exported, {symbol for symbol in symbols if symbol not in fixed}),
        *_relations(symbols, fixed),
    ]
    return sorted({_NAME.sub(lambda m: names.get(m.group(), m.group()), text) for text in conditions})


def _user_inputs(exported: Any) -> Iterator[Any]:
    wanted = set(exported.graph_signature.user_inputs)
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in wanted and hasattr(node.meta.get("val"), "shape"):
            yield node.meta["val"]


def _input_symbols(exported: Any) -> dict[str, Any]:
    """The sympy symbol of every free size of the inputs by name, and their shape environment."""
    found: dict[str, Any] = {}
    for value in _user_inputs(exported):
        for size in value.shape:
            if not isinstance(size, int):
                for symbol in size.node.expr.free_symbols:
                    found[str(symbol)] = (symbol, size.node.shape_env)
    return found


def _names(model: Any, exported: Any) -> dict[str, str]:
    """Maps symbols to the dimension's name in the model, which the caller may have chosen."""
    found: dict[str, str] = {}
    for value, there in zip(_user_inputs(exported), model.graph.inputs, strict=False):
        for size, dim in zip(value.shape, there.shape or (), strict=False):
            name = getattr(dim, "value", None)
            if not isinstance(size, int) and isinstance(name, str) and name.isidentifier():
                found[str(size)] = name
    return found


def _bounds(exported: Any, symbols: set[str]) -> list[str]:
    """Conditions for ranges that exclude some sizes above 1."""
    found: list[str] = []
    for symbol, bounds in exported.range_constraints.items():
        if str(symbol) not in symbols:
            continue
        if bounds.lower > 2:
            found.append(f"{symbol} >= {bounds.lower}")
        if bounds.upper < _UNBOUNDED:
            found.append(f"{symbol} <= {bounds.upper}")
    return found


def _relations(symbols: dict[str, Any], fixed: dict[str, int]) -> list[str]:
    """Conditions of the module on several sizes, or on divisibility."""
    from sympy import And

    (_, environment), *_ = symbols.values()
    found: list[str] = []
    for item in (
        *(item for asserts in environment.deferred_runtime_asserts.values() for item in asserts),
        *environment.guards,
    ):
        relation = item.expr.xreplace(environment.replacements)
        relation = relation.xreplace(
            {symbol: fixed[str(symbol)] for symbol in relation.free_symbols if str(symbol) in fixed}
        )
        free = {str(symbol) for symbol in relation.free_symbols}
        if free and free <= symbols.keys():
            parts = relation.args if isinstance(relation, And) else (relation,)
            found.extend(guard_source(part) for part in parts if not (_is_bound(part) or _broadcasts(part)))
    return found


def _broadcasts(relation: Any) -> bool:
    """Whether the condition says that a size is not 0 or 1. torch adds it where operands may broadcast; ONNX needs no such check."""
    return bool(relation.is_Relational) and relation.rel_op == "!=" and bool({0, 1} & set(relation.args))


def _is_bound(relation: Any) -> bool:
    """Whether the condition compares one symbol with a number. The symbol's range covers it."""
    if not relation.is_Relational:
        return False
    sides = [side for side in (relation.lhs, relation.rhs) if not side.is_number]
    return len(sides) == 1 and sides[0].is_symbol and relation.rel_op != "!="


def _write(model: Any, fixed: dict[str, int]) -> None:
    """Replace named dimensions by sizes in all values of a model."""
    if not fixed:
        return
    values = [*model.graph.inputs, *model.graph.outputs]
    for node in model.graph.all_nodes():
        values.extend(node.outputs)
        for attribute in node.attributes.values():
            if attribute.type.name == "GRAPH":
                values.extend(attribute.as_graph().inputs)
    for value in values:
        if value.shape is None or value.shape.frozen:
            continue
        for index, dim in enumerate(value.shape):
            text = getattr(dim, "value", None)
            if isinstance(text, str):
                value.shape[index] = _settled(text, fixed)


def _settled(text: str, fixed: dict[str, int]) -> Any:
    """A dimension's name or expression with sizes substituted; an int if no name is left."""
    found = _NAME.sub(lambda m: str(fixed.get(m.group(), m.group())), text)
    if found == text or _NAME.search(found):
        return found
    from staticrt.interop.onnx.size_conditions import evaluate

    size = evaluate(found)
    return text if size is None else size
