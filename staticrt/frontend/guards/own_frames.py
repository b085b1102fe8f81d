"""Code that looks at frames: where Dynamo splits a function, these have other names, and other variables."""

from __future__ import annotations

import dis
import itertools
import types

from staticrt.frontend.guards.code_objects import cached_by_code

_BUILTINS = frozenset({"locals", "eval", "exec"})
_OF_THE_CALLER = frozenset({"vars", "dir"})  # if called without an argument
_FRAMES = frozenset({"_getframe", "currentframe"})
_LEFT_OUT = ("CACHE", "PRECALL", "PUSH_NULL", "EXTENDED_ARG", "NOP")


@cached_by_code
def looks_at_frames(code: types.CodeType) -> bool:
    """Whether code, or a function in it, reads local variables by names that it computes, or looks at frames."""
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return _looks(code) or any(looks_at_frames(each) for each in inner)


def _looks(code: types.CodeType) -> bool:
    names = {*code.co_names}
    if not _FRAMES.isdisjoint(names) or {"inspect", "stack"} <= names:
        return True
    if names.isdisjoint(_BUILTINS | _OF_THE_CALLER):
        return False
    steps = [each for each in dis.get_instructions(code) if each.opname not in _LEFT_OUT]
    for step, following in itertools.pairwise(steps):
        if step.opname not in ("LOAD_GLOBAL", "LOAD_NAME"):  # `model.eval()` is another one
            continue
        if step.argval in _BUILTINS:
            return True
        if step.argval in _OF_THE_CALLER and following.opname.startswith("CALL") and following.arg == 0:
            return True
    return False
