"""Derivatives that a library has registered for its operators in Python: which of them a joint trace may record.

A recorded backward does not run the formula again. Eager does, in each backward, and with the state that Python has then. So a
formula is recorded that reads nothing but what the call saved for it, functions like it, and torch.
"""

from __future__ import annotations

import builtins
import dis
import math
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

# Builtins without effects.
_COMPUTE = frozenset(
    {
        *(abs, all, any, bool, dict, enumerate, float, int, isinstance, len, list, max, min, range, reversed),
        *(round, slice, sorted, str, sum, tuple, type, zip),
    }
)
_SAVED = (torch.Tensor, torch.SymInt, int, float, complex, str, torch.dtype, torch.device, type(None))


def recordable(node: Any) -> Callable[[], bool] | None:
    """Whether the backward of a custom autograd Function's node may be recorded.

    Returns:
        A function that says whether the operator still has that formula. None: it is no formula of an operator, or may depend
        on more than the operator's arguments.
    """
    function = node._forward_cls
    if function.__module__ != "torch._library.autograd":
        return None
    run = function.backward
    cells = dict(zip(run.__code__.co_freevars, run.__closure__ or (), strict=True))
    info = cells["info"].cell_contents if "info" in cells else None
    formula = getattr(info, "_backward_fn", None)
    if not isinstance(formula, types.FunctionType) or not _only_computes(formula, set()):
        return None
    if not all(_is_plain(value) for value in vars(node).values()):
        return None
    return lambda: getattr(info, "_backward_fn", None) is formula


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return isinstance(value, _SAVED)


def _only_computes(function: types.FunctionType, seen: set[types.CodeType]) -> bool:
    """Whether a function reads no state of Python but functions like it, and has no effect."""
    if function.__code__ in seen:
        return True
    seen.add(function.__code__)
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for step, is_nested in _steps(function.__code__):
        name = step.argval
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME"):
            return False
        if step.opname == "LOAD_GLOBAL":
            found = function.__globals__.get(name, getattr(builtins, name, None))
            if not _is_code(found, seen):
                return False
        if name in cells and "DEREF" in step.opname:
            is_read = step.opname == "LOAD_DEREF"
            if is_nested or not is_read or not _is_code(cells[name].cell_contents, seen):
                return False
    return all(map(_is_plain, defaults))


def _steps(code: types.CodeType, is_nested: bool = False) -> Iterator[tuple[dis.Instruction, bool]]:
    for step in dis.get_instructions(code):
        yield step, is_nested
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _steps(constant, True)


def _is_code(value: Any, seen: set[types.CodeType]) -> bool:
    """Whether a global is torch, or a function that only computes."""
    if isinstance(value, types.ModuleType):
        return value in (math, operator) or value.__name__.partition(".")[0] == "torch"
    if isinstance(value, types.BuiltinFunctionType | type):
        return value in _COMPUTE or value is torch.Tensor or getattr(value, "__module__", None) == "math"
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket | CustomOpDef):
        return True
    if isinstance(value, types.FunctionType):
        return value.__module__.partition(".")[0] == "torch" or _only_computes(value, seen)
    return False
