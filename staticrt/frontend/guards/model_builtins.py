"""Builtins as model code sees them while it is traced: they answer for fake tensors and symbolic numbers as in eager.

A frame of model code looks names up in a `ModelBuiltins` instead of the module `builtins`; code of other threads and
of torch does not. Only a name that is called at once has another meaning (`type(x)`, `isinstance(n, int)`); where it is a
value (`list[int]`, `dtype=int`) it is Python's own.
"""

from __future__ import annotations

import abc
import builtins
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from staticrt.frontend.arguments.unread import StandIn
from staticrt.frontend.guards.code_objects import cached_by_code
from staticrt.frontend.guards.effects import effect_of

_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
# Their abstract classes get members while modules are imported, not by models.
_LIBRARY_CLASSES = frozenset({*sys.stdlib_module_names, "torch", "numpy"})
# Symbolic numbers are instances of these and behave like numbers.
_NUMBERS: dict[type, Any] = {torch.SymInt: 0, torch.SymFloat: 0.0, torch.SymBool: False}

_HASHES_OF_IDENTITY: tuple[Any, ...] = (object.__hash__, torch.Tensor.__hash__)


class NeedsNumber(BaseException):
    """Model code uses a symbolic number where a number is required: as a key, or through its attributes."""


def uses_other_names(frame: types.FrameType) -> bool:
    """Whether code that begins may call `type` or `isinstance` by names that no `ModelBuiltins` resolves."""
    scope = frame.f_globals
    names = frame.f_code.co_names
    if "builtins" in names and scope.get("builtins") is builtins and {"type", "isinstance"} & {*names}:
        return True
    if {"type", "__call__"} <= {*names}:
        return True
    values = (*(scope.get(name) for name in names), *frame.f_locals.values())
    return any(value is type or value is isinstance for value in values)


def is_symbolic(value: Any) -> bool:
    """Whether a value is a symbolic number."""
    return type(value) in _NUMBERS


def _type(*args: Any, **kwargs: Any) -> Any:
    if len(args) != 1 or kwargs:
        if len(args) == 3 and "__module__" not in args[2]:  # Python takes it from the caller's globals
            namespace = {**args[2], "__module__": sys._getframe(1).f_globals.get("__name__")}
            args = (args[0], args[1], namespace)
        return type(*args, **kwargs)
    kind = type(args[0])
    if kind in _NUMBERS:
        return type(_NUMBERS[kind])
    # A fake tensor of a trace says that it is a plain tensor or a parameter.
    return args[0].__class__ if issubclass(kind, (torch.Tensor, StandIn)) else kind


def _isinstance(value: Any, classes: Any, /) -> bool:
    _note_abstract(classes)
    return isinstance(_NUMBERS.get(type(value), value), classes)


def _issubclass(kind: Any, classes: Any, /) -> bool:
    _note_abstract(classes)
    return issubclass(kind, classes)


def _note_abstract(classes: Any) -> None:
    """Model code asks whether something is of these classes; users register others with abstract ones of their own."""
    tell = MODEL_BUILTINS.on_abstract
    if isinstance(classes, types.UnionType):
        classes = classes.__args__
    for each in classes if isinstance(classes, tuple) else (classes,):
        is_abstract = isinstance(each, abc.ABCMeta)
        if tell and is_abstract and each.__module__.partition(".")[0] not in _LIBRARY_CLASSES:
            tell()


def _int(*args: Any, **kwargs: Any) -> Any:
    if len(args) == 1 and type(args[0]) is torch.SymInt and not kwargs:
        return args[0]  # a symbolic size stays symbolic
    return int(*args, **kwargs)


@functools.cache
def _hidden() -> frozenset[str]:
    """Attributes that fake tensors have and tensors lack."""
    from torch._subclasses.fake_tensor import FakeTensor

    made: Any = FakeTensor.__new__
    own = {
        *dir(FakeTensor),
        *made.__code__.co_names,
        *FakeTensor.__annotations__,
        "_is_param",
        "_staticrt_meta",
    }
    memos = {f"_{name}{end}" for name in own if name.endswith("_memo") for end in ("", "_vc", "_epoch")}
    return frozenset(own | memos) - {*dir(torch.Tensor)}


def given_attributes(value: Any) -> frozenset[str]:
    """Attributes that model code gave a fake tensor."""
    return frozenset(vars(value)) - _hidden() if _is_fake(value) else frozenset()


def _is_fake(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and type(value) is not value.__class__


def _id(value: Any, /) -> int:
    if is_symbolic(value):
        raise NeedsNumber
    if MODEL_BUILTINS.on_id is not None:
        MODEL_BUILTINS.on_id(value)
    return id(value)


def _hash(value: Any, /) -> int:
    if type(value).__hash__ in _HASHES_OF_IDENTITY and MODEL_BUILTINS.on_id is not None:
        MODEL_BUILTINS.on_id(value)
    return hash(value)


def _note(*names: str) -> None:
    """Model code looks up names that it may have computed."""
    if MODEL_BUILTINS.on_names is not None:
        MODEL_BUILTINS.on_names(names)


def _hasattr(value: Any, name: str, /) -> bool:
    _note(name)
    if _is_fake(value) and name in _hidden():
        return False
    number = _NUMBERS.get(type(value))
    if number is None or hasattr(number, name) == hasattr(value, name):
        return hasattr(value, name)
    raise NeedsNumber


def _getattr(value: Any, name: str, /, *default: Any) -> Any:
    _note(name)
    if type(value) in _NUMBERS:
        if name == "__class__":
            return _type(value)
        _hasattr(value, name)
    if _is_fake(value) and name in _hidden():
        return getattr(torch.Tensor, name, *default)
    return getattr(value, name, *default)


def _setattr(value: Any, name: str, item: Any, /) -> None:
    _note(name)
    setattr(value, name, item)


def _delattr(value: Any, name: str, /) -> None:
    _note(name)
    delattr(value, name)


def _globals() -> dict[str, Any]:
    found = sys._getframe(1).f_globals
    _note(*found)
    return found


def _vars(*args: Any) -> Any:
    if not args:
        return sys._getframe(1).f_locals
    found = vars(*args)
    if isinstance(args[0], (type, types.ModuleType)):
        _note(*found)
    if _is_fake(args[0]):
        return {name: value for name, value in found.items() if name not in _hidden()}
    return found


def _dir(*args: Any) -> list[str]:
    if not args:
        return sorted(sys._getframe(1).f_locals)
    found = dir(*args)
    _note(*found)
    if MODEL_BUILTINS.on_dir is not None and not isinstance(args[0], torch.Tensor):
        MODEL_BUILTINS.on_dir(args[0], found)
    return [name for name in found if name not in _hidden()] if _is_fake(args[0]) else found


def _round(number: Any, ndigits: Any = None) -> Any:
    if type(number) is torch.SymInt and ndigits is not None and ndigits < 0:
        raise NeedsNumber
    return round(number, ndigits)


def _callable_of(function: Any) -> Any:
    return _STAND_INS.get(getattr(function, "__name__", ""), function) if _is_builtin(function) else function


def _is_builtin(function: Any) -> bool:
    return function is getattr(builtins, getattr(function, "__name__", ""), None)


def _map(function: Any, *iterables: Any, **options: Any) -> Any:
    if isinstance(function, types.BuiltinFunctionType) and effect_of(function) is not None:
        return _call_each(function, *iterables)
    return map(_callable_of(function), *iterables, **options)


def _call_each(function: Any, *iterables: Any) -> Iterator[Any]:
    """A replacement for `map`, whose calls of C functions cannot be watched."""
    for arguments in zip(*iterables, strict=False):
        yield function(*arguments)


CALL_EACH = _call_each.__code__


def _filter(function: Any, iterable: Any, /) -> Any:
    return filter(_callable_of(function), iterable)


_STAND_INS: dict[str, Callable[..., Any]] = {
    "type": _type,
    "isinstance": _isinstance,
    "issubclass": _issubclass,
    "int": _int,
    "id": _id,
    "hash": _hash,
    "hasattr": _hasattr,
    "getattr": _getattr,
    "setattr": _setattr,
    "delattr": _delattr,
    "globals": _globals,
    "vars": _vars,
    "dir": _dir,
    "round": _round,
    "map": _map,
    "filter": _filter,
}


class ModelBuiltins(dict[str, Any]):
    """All builtins but those that mean something else where they are called."""

    on_names: Callable[[Iterable[str]], None] | None = None  # told of names that model code computes
    on_abstract: Callable[[], None] | None = None  # told that it asks about an abstract class
    on_id: Callable[[Any], None] | None = None  # told what it asks the identity of
    on_dir: Callable[[Any, list[str]], None] | None = None  # told what it lists the attributes of, and which

    def update_from_builtins(self) -> None:
        """Copy what has been added to or replaced in `builtins`."""
        current = vars(builtins)
        replaced = [name for name in _STAND_INS if current[name] is _ORIGINALS[name]]
        self.clear()
        self.update(current)
        for name in replaced:
            del self[name]

    def __missing__(self, name: str) -> Any:
        if name not in _STAND_INS:
            raise KeyError(name)
        frame = sys._getframe(1)
        return (_STAND_INS if _is_called(frame.f_code, frame.f_lasti) else _ORIGINALS)[name]


_ORIGINALS = {name: getattr(builtins, name) for name in _STAND_INS}
# One for the process, as generators that outlive a trace keep looking names up in it.
MODEL_BUILTINS = ModelBuiltins()


def _is_called(code: types.CodeType, position: int) -> bool:
    """Whether the instruction loads a global name in order to call it."""
    instruction = code.co_code
    if instruction[position] != _LOAD_GLOBAL:
        return False
    if sys.version_info >= (3, 11):
        return bool(instruction[position + 1] & 1)  # it pushes what only calls need
    return position in _called_loads(code)


@cached_by_code
def _called_loads(code: types.CodeType) -> frozenset[int]:
    """Positions of instructions whose value the next call takes as its function."""
    instructions = list(dis.get_instructions(code))
    found = set()
    for index, load in enumerate(instructions):
        if load.opcode != _LOAD_GLOBAL:
            continue
        above = 0  # values on the stack above the loaded one
        for following in instructions[index + 1 :]:
            if following.opcode in dis.hasjrel or following.opcode in dis.hasjabs:
                break
            argument = following.arg or 0
            arguments = {
                "CALL_FUNCTION": argument,
                "CALL_FUNCTION_KW": argument + 1,
                "CALL_FUNCTION_EX": 1 + (argument & 1),
            }.get(following.opname)
            if arguments is not None and arguments == above:
                found.add(load.offset)
                break
            above += dis.stack_effect(following.opcode, following.arg)
            if above < 0:
                break
    return frozenset(found)
