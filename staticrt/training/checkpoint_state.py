"""The Python state that the function of a checkpoint reaches.

Eager runs the function again in the backward, where it sees later assignments: a loop variable has another value, or a
list another item. A trace runs the function once.
"""

from __future__ import annotations

import collections
import functools
import io
import sys
import types
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from staticrt.frontend.guards.code_objects import with_inner
from staticrt.frontend.reasons import CannotTrace, is_user_file
from staticrt.frontend.tracing.tracer import Tracer

_MOST = 50_000  # objects looked at; where there are more, some may change unseen
_MOST_BYTES = 1 << 20  # of an array of numpy
_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.layout)
_KNOWN = ("torch", "staticrt", "numpy", "builtins")  # modules in which functions read no state
# Attributes of every module that a call of it does not read.
_OF_TORCH = frozenset(vars(torch.nn.Module())) - {
    "training", "_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_pre_hooks",
}  # fmt: skip


class _Identity(int):
    """The identity of a tensor, without a reference to it: the trace keeps the tensors that it makes alive."""


class _Checksum(int):
    """The contents of an array."""


class Reached:
    """The state that a checkpoint's function and arguments reach now.

    Args:
        call: the function and its arguments.
    """

    def __init__(self, call: tuple[Any, ...]) -> None:
        self._call = call
        self._found = list(_reached(call))

    def is_same(self) -> bool:
        """Whether it still reaches the same objects."""
        now = list(_reached(self._call))
        return len(now) == len(self._found) and all(
            a is b or (type(a) is type(b) and isinstance(a, (_Identity, _Checksum)) and a == b)
            for a, b in zip(now, self._found, strict=True)
        )


def look_again(tracer: Tracer) -> None:
    """Check the checkpoints recorded so far, because a backward begins, which runs them again.

    Raises:
        CannotTrace: the second run of one would differ from the first.
    """
    while tracer.parts:
        if not tracer.parts.pop().is_same():
            raise CannotTrace("a checkpoint that reads what changes before its backward", even_in_parts=True)


def _reached(call: Any) -> Iterator[Any]:
    """Objects in the order in which they are reached; tensors that a trace makes are represented by their identities.

    What cannot be compared is represented by a new object each time.
    """
    stack: list[Any] = [call]
    seen: set[int] = set()
    for _ in range(_MOST):
        if not stack:
            return
        value = stack.pop()
        if isinstance(value, torch.Tensor):
            yield _Identity(id(value))
        elif isinstance(value, np.ndarray):
            yield object() if value.nbytes > _MOST_BYTES else _Checksum(zlib.crc32(value.tobytes()))
        elif isinstance(value, Iterator) and not isinstance(value, io.IOBase):  # a file is one of lines
            yield object()
        else:
            yield value
            if not isinstance(value, _ATOMS) and id(value) not in seen:
                seen.add(id(value))
                stack.extend(_inside(value))
    yield object()


def _is_known(value: Any) -> bool:
    """Whether a function or class is not of a model: its own globals are not looked at."""
    return _is_library(str(getattr(value, "__module__", "")))


@functools.cache
def _is_library(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return (
        module.split(".")[0] in _KNOWN
        or module in sys.builtin_module_names
        or bool(file and not is_user_file(file))
    )


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, types.ModuleType):
        return ()  # its functions name what they read of it
    if isinstance(value, type):
        return () if _is_known(value) else [_plain(each) for each in vars(value).values()]
    if isinstance(value, types.FunctionType):
        return () if _is_known(value) else _of_function(value)
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return tuple(value)
    return _of_object(value)


def _plain(value: Any) -> Any:
    """The function of a method or property in a class's dict."""
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _of_object(value: Any) -> Iterator[Any]:
    yield from (each for each in type(value).__mro__ if not _is_known(each))
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    hidden = _OF_TORCH if isinstance(value, torch.nn.Module) else ()
    yield from (each for name, each in own.items() if name not in hidden)
    for kind in type(value).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, types.MemberDescriptorType) and not _is_known(kind):
                try:
                    yield slot.__get__(value)
                except AttributeError:  # not assigned yet
                    yield None


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not assigned yet
            yield None
    yield function.__defaults__
    yield function.__kwdefaults__
    for code in with_inner(function.__code__):
        read = [function.__globals__[name] for name in code.co_names if name in function.__globals__]
        yield from read
        for module in read:
            if isinstance(module, types.ModuleType) and module.__name__.split(".")[0] not in _KNOWN:
                yield from (vars(module)[name] for name in code.co_names if name in vars(module))
