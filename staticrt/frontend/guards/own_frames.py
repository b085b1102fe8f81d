"""Code that looks at frames: where Dynamo splits a function, these have other names, and other variables."""

from __future__ import annotations

import builtins
import inspect
import itertools
import sys
import traceback
import types
from typing import Any

from staticrt.frontend.guards.code_objects import cached_by_code, steps_of, with_inner
from staticrt.frontend.guards.code_reads import global_names

_LOOKING = (
    sys._getframe, inspect.currentframe, inspect.stack, inspect.trace, locals, eval, exec,
    *(each for each in vars(traceback).values() if isinstance(each, types.FunctionType)),
)  # fmt: skip
_OF_THE_CALLER = frozenset({"vars", "dir"})  # if called without an argument
# Attributes through which code finds frames that it has no function for.
_FRAMES = frozenset({"_getframe", "currentframe", "tb_frame", "tb_next", "tb_lineno", "tb_lasti"})


def looks_at_frames(function: types.FunctionType) -> bool:
    """Whether a function, or one in it, reads local variables by names that it computes, or looks at frames."""
    codes = with_inner(function.__code__)
    return any(_looks(code) or _finds(code, function.__globals__) for code in codes)


def _finds(code: types.CodeType, scope: dict[str, Any]) -> bool:
    """Whether names in code mean functions that look at frames, maybe in modules that it names."""
    found = [scope.get(name, getattr(builtins, name, None)) for name in global_names(code)]
    modules = [*found, *(sys.modules.get(name) for name in code.co_names)]
    for module in modules:
        if isinstance(module, types.ModuleType):
            found += [vars(module).get(name) for name in code.co_names]
    return any(each is looking for each in found for looking in _LOOKING)


@cached_by_code
def _looks(code: types.CodeType) -> bool:
    names = {*code.co_names}
    if not _FRAMES.isdisjoint(names):
        return True
    if names.isdisjoint(_OF_THE_CALLER):
        return False
    return any(
        step.opname in ("LOAD_GLOBAL", "LOAD_NAME")  # `self.dir()` is another one
        and step.argval in _OF_THE_CALLER
        and following.opname.startswith("CALL")
        and following.arg == 0
        for step, following in itertools.pairwise(steps_of(code))
    )
