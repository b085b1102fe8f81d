"""Sets and caches of code objects, by identity.

Code that Dynamo makes, or a program rewrites, may have a list or dict among its constants, and then has no hash. Looking up
an id is also faster than hashing code, which hashes each constant.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Concatenate, ParamSpec, TypeVar

_R = TypeVar("_R")
_P = ParamSpec("_P")
_OTHERS = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_MOST = 4096  # results of one function
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_NO_STEPS = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL")
# Instructions whose argument has a bit beside the index of a name.
_WITH_A_BIT = frozenset({dis.opmap["LOAD_GLOBAL"]} if sys.version_info >= (3, 11) else ())


def with_inner(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions that it makes, also by functions that it makes."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from with_inner(constant)


def steps_of(code: types.CodeType) -> list[dis.Instruction]:
    """The instructions that compute something."""
    return [each for each in dis.get_instructions(code) if each.opname not in _NO_STEPS]


def arguments_of(code: types.CodeType, opcodes: Set[int]) -> Iterator[tuple[int, int]]:
    """Operation codes and arguments of the instructions that are of these kinds.

    `dis` also describes each instruction, which takes fifty times as long.
    """
    above = 0  # the upper bytes of the next instruction's argument
    instructions = code.co_code
    for opcode, argument in zip(instructions[::2], instructions[1::2], strict=True):
        if opcode == dis.EXTENDED_ARG:
            above = (above | argument) << 8
            continue
        if opcode in opcodes:
            yield opcode, above | argument
        above = 0


def name_of(code: types.CodeType, opcode: int, argument: int) -> str:
    """The name in an instruction that has one and loads no attribute."""
    return code.co_names[argument >> 1 if opcode in _WITH_A_BIT else argument]


def takes_arguments(code: types.CodeType) -> bool:
    """Whether a function with this code has parameters."""
    return bool(code.co_argcount or code.co_kwonlyargcount or code.co_flags & _OTHERS)


class CodeSet:
    """A set of code objects, which it keeps alive."""

    def __init__(self) -> None:
        self._codes: dict[int, types.CodeType] = {}

    def __contains__(self, code: types.CodeType) -> bool:
        return id(code) in self._codes

    def __len__(self) -> int:
        return len(self._codes)

    def add(self, code: types.CodeType) -> None:
        """Add a code object."""
        self._codes[id(code)] = code

    def update(self, codes: Iterable[types.CodeType]) -> None:
        """Add several."""
        self._codes.update((id(code), code) for code in codes)


def cached_by_code(
    function: Callable[Concatenate[types.CodeType, _P], _R],
) -> Callable[Concatenate[types.CodeType, _P], _R]:
    """A function of a code object whose results are kept, as `functools.lru_cache` would."""
    kept: dict[tuple[object, ...], tuple[types.CodeType, _R]] = {}

    @functools.wraps(function)
    def cached(code: types.CodeType, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        key = (id(code), *args, *kwargs.values())
        found = kept.get(key)
        if found is None:
            if len(kept) >= _MOST:
                kept.clear()
            found = kept[key] = (code, function(code, *args, **kwargs))
        return found[1]

    return cached
