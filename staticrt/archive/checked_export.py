"""Load files of `torch.export.save` without running code that the file brings.

`torch.export.load` trusts its file: it unpickles sample inputs and constants, evaluates size expressions and guards as
Python, puts names into generated source, calls any function under `torch.` and loads shared libraries. Here a file is
read first, and refused unless everything in it that torch would execute is plain data: pickles that
`torch.load(weights_only=True)` accepts, expressions made of arithmetic, identifiers for names, and operators that compute
tensors from their arguments, or that the caller allows (`operators.refusal`), with arguments that models have.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt.archive import operators
from staticrt.archive.recurrent_layers import misfit
from staticrt.errors import InputError
from staticrt.native import _C

_IDENTIFIER = re.compile(r"[\w.\- ]*", re.ASCII)
_MAX_EXPRESSION = 10_000  # characters; Python's parser recurses
_MAX_EXPONENT = 64
# JSON fields whose text torch only stores or shows.
_FREE_TEXT = frozenset(
    {"torch_version", "stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "custom", "as_string"}
)
_TARGETS = frozenset({"target", "as_operator"})
_FUNCTIONS = frozenset([
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt", "FloorToInt",
    "CeilDiv", "LShift", "RShift", "PowByNatural", "FloatPow", "FloatTrueDiv", "IntTrueDiv",
    "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt", "RoundDecimal",
    "ToFloat", "Identity", "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Abs",
    "floor", "ceiling", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "Equality", "Unequality", "StrictLessThan",
    "LessThan", "StrictGreaterThan", "GreaterThan", "And", "Or", "Not", "Piecewise", "ExprCondPair",
    "Infinity", "NegativeInfinity", "oo", "zoo", "nan", "One", "Zero", "NegativeOne", "Half", "sqrt", "exp",
    "log", "sin", "cos", "tan", "atan",
])  # fmt: skip
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
_METHODS = frozenset({"size", "stride", "shape", "dim", "ndim", "numel"})
_SYNTAX = (
    ast.Expression, ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword, ast.Name,
    ast.Constant, ast.Subscript, ast.Tuple, ast.Load, ast.boolop, ast.operator, ast.unaryop, ast.cmpop,
)  # fmt: skip


class Untrusted(Exception):
    """Why a file is not loaded."""


def load_exported(
    path: str | os.PathLike[str], allow_operators: Sequence[str] = ()
) -> torch.export.ExportedProgram:
    """The program of a file of `torch.export.save`.

    Args:
        allow_operators: what it may call besides operators that compute tensors: "mylib::op", "mylib::*".

    Raises:
        InputError: the file cannot be read, or holds what torch would execute.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive, allow_operators)
        program = torch.export.load(os.fspath(path))
        layer = misfit(program)
        if layer:
            raise Untrusted(f"it calls {layer}")
        return program
    except Untrusted as error:
        raise InputError(
            f"{path} was not loaded: {error}",
            fix="if you trust the file's author: staticrt.compile(torch.export.load(path)); on the command line, "
            "--allow-operator NAME for an operator",
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file", fix="give a file of torch.export.save") from error
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise InputError(
            f"{path}: torch.export.load failed: {first_line}",
            fix="give a file of torch.export.save; staticrt.load reads those of staticrt.save",
        ) from error


def _check(archive: zipfile.ZipFile, allowed: Sequence[str]) -> None:
    names = archive.namelist()
    if len(set(names)) != len(names):
        raise Untrusted("it has two entries of one name")
    inside = [name.partition("/")[2] for name in names]
    if len({name.partition("/")[0] for name in names}) != 1:
        raise Untrusted("its entries are not in one folder")
    if not any(name.startswith("models/") for name in inside):
        raise Untrusted("it holds no model in the format of torch.export.save, or is of a release before 2.8")
    for name, short in zip(names, inside, strict=True):
        if short.startswith("data/aotinductor/"):
            raise Untrusted("it brings compiled libraries of AOTInductor")
        if short.startswith("models/"):
            _check_model(json.loads(archive.read(name)), allowed)
        elif short.endswith("_config.json"):
            config = json.loads(archive.read(name))
            _check_text(config)
            _check_pickled(archive, name.rpartition("/")[0], config)
        elif short.startswith("data/sample_inputs/"):
            _check_pickle(short, archive.read(name))


def _check_pickled(archive: zipfile.ZipFile, folder: str, config: Any) -> None:
    for payload in config["config"].values():
        place = str(payload["path_name"])
        if "/" in place or place.startswith("."):
            raise Untrusted(f"it refers to a tensor at {place!r}")
        if place.startswith(("custom_obj_", "opaque_")):
            raise Untrusted("it holds objects that are not tensors")
        if payload["use_pickle"]:
            _check_pickle(place, archive.read(f"{folder}/{place}"))


def _check_pickle(place: str, data: bytes) -> None:
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise Untrusted(f"{place} is a pickle of more than tensors and plain containers") from error


def _check_model(model: Any, allowed: Sequence[str]) -> None:
    _check_text(model, allowed=allowed)
    _check_numbers(model)
    for guard in model.get("guards_code") or ():
        check_expression(guard, guard=True)


def _check_numbers(value: Any) -> None:
    """Check the constant arguments of every call in a JSON document."""
    if isinstance(value, list):
        for item in value:
            _check_numbers(item)
    elif isinstance(value, dict):
        if isinstance(value.get("target"), str) and isinstance(value.get("inputs"), list):
            _check_call(value["target"], value["inputs"])
        for item in value.values():
            _check_numbers(item)


def _check_call(target: str, inputs: list[Any]) -> None:
    operator = operators.dispatcher_name(target)
    for given in inputs:
        most = _C.largest_number(operator, str(given["name"])) if operator else None
        if most is None:
            continue
        for number in _numbers(given["arg"]):
            if not abs(number) <= most:
                raise Untrusted(
                    f"it calls {target} with {given['name']} = {number}, at most {most:g} is allowed"
                )


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, (int, float)):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _numbers(item)


def _check_text(value: Any, key: str = "", allowed: Sequence[str] = ()) -> None:
    """Check every text in a JSON document by the field it stands in."""
    for field, text in _texts(value, key):
        if field in _TARGETS:
            _check_target(text, allowed)
        else:
            _CHECKS.get(field, _check_identifier)(text)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            yield "", name
            yield from _texts(item, name)


def _check_identifier(text: str) -> None:
    if not _IDENTIFIER.fullmatch(text):
        raise Untrusted(f"it has the name {text[:80]!r}, which is not an identifier")


def _check_spec(text: str) -> None:
    """A tree of containers, JSON within JSON."""
    if text[:1] in '[{"':
        _check_text(json.loads(text), "context")
    else:
        _check_identifier(text)


def _check_target(text: str, allowed: Sequence[str]) -> None:
    reason = operators.refusal(text, allowed)
    if reason:
        raise Untrusted(f"it calls {text[:80]!r}, {reason}")


def check_expression(text: str, guard: bool = False) -> None:
    """Raise Untrusted unless `text` is arithmetic on sizes.

    Args:
        guard: it may also read arguments, such as `L['x'].size()[0]`.
    """
    if len(text) > _MAX_EXPRESSION:
        raise Untrusted(f"it has an expression of {len(text)} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise Untrusted(f"{text[:80]!r} is not an expression of sizes") from error
    for node in ast.walk(tree):
        if not _is_arithmetic(node, guard):
            raise Untrusted(f"{text[:80]!r} is not an expression of sizes")


def _is_arithmetic(node: ast.AST, guard: bool) -> bool:
    if isinstance(node, ast.Attribute):
        return guard and node.attr in _METHODS
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return guard and not node.keywords
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        known = name in _FUNCTIONS or name.startswith("OpaqueUnaryFn_")
        return known and (name not in _POWERS or (len(node.args) == 2 and _is_small_power(*node.args)))
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        return _is_small_power(node.left, node.right)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float, str))
    return isinstance(node, _SYNTAX)


def _is_small_power(base: ast.expr, exponent: ast.expr) -> bool:
    """Numbers to large powers take all memory."""
    powers = [
        n for n in ast.walk(base) if isinstance(n, (ast.Pow, ast.LShift)) or getattr(n, "id", "") in _POWERS
    ]
    small = (
        isinstance(exponent, ast.Constant)
        and isinstance(exponent.value, int)
        and exponent.value <= _MAX_EXPONENT
    )
    if (
        isinstance(exponent, ast.Call)
        and isinstance(exponent.func, ast.Name)
        and exponent.func.id == "Integer"
    ):
        return not powers and len(exponent.args) == 1 and _is_small_power(base, exponent.args[0])
    return not powers and (small or isinstance(exponent, (ast.Name, ast.UnaryOp)))


def _ignore(_text: str) -> None:
    """Text that torch only stores."""


_CHECKS: dict[str, Callable[[str], None]] = {
    **dict.fromkeys(_FREE_TEXT, _ignore),
    "expr_str": check_expression,
    "guards_code": _ignore,  # checked as guards
    "in_spec": _check_spec,
    "out_spec": _check_spec,
    "context": _check_spec,
}
