"""Derivatives that a library has registered for its operators in Python: which of them a joint trace may record.

A recorded backward does not run the formula again. Eager does, in each backward, and with the state that Python has then. So a
formula is recorded that reads nothing but what the call saved for it, torch, and operators.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

# Builtins without effects.
_COMPUTE = frozenset(
    {
        *(abs, all, any, bool, enumerate, float, int, isinstance, len, list, max, min, range, reversed),
        *(round, slice, sorted, str, sum, tuple, type, zip),
    }
)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, CustomOpDef)
_SAVED = (torch.Tensor, torch.SymInt, int, float, complex, str, torch.dtype, torch.device, type(None))
# Attributes by which torch tells or changes its own state.
_ASK = (
    "get_",
    "set_",
    "is_",
    "_get",
    "_set",
    "_is",
    "seed",
    "initial_seed",
    "manual_seed",
    "backends",
    "random",
)


def recordable(node: Any) -> Callable[[], bool] | None:
    """Whether the backward of a custom autograd Function's node may be recorded.

    Returns:
        A function that says whether the operator still has that formula, and this finds what it did. None: it is no formula
        of an operator, or may depend on more than the operator's arguments.
    """
    function = node._forward_cls
    if function.__module__ != "torch._library.autograd":
        return None
    run = function.backward
    cells = dict(zip(run.__code__.co_freevars, run.__closure__ or (), strict=True))
    info = cells["info"].cell_contents if "info" in cells else None
    formula = getattr(info, "_backward_fn", None)
    if not isinstance(formula, types.FunctionType):
        return None
    known: types.FunctionType = formula
    found = _read_by(known)
    if found is None or not all(map(_is_plain, vars(node).values())):
        return None

    def unchanged() -> bool:
        if getattr(info, "_backward_fn", None) is not known:
            return False
        now = _read_by(known)
        return now is not None and all(a is b for a, b in zip(found, now, strict=True))

    return unchanged


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _SAVED)


def _read_by(formula: types.FunctionType) -> list[Any] | None:
    """The globals and cells that a formula reads; None where it may read other state, or have an effect."""
    if formula.__defaults__ or formula.__kwdefaults__ or vars(formula):
        return None
    cells = dict(zip(formula.__code__.co_freevars, formula.__closure__ or (), strict=True))
    found = []
    for step, is_nested in _steps(formula.__code__):
        name = step.argval
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "STORE_ATTR"):
            return None
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name.startswith(_ASK):
            return None
        if step.opname == "LOAD_GLOBAL":
            found.append(formula.__globals__.get(name, getattr(builtins, name, None)))
        elif name in cells and "DEREF" in step.opname:
            if is_nested or step.opname != "LOAD_DEREF":
                return None
            found.append(cells[name].cell_contents)
    return found if all(map(_is_stateless, found)) else None


def _steps(code: types.CodeType, is_nested: bool = False) -> Iterator[tuple[dis.Instruction, bool]]:
    for step in dis.get_instructions(code):
        yield step, is_nested
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _steps(constant, True)


def _is_stateless(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return value is math or value.__name__ in ("torch", "torch.nn.functional")
    if isinstance(value, types.BuiltinFunctionType | type):
        return value in _COMPUTE or value is torch.Tensor
    return isinstance(value, _OPERATORS)
