"""Code that may ask a number for its class, which tells a symbolic number from Python's."""

from __future__ import annotations

import dis
import inspect
import types
from typing import Any

from staticrt.frontend.guards.model_builtins import is_symbolic
from staticrt.frontend.guards.special_names import names_of

_MATCH_CLASS = dis.opmap["MATCH_CLASS"]


def asks_for_class(frame: types.FrameType) -> bool:
    """Whether code that begins may ask a symbolic number for its class, which is not that of a number."""
    code = frame.f_code
    if _MATCH_CLASS in code.co_code[::2] and {"int", "float", "bool"} & {*code.co_names}:
        return True
    if "__class__" not in code.co_names:
        return {"__class__", "attrgetter"} <= names_of(code)
    instructions = list(dis.get_instructions(code))
    return any(
        instruction.argval == "__class__"
        and "ATTR" in instruction.opname
        and _may_be_symbolic(frame, instructions[:index], instructions)
        for index, instruction in enumerate(instructions)
    )


def _may_be_symbolic(
    frame: types.FrameType, before: list[dis.Instruction], instructions: list[dis.Instruction]
) -> bool:
    """Whether the value that some instructions leave may be a symbolic number.

    Not so for attributes of arguments, and for items of tuples such as `args` in a decorator's `args[0].__class__`.
    """
    steps: list[tuple[bool, Any]] = []  # from the last: whether it takes an item; the name or the index
    while before:
        if before[-1].opname in ("LOAD_ATTR", "LOAD_METHOD"):
            steps.append((False, before[-1].argval))
            before = before[:-1]
        elif (
            len(before) > 1
            and _takes_item(before[-1])
            and before[-2].opname in ("LOAD_CONST", "LOAD_SMALL_INT")
        ):
            steps.append((True, before[-2].argval))
            before = before[:-2]
        else:
            break
    root: Any = before[-1].argval if before and before[-1].opname.startswith("LOAD_") else None
    scope = next((scope for scope in (frame.f_locals, frame.f_globals) if root in scope), None)
    if scope is None or any(i.argval == root and i.opname.startswith("STORE_") for i in instructions):
        return True
    value = scope[root]
    for is_item, key in reversed(steps):
        if is_item:
            if type(value) is not tuple or type(key) is not int:
                return True
            if not -len(value) <= key < len(value):  # raises, should the code come there
                return False
            value = value[key]
        else:
            value = inspect.getattr_static(value, key, None)
    return is_symbolic(value) or inspect.isdatadescriptor(value)


def _takes_item(instruction: dis.Instruction) -> bool:
    """Whether an instruction is `a[b]`: an operator of its own up to Python 3.13."""
    return instruction.opname == "BINARY_SUBSCR" or (
        instruction.opname == "BINARY_OP" and instruction.argrepr == "[]"
    )
