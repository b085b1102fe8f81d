"""What the function of a checkpoint reaches in Python.

Eager runs the function again in the backward, where it sees what was assigned since: the variable of a loop that has gone
on, another item in a list. A trace runs it once.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import Tracer

_MOST = 10_000  # objects looked at
_OPAQUE = (
    torch.Tensor,
    torch.nn.Module,
    types.ModuleType,
    type,
)  # a trace watches what modules and classes hold
_KNOWN = ("torch", "staticrt", "numpy")  # packages whose functions keep no state


class _Identity(int):
    """That of a tensor, without a reference to it: the trace keeps those that it makes."""


class Reached:
    """What a checkpoint's function and arguments reach now.

    Args:
        call: the function and its arguments.
    """

    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call
        self._found = list(_reached(call))

    def is_same(self) -> bool:
        """Whether it reaches the same objects still."""
        now = list(_reached(self._call))
        return len(now) == len(self._found) and all(
            a is b or (type(a) is type(b) is _Identity and a == b)
            for a, b in zip(now, self._found, strict=True)
        )


def look_again(tracer: Tracer) -> None:
    """Called as a backward begins, which runs the checkpoints recorded so far a second time.

    Raises:
        CannotTrace: one would not be as in its first run.
    """
    while tracer.parts:
        if not tracer.parts.pop().is_same():
            raise CannotTrace("a checkpoint that reads what changes before its backward", even_in_parts=True)


def _reached(call: Any) -> Iterator[Any]:
    """Objects in the order in which they are reached; of tensors that a trace makes only the identities."""
    stack: list[Any] = [call]
    seen: set[int] = set()
    while stack and len(seen) < _MOST:
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            yield _Identity(id(value))
            continue
        yield value
        if id(value) not in seen:
            seen.add(id(value))
            stack.extend(_inside(value))


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, _OPAQUE):
        return ()
    if isinstance(value, types.FunctionType):
        return () if value.__module__ and value.__module__.split(".")[0] in _KNOWN else _of_function(value)
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return tuple(value)
    own = getattr(value, "__dict__", None)
    return tuple(own.values()) if isinstance(own, dict) else ()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
    yield function.__defaults__
    yield function.__kwdefaults__
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
