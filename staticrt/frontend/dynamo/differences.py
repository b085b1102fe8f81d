"""Code that Dynamo runs differently from Python: the order of sets, and of attributes that are deleted and set again;
generators; `max` and `min` of tensors; numpy arrays that are changed; formatted numbers; containers that methods refer to;
weak references that are made; numbers of numpy and of derived classes; protocols; checks of metaclasses; attributes of
classes; made classes; unpacked ranges.

A function that may depend on such a difference runs eagerly; the functions that it calls are compiled.
"""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import inspect
import itertools
import operator
import os
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from staticrt.frontend.guards.state_values import cell_content
from staticrt.frontend.reasons import is_user_file


class Differs(BaseException):
    """Dynamo compiles such a function. Not an `Exception`, so that torch does not catch it; the text is for `explain()`."""


class _Local(threading.local):
    refuses = False
    removes = False  # since it began to refuse, a member was taken out of a set


_local = _Local()
_POLYFILLS = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "polyfills") + os.sep
# Methods of sets that may remove members from the table, so that others are not at the positions of their hashes. The
# operators call these too; that of an intersection makes a new table.
_REMOVING = frozenset(
    {
        *("remove", "discard", "pop", "difference", "difference_update"),
        *("symmetric_difference", "symmetric_difference_update"),
    }
)
_IN_PLACE = frozenset(getattr(operator, f"i{name}") for name in (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift",
    "rshift",
))  # fmt: skip
_UNPACKED_CALL = dis.opmap["CALL_FUNCTION_EX"]
_CONTAINERS = (list, dict, set, collections.deque)
_CLASS_CHECKS = ("__instancecheck__", "__subclasscheck__")
# Builtins whose result does not depend on the order of a set.
_ANY_ORDER = ("call_sorted", "call_set", "call_frozenset")


@contextlib.contextmanager
def refused(may_split: bool) -> Iterator[None]:
    """Context manager: such a function raises `Differs` in this thread, unless Dynamo has to compile everything."""
    _patch()
    before = _local.refuses, _local.removes
    _local.refuses, _local.removes = may_split, False
    try:
        yield
    finally:
        _local.refuses, _local.removes = before


def of_graph(gm: torch.fx.GraphModule) -> str:
    """Why a graph of Dynamo has to run as it is; empty: it may be traced.

    Levels of forward-mode differentiation belong to the process, not to a thread: a trace that fails between the calls that
    begin and end one would leave it active. An autocast block inside one of another dtype reuses the outer block's casts of
    parameters, which AOTAutograd does not keep. Dynamo has run what sets a flag, so a trace would see no change.
    """
    dtypes = {torch.get_autocast_dtype("cpu")} if torch.is_autocast_enabled("cpu") else set()
    depth = 0
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", "")
        if name == "_enter_dual_level":
            return "forward-mode differentiation is not traced"
        if _sets_flag(node.target):
            return f"{name} sets a flag of the process"
        if name == "_enter_autocast":
            device, dtype, is_on, *_ = node.args
            depth += 1
            if device == "cpu" and is_on:
                dtypes.add(dtype or torch.get_autocast_dtype("cpu"))
            if len(dtypes) > 1:
                return "an autocast block within one of another dtype"
        if name == "_exit_autocast":
            depth -= 1
            dtypes = dtypes if depth or torch.is_autocast_enabled("cpu") else set()
    return ""


def _sets_flag(target: Any) -> bool:
    """Whether a function of torch that is no operator sets what outlasts the graph, other than what graphs reproduce."""
    name = str(getattr(target, "__name__", "")).lstrip("_")
    module = str(getattr(target, "__module__", None))
    return (
        name.startswith(("set_", "enable_", "allow_", "use_"))
        and (module == "torch" or module.startswith(("torch._C", "torch.backends")))
        and target not in (torch._C._set_grad_enabled, torch.set_default_dtype)
    )


@functools.cache
def _patch() -> None:
    """Patch Dynamo, once per process and permanently: it raises in threads inside `refused`."""
    from torch._dynamo import side_effects, symbolic_convert, variables
    from torch._dynamo.variables import builder, functions, lists

    sets: Any = variables.SetVariable  # type: ignore[attr-defined]
    for name in ("unpack_var_sequence", "tp_iter_impl"):
        if hasattr(sets, name):  # the second: torch 2.13 and later
            setattr(sets, name, _checked(getattr(sets, name), _iterates))
    sets.reconstruct = _checked(sets.reconstruct, _writes_back)
    sets.call_method = _checked(sets.call_method, _calls_method)
    for name in ("nb_subtract_impl", "nb_inplace_subtract_impl"):  # torch 2.13 and later: they call no method
        if hasattr(sets, name):
            setattr(sets, name, _checked(getattr(sets, name), _subtracts))
    for name in _ANY_ORDER:
        builtin: Any = variables.BuiltinVariable
        if hasattr(builtin, name):
            setattr(builtin, name, _unchecked(getattr(builtin, name)))
    translator: Any = symbolic_convert.InstructionTranslator
    for kind, name, check in (
        (getattr(variables, "FrozensetVariable", None), "reconstruct", _writes_back),
        (variables.BuiltinVariable, "_call_min_max_binary", _chooses),  # type: ignore[attr-defined]
        (variables.BuiltinVariable, "call_function", _changes_array),  # type: ignore[attr-defined]
        (variables.BuiltinVariable, "call_function", _formats),  # type: ignore[attr-defined]
        (translator, "_format_value", _shows),
        (variables.BuiltinVariable, "call_function", _computes),  # type: ignore[attr-defined]
        (functions.LocalGeneratorObjectVariable, "reconstruct", _drains),
        (functions.LocalGeneratorObjectVariable, "call_method", _throws),
        (getattr(lists, "CommonListMethodsVariable", None), "call_method", _extends),
        (translator, "replace_tos_if_return_is_generator", _drains),
        (functions.LocalGeneratorFunctionVariable, "call_function", _delegates),
        (functions.UserFunctionVariable, "bind_args", _copies),
        (variables.UserDefinedClassVariable, "call_function", _makes),  # type: ignore[attr-defined]
        (builder.VariableBuilder, "wrap_numpy_ndarray", _finds_number),
        (variables.BuiltinVariable, "call_function", _makes_class),  # type: ignore[attr-defined]
        (variables.BuiltinVariable, "call_isinstance", _asks_class),  # type: ignore[attr-defined]
        (variables.BuiltinVariable, "call_issubclass", _asks_class),  # type: ignore[attr-defined]
    ):
        if hasattr(kind, name):
            setattr(kind, name, _checked(getattr(kind, name), check))
    for kind in (translator, symbolic_convert.InliningInstructionTranslator):
        steps: Any = kind.dispatch_table
        steps[_UNPACKED_CALL] = _checked(steps[_UNPACKED_CALL], _unpacks)
    effects: Any = side_effects.SideEffects
    effects.store_attr = _checked(effects.store_attr, _stores)


def _checked(upstream: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(upstream)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _local.refuses:
            check(self, *args)
        return upstream(self, *args, **kwargs)

    return checked


def _unchecked(upstream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(upstream)
    def unchecked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = _local.refuses
        _local.refuses = False
        try:
            return upstream(self, *args, **kwargs)
        finally:
            _local.refuses = before

    return unchecked


def _iterates(members: Any, tx: Any, *_args: Any) -> None:
    """Dynamo iterates over a set in the order in which its members were added."""
    if members.python_type() not in (set, frozenset) or len(members.items) < 2:
        return
    if members.source is not None and not tx.output.side_effects.is_modified(members):
        return  # the members have the order of the set itself
    if tx.f_code.co_filename.startswith(_POLYFILLS):
        return  # makes another set
    _check_order(members)


def _extends(_items: Any, tx: Any, name: str, args: list[Any], *_rest: Any) -> None:
    """`list()` and `extend` of torch 2.13 read the members of a set without iterating over it."""
    from torch._dynamo.variables import SetVariable  # type: ignore[attr-defined]

    if name == "extend" and args and isinstance(args[0], SetVariable):
        _iterates(args[0], tx)


def _writes_back(members: Any, *_args: Any) -> None:
    """Dynamo makes a set, or updates the members of an existing one."""
    if members.python_type() not in (set, frozenset) or len(members.items) < 2:
        return
    if members.source is None:
        _check_order(members)
        return
    kept, now = set(members.original_items), set(members.items)
    if members.should_reconstruct_all or not kept <= now or len(now - kept) > 1:
        _check_order(members)


def _calls_method(_members: Any, _tx: Any, name: str, *_args: Any) -> None:
    _local.removes |= name in _REMOVING


def _subtracts(*_args: Any) -> None:
    _local.removes = True


def _check_order(members: Any) -> None:
    # It is unknown which members an existing set has lost.
    if members.source is not None or _local.removes or not _is_ordered([key.vt for key in members.items]):
        raise Differs("Dynamo keeps the members of a set in another order than Python")


def _chooses(_builtin: Any, _tx: Any, *values: Any) -> None:
    """Dynamo computes `max(a, b)`; Python returns one of the two tensors itself."""
    from torch._dynamo.variables import TensorVariable, UnspecializedPythonVariable  # type: ignore[attr-defined]

    if any(isinstance(v, TensorVariable) and not isinstance(v, UnspecializedPythonVariable) for v in values):
        raise Differs("Dynamo makes a new tensor where max() or min() chooses one")


def _value_of(variable: Any) -> Any:
    try:
        return getattr(variable, "value", None)
    except NotImplementedError:  # a list of what has none
        return None


def _changes_array(builtin: Any, _tx: Any, args: Any, *_rest: Any) -> None:
    """Dynamo computes `array += 1` on the array itself while it compiles, and again in the call."""
    if builtin.fn in _IN_PLACE and type(_value_of(args[0])).__name__ == "ndarray":
        raise Differs("Dynamo changes a numpy array while it compiles")


def _computes(builtin: Any, _tx: Any, args: Any, *_rest: Any) -> None:
    """Dynamo computes `number * tensor` without an operator that the number's class derives from that of `float`."""
    name = getattr(builtin.fn, "__name__", "").rstrip("_")
    if not hasattr(int, f"__{name}__"):
        return
    for kind in (type(_value_of(each)) for each in args):
        methods = [inspect.getattr_static(kind, f"__{side}{name}__", None) for side in ("", "r")]
        if issubclass(kind, (int, float, complex)) and any(type(m) is types.FunctionType for m in methods):
            raise Differs("Dynamo does not run the operators of a derived class of numbers")


def _formats(builtin: Any, _tx: Any, args: Any, *_rest: Any) -> None:
    """Dynamo returns the number for `format(n, "03d")`, and a symbolic one for `round(n, -1)`."""
    is_rounded = builtin.fn is round and type(args[0]).__name__ == "SymNodeVariable"
    if (builtin.fn is format or is_rounded) and len(args) > 1:
        raise Differs("Dynamo formats or rounds a number differently")


def _shows(tx: Any, *_args: Any) -> None:
    """Dynamo returns the number where it is the only part of a text, as in `f"{n:.2f}"`."""
    from torch._dynamo.variables import SymNodeVariable  # type: ignore[attr-defined]

    value = tx.stack[-1]
    if isinstance(value, SymNodeVariable) and value.python_type() is float:
        raise Differs("Dynamo formats a number differently")


def _drains(value: Any, *_args: Any) -> None:
    """Dynamo runs a generator to its end where it leaves the graph or the function returns it."""
    from torch._dynamo.variables.functions import LocalGeneratorObjectVariable

    value = value.stack[-1] if hasattr(value, "stack") else value
    if isinstance(value, LocalGeneratorObjectVariable):
        raise Differs("Dynamo exhausts a generator that eager leaves unfinished")


def _throws(_generator: Any, _tx: Any, name: str, *_args: Any) -> None:
    """Dynamo leaves the exception active where the generator catches it and goes on."""
    if name == "throw":
        raise Differs("Dynamo throws an exception into a generator differently")


def _delegates(function: Any, *_args: Any) -> None:
    """Dynamo calls a generator function, in which the value of `yield from` is None for Dynamo."""
    steps = list(dis.get_instructions(function.get_code()))
    places = {step.offset: index for index, step in enumerate(steps)}
    for ended in [places[step.argval] for step in steps if step.opname == "SEND"]:
        used = next(step.opname for step in steps[ended:] if step.opname not in ("END_SEND", "CACHE"))
        if used != "POP_TOP":
            raise Differs("Dynamo loses the result of `yield from`")


def _copies(function: Any, tx: Any, *_args: Any) -> None:
    """Dynamo copies what a function refers to if it found that function without a source, as a method of an object that
    the graph makes: what such a method changes in a container is lost."""
    source = function.get_source() if hasattr(function, "get_source") else function.source
    if source is not None or not is_user_file(function.fn.__code__.co_filename):
        return
    known = tx.output.side_effects
    held = [cell_content(cell) for cell in function.fn.__closure__ or () if cell not in known]
    held += [*(function.fn.__defaults__ or ()), *(function.fn.__kwdefaults__ or {}).values()]
    if any(isinstance(value, _CONTAINERS) for value in held):
        raise Differs("Dynamo copies a container that a method refers to")


def _makes(kind: Any, *_args: Any) -> None:
    """Dynamo makes an object without the `__call__` of its metaclass, and a weak reference that never ends."""
    if kind.value is weakref.ref:
        raise Differs("Dynamo keeps alive what a weak reference leads to")
    if hasattr(kind.value, "__del__"):
        raise Differs("Dynamo makes objects with a __del__ only while it compiles")
    call = inspect.getattr_static(type(kind.value), "__call__", None)
    if isinstance(call, types.FunctionType) and is_user_file(call.__code__.co_filename):
        raise Differs("Dynamo does not run the __call__ of a metaclass")


def _finds_number(_builder: Any, value: Any) -> None:
    """Dynamo takes a number of numpy for an array without dimensions, which is no `float` and promotes tensors."""
    if value.ndim == 0:
        raise Differs("Dynamo takes a number of numpy for an array")


def _makes_class(builtin: Any, _tx: Any, args: Any, *_rest: Any) -> None:
    """Dynamo calls `type(name, bases, attributes)` itself, so that all calls have one class."""
    if builtin.fn is type and len(args) == 3:
        raise Differs("Dynamo makes a class only while it compiles")


def _asks_class(_builtin: Any, _tx: Any, _value: Any, kind: Any, *_rest: Any) -> None:
    """Dynamo asks the class of an object whether it has the members of a protocol, not the object. It runs the
    `__instancecheck__` of a metaclass only while it compiles, or not at all."""
    kinds = [getattr(each, "value", None) for each in getattr(kind, "items", None) or [kind]]
    kinds += [each for union in kinds if isinstance(union, types.UnionType) for each in union.__args__]
    if any(getattr(each, "_is_protocol", False) for each in kinds):
        raise Differs("Dynamo does not look at an object for the members of a protocol")
    for each in kinds:
        asked = [inspect.getattr_static(type(each), name, None) for name in _CLASS_CHECKS]
        if any(
            isinstance(call, types.FunctionType) and is_user_file(call.__code__.co_filename) for call in asked
        ):
            raise Differs("Dynamo does not run the checks of a metaclass")


def _unpacks(tx: Any, *_args: Any) -> None:
    """Dynamo calls `f(*range(n))` with the start, stop and step."""
    from torch._dynamo.variables.lists import RangeVariable

    if any(isinstance(value, RangeVariable) for value in tx.stack[-2:]):
        raise Differs("Dynamo does not unpack a range among arguments")


def _is_ordered(members: list[Any]) -> bool:
    """Whether a set has its members in this order, independent of the order in which they were added.

    In a table of any size, each member is at the position of its hash. This holds for small integers in ascending order,
    and hardly ever for two strings.
    """
    if not all(member.is_python_constant() for member in members):
        return False
    hashes = [hash(member.as_python_constant()) for member in members]
    masks = [(1 << bits) - 1 for bits in range(3, 64) if 1 << bits > len(hashes)]
    places = ([value & mask for value in hashes] for mask in masks)
    return all(a < b for at in places for a, b in itertools.pairwise(at))


def _stores(effects: Any, item: Any, name: str, value: Any, *_args: Any) -> None:
    """Dynamo stores an attribute; one that was deleted gets its former position again, and derived classes do not see one of
    their base."""
    from torch._dynamo.variables import DeletedVariable, UserDefinedClassVariable  # type: ignore[attr-defined]

    if isinstance(item, UserDefinedClassVariable):
        raise Differs(f"{name!r} is stored in a class: Dynamo does not show it in derived classes")
    last = effects.store_attr_mutations.get(item, {}).get(name)
    if isinstance(last, DeletedVariable) and not isinstance(value, DeletedVariable):
        raise Differs(
            f"{name!r} is deleted and set again: Dynamo keeps its old position among the attributes"
        )
