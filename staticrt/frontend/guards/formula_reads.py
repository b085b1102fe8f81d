"""What the code of a derivative reads, found in its bytecode: a recorded backward reads it no more."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import math
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from staticrt.frontend.guards.code_objects import with_inner
from staticrt.frontend.reasons import is_torch_file

# Builtins without effects.
_COMPUTE = frozenset({
    abs, all, any, bool, dict, divmod, enumerate, float, frozenset, int, isinstance, iter, len, list, max, min, next, pow,
    range, reversed, round, set, slice, sorted, str, sum, tuple, type, zip,
})  # fmt: skip
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket, CustomOpDef)
PLAIN = (
    int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
    torch.SymInt, torch.SymFloat, torch.SymBool,
)  # fmt: skip
# Attributes by which torch tells or changes its own state, and by which code differentiates.
_ASK = (
    "get_", "set_", "is_", "_get", "_set", "_is", "seed", "initial_seed", "manual_seed", "backends", "random",
    "register_", "next_functions",
)  # fmt: skip
_DIFFERENTIATE = frozenset({
    "grad", "backward", "autograd", "enable_grad", "inference_mode", "requires_grad_", "retain_grad",
})  # fmt: skip
# Attributes that differ between the recorded call and others, or lead to the state of a class.
_DIFFER = frozenset({
    "_version", "grad_fn", "_base", "output_nr", "retains_grad", "stride", "storage_offset", "_forward_cls", "__class__",
    "__dict__",
})  # fmt: skip
# What a context has besides what the forward has set.
_OF_CONTEXTS = (_DIFFER | {*dir(torch.autograd.function.BackwardCFunction)}) - {
    "saved_tensors",
    "needs_input_grad",
}
_OF_TENSORS = frozenset({"is_floating_point", "is_complex", "is_contiguous", "is_cuda", "is_sparse"})


class Reads:
    """What the code of backwards reads, besides their arguments: globals, cells, attributes of modules and classes."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, str], tuple[Callable[[], Any], Any]] = {}
        self._known: set[types.FunctionType] = set()
        self.attributes: set[str] = set()  # the names of the attributes that it reads
        # It reads numbers, texts or functions, which may be others in the backward than in the forward.
        self.changes = False

    def unchanged(self) -> bool:
        """Whether all of it is as it was."""
        try:
            return all(_is_same(read(), value) for read, value in self._places.values())
        except (AttributeError, ValueError):  # an attribute that was deleted, an empty cell
            return False

    def compare(self, holder: Any, name: str) -> None:
        """Compare an attribute of a class or a function from now on."""
        self._places[id(holder), name] = functools.partial(getattr, holder, name), getattr(holder, name)

    def add(self, code: Any, has_context: bool = False) -> str:
        """Add what a function reads.

        Args:
            code: the function.
            has_context: its first argument is the context of the call, which no other code reads.

        Returns:
            Why no recorded backward may read it; "" if one may.
        """
        # `once_differentiable` of torch wraps the user's function.
        function: Any = inspect.unwrap(code, stop=lambda each: not _is_of_torch(each))
        if not isinstance(function, types.FunctionType):
            return "is no function of Python"
        if function in self._known:
            return ""
        self._known.add(function)
        self.compare(function, "__code__")
        self.compare(function, "__defaults__")
        named = functools.partial(_keyword_defaults, function)
        self._places[id(function), "__kwdefaults__"] = named, named()
        if not _is_plain((function.__defaults__ or (), named())):
            return "has a default that may change"
        return next(filter(None, self._read_by(function, has_context)), "")

    def _read_by(self, function: types.FunctionType, has_context: bool) -> Iterator[str]:
        """For each instruction of a function, why it may not be recorded, or ""."""
        free = function.__code__.co_freevars
        cells = dict(zip(free, function.__closure__ or (), strict=True))
        context = function.__code__.co_varnames[0] if has_context else ""
        steps = [
            (step, code is not function.__code__)  # whether it is of an inner function
            for code in with_inner(function.__code__)
            for step in dis.get_instructions(code)
        ]
        for position, (step, is_nested) in enumerate(steps):
            name = step.argval
            before = steps[position - 1][0] if position else step
            following = [each for each, _is_nested in steps[position + 1 : position + 9]]
            is_of_context = has_context and not is_nested and before.argval == context
            if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_NAME", "STORE_ATTR"):
                yield f"changes {name}"
            elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                self.attributes.add(name)
                yield "" if is_of_context and name not in _OF_CONTEXTS else _asks(name)
            elif step.opname == "LOAD_GLOBAL":
                scope = function.__globals__
                yield self._value(scope if name in scope else vars(builtins), name, following)
            elif name in free and "DEREF" in step.opname:
                is_read = step.opname == "LOAD_DEREF" and not is_nested
                yield self._value(cells[name], "cell_contents", following) if is_read else f"changes {name}"

    def _value(self, holder: Any, name: str, following: Sequence[dis.Instruction]) -> str:
        """Add what an instruction reads, and the attributes of it that the following ones read."""

        def read() -> Any:
            return holder.get(name) if type(holder) is dict else getattr(holder, name, None)

        value = read()
        place = id(holder), name
        attribute = (
            following[0].argval if following and following[0].opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
        )
        if _is_plain(value):
            self._places[place] = read, value
            self.changes = True
            return ""
        if holder is vars(builtins):
            is_error = isinstance(value, type) and issubclass(value, Exception)
            return "" if is_error or value in _COMPUTE else f"calls {name}"
        self._places[place] = read, value
        if value is math or isinstance(value, _OPERATORS) or _is_torchs(value) or value is torch.Tensor:
            return ""
        if isinstance(value, types.FunctionType):
            self.changes = True
            return self.add(value) if not attribute else f"reads {name}.{attribute}"
        if isinstance(value, type) and issubclass(value, torch.autograd.Function) and attribute == "apply":
            return self.add(value.forward) or self.add(value.setup_context)
        if isinstance(value, (types.ModuleType, type)) and attribute:
            own = vars(value) if isinstance(value, types.ModuleType) else value
            return self._value(own, attribute, following[1:])
        return f"reads {name}"


def _keyword_defaults(function: types.FunctionType) -> tuple[tuple[str, Any], ...]:
    """By value: the dict may be changed in place."""
    return tuple((function.__kwdefaults__ or {}).items())


def _is_of_torch(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and is_torch_file(function.__code__.co_filename)


def _asks(name: str) -> str:
    """Why no recorded backward may read an attribute of this name, "" if one may."""
    is_refused = (name.startswith(_ASK) and name not in _OF_TENSORS) or name in _DIFFERENTIATE | _DIFFER
    return f"reads {name}" if is_refused else ""


def _is_torchs(value: Any) -> bool:
    """Whether it is a module or function of torch that tells nothing of torch's state."""
    name = getattr(value, "__name__", None)
    if isinstance(value, types.ModuleType):
        return name in ("torch", "torch.nn.functional")
    home = getattr(value, "__module__", None) or ""
    is_function = isinstance(value, types.FunctionType | types.BuiltinFunctionType)
    return is_function and home.split(".")[0] == "torch" and not _asks(str(name))


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, PLAIN)


def _is_same(now: Any, before: Any) -> bool:
    """Whether a value that was read is the one of before; numbers and texts are compared by value."""
    return now is before or (_is_plain(before) and type(now) is type(before) and repr(now) == repr(before))
