"""Derivative formulas that libraries register for their operators in Python, and which of them a joint trace may record.

Eager runs a formula in each backward, with the Python state of that moment; a recorded backward does not. So a formula is
recorded only if it reads nothing but what the call saved for it, torch, and operators. A guard on the operator's kernels
(`staticrt/frontend/guards/operators.py`) also compares the formula.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch._library.custom_ops import CustomOpDef

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import NO_GRAD
from staticrt.passes.effects import may_keep_arguments
from staticrt.training.decomposed import recurrent

aten = torch.ops.aten
_HOME = "torch._library.autograd"
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
    "get_", "set_", "is_", "_get", "_set", "_is", "seed", "initial_seed", "manual_seed", "backends", "random",
)  # fmt: skip
# What resolves lazy conjugates and negatives, where an operator does not take them.
_RESOLVE = frozenset({aten.conj_physical.default, aten.neg.default, aten.clone.default})


def recordable(node: Any) -> Callable[[], bool] | None:
    """Whether the backward of a custom autograd Function's node may be recorded.

    Returns:
        A function that says whether the globals and cells that the formula reads are still the same. None: it is no formula
        of an operator, or may depend on more than the operator's arguments.
    """
    function = node._forward_cls
    if function.__module__ != _HOME:
        return None
    cells = _cells_of(function.backward)
    formula = getattr(cells.get("info"), "_backward_fn", None)
    if formula is recurrent.gradients:
        return lambda: True
    if not isinstance(formula, types.FunctionType) or not all(map(_is_plain, vars(node).values())):
        return None
    known: types.FunctionType = formula
    found = _read_by(known)
    if found is None:
        return None

    def unchanged() -> bool:
        now = _read_by(known)
        return now is not None and all(a is b for a, b in zip(found, now, strict=True))

    return unchanged


def differentiate_again(gm: fx.GraphModule) -> None:
    """Let operators with a formula run with gradients on where the forward runs again for second derivatives.

    The Function that runs a formula calls the operator with gradients off, and so it was recorded.

    Raises:
        CannotTrace: it is unknown which operators ran in such a Function.
    """
    for node in gm.graph.nodes:
        if NO_GRAD not in node.meta or not (
            may_keep_arguments(node, False) or node.target is recurrent.STEPS
        ):
            continue
        values = node.meta.get("val")
        values = values if isinstance(values, (tuple, list)) else [values]
        histories = [v.grad_fn for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        if not histories:
            continue
        is_sure = all(type(history).__name__ == _node_of(node.target) for history in histories)
        if not is_sure or any(source.target in _RESOLVE for source in node.all_input_nodes):
            reason = f"the result of {node.target} is written, or an argument of it is a lazy conjugate or negative"
            raise CannotTrace(reason, even_in_parts=True)
        del node.meta[NO_GRAD]


def _node_of(operator: Any) -> str:
    """The name that torch gives an autograd node which runs the formula of an operator."""
    namespace, name, overload = str(operator).split(".")
    return f"GeneratedBackwardFor_{namespace}_{name}_{overload}Backward"


def _cells_of(function: types.FunctionType) -> dict[str, Any]:
    """The values of a function's free variables by name, without those that are unassigned."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return {name: value for name, cell in cells.items() for value in _contents(cell)}


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:
        return []


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else isinstance(value, _SAVED)


def _read_by(formula: types.FunctionType) -> list[Any] | None:
    """The globals and cells that a formula reads; None where it may read other state, or have an effect."""
    if formula.__defaults__ or formula.__kwdefaults__ or vars(formula):
        return None
    free = formula.__code__.co_freevars
    cells = _cells_of(formula)
    found = []
    for step, is_nested in _steps(formula.__code__):
        name = step.argval
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "STORE_ATTR"):
            return None
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD") and name.startswith(_ASK):
            return None
        if step.opname == "LOAD_GLOBAL":
            found.append(formula.__globals__.get(name, getattr(builtins, name, None)))
        elif name in free and "DEREF" in step.opname:
            if is_nested or step.opname != "LOAD_DEREF":
                return None
            found.append(cells.get(name))
    return found if all(map(_is_stateless, found)) else None


def _steps(code: types.CodeType, is_nested: bool = False) -> Iterator[tuple[dis.Instruction, bool]]:
    """The instructions of a function and of its inner functions, each with whether it is of an inner one."""
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
