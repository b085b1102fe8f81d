"""Which calls have effects that a graph does not replay.

C functions are judged by their module and name, once each. Python's own library is judged by what it calls in C, and a
few of its modules, which have their effects in Python, as a whole.
"""

from __future__ import annotations

import _thread
import abc
import datetime
import dis
import functools
import inspect
import logging
import operator
import os
import random
import sys
import threading
import types
import warnings
import weakref
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from staticrt.frontend.tracing import autocast
from staticrt.native import _C
from staticrt.torch_private import saved_tensors_hooks_are_enabled, settings_of_torch

_PURE = _C.CallWatcher.PURE
_EFFECT = _C.CallWatcher.EFFECT
_LOUD = _C.CallWatcher.LOUD_EFFECT

_BUILTINS = frozenset({"print", "input", "open", "breakpoint", "exec", "__import__"})
# Functions that Dynamo runs only while it compiles, or runs differently: it does not move an item of a dict to the end,
# and takes the item that was the last, or the first, when it compiled.
MISSED_BY_DYNAMO = frozenset({
    "putenv", "unsetenv", "getrecursionlimit", "getswitchinterval", "__subclasses__", "cache_info", "locked",
    "move_to_end", "popitem", "is_inference_mode_enabled", "is_autocast_cache_enabled", "find_spec",
    "set_int_max_str_digits", "get_int_max_str_digits", "exc_info", "exception",
})  # fmt: skip
_LOUD_NAMES = frozenset({"print", "input", "open", "breakpoint"})
# C modules whose functions have effects or return state that no guard compares; of some, all but the named functions.
_IMPURE_MODULES = (
    "_random", "_socket", "_queue", "_asyncio", "_posixsubprocess", "_multiprocessing", "_posixshmem",
    "select", "_signal", "fcntl", "mmap", "atexit", "syslog", "readline", "termios", "resource", "_ctypes",
    "_tracemalloc", "faulthandler", "_uuid", "_ssl", "_curses", "_winapi", "msvcrt", "_warnings", "_sqlite3",
    "_dbm", "_gdbm", "grp", "pwd",
)  # fmt: skip
_MODULES: dict[str, frozenset[str]] = {
    "time": frozenset({"get_clock_info"}),  # of the others, each may read the clock or the time zone
    "posix": frozenset({"fspath", "uname", "cpu_count", "sysconf", "strerror"}),
    "nt": frozenset({"fspath", "cpu_count", "strerror", "_path_splitroot"}),
    "_thread": frozenset({"allocate_lock", "allocate", "RLock", "_set_sentinel"}),
    "_io": frozenset({"text_encoding"}),
    "io": frozenset({"text_encoding"}),
    **dict.fromkeys(_IMPURE_MODULES, frozenset()),
}
# Single functions of modules that are else pure.
_FUNCTIONS = frozenset({
    "sys.settrace", "sys.setprofile", "sys.setrecursionlimit", "sys.setswitchinterval", "sys.addaudithook",
    "sys.set_int_max_str_digits", "sys.displayhook", "sys.excepthook", "sys.getrecursionlimit",
    "sys.getswitchinterval", "sys.exc_info", "sys.exception", "sys.gettrace", "sys.getprofile",
    "sys.getrefcount", "sys.getallocatedblocks",
    "sys._current_frames", "sys.get_int_max_str_digits", "gc.isenabled", "gc.get_count", "gc.get_stats",
    "gc.get_threshold", "gc.get_objects", "gc.get_referrers", "_decimal.getcontext", "_decimal.setcontext",
    "_locale.localeconv", "_weakref.getweakrefcount", "gc.collect", "gc.enable", "gc.disable",
    "gc.set_threshold", "_csv.field_size_limit", "_contextvars.copy_context", "gc.freeze", "gc.unfreeze", "torch._C._to_dlpack", "torch._C._to_dlpack_versioned",
    "_pickle.dump", "_pickle.load", "marshal.dump", "marshal.load", "_locale.setlocale",
    "torch.is_inference_mode_enabled", "torch.is_autocast_cache_enabled",  # off while a model is traced
})  # fmt: skip
# Beginnings of the names of classes whose methods have effects.
_TYPES = (
    "numpy.random.", "_random.Random", "random.Random", "_io.", "_contextvars.ContextVar",
    "torch._C.Generator", "torch.Generator", "_queue.", "_socket.", "_csv.", "sqlite3.", "mmap.", "select.",
    "_thread.lock", "_thread.RLock", "_hashlib.", "_blake2.", "_md5.", "_sha", "zlib.", "_bz2.", "_lzma.",
)  # fmt: skip
# Methods of other classes that return state that no guard compares.
_CACHES = "functools._lru_cache_wrapper"
_METHODS = frozenset({"type.__subclasses__", f"{_CACHES}.cache_info", f"{_CACHES}.cache_clear"})
# Functions without arguments and effects: their answers are compared in each call, by value.
ANSWERED: tuple[Any, ...] = (
    *(os.getcwd, os.getpid, _thread.get_ident, _thread.get_native_id, abc.get_cache_token),
    *settings_of_torch(),
)
_LOCKS: tuple[type, ...] = (
    *(_thread.LockType, _thread.RLock, threading.Condition),
    *(threading.Semaphore, threading.Event, threading.Barrier),
)
# Callables whose calls a profiler sees, or that only call functions that it sees.
_TOLD_TYPES = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.MethodDescriptorType, type),
    *(types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType),
    *(staticmethod, classmethod, functools.partial, type(functools.cache(len)), abc.ABCMeta),
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
)
_hidden_names: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()
_opaque: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
# Classes of C whose objects cannot change, or are compared.
_KNOWN_PACKAGES = frozenset({
    "builtins", "types", "typing", "functools", "collections", "operator", "re", "weakref", "datetime", "array",
    "threading", "torch", "numpy", "staticrt", "_abc", "_collections", "_ctypes", "_json", "_random", "_struct", "_thread",
})  # fmt: skip
_KNOWN_TYPES = frozenset({"decimal.Decimal", "zoneinfo.ZoneInfo", "_contextvars.ContextVar"})
# The others depend on the time zone.
_CLOCKS = frozenset({"now", "today", "utcnow", "fromtimestamp", "astimezone", "timestamp"})
_TENSOR_ESCAPES = frozenset({
    "numpy", "tolist", "data_ptr", "__array__", "storage", "untyped_storage", "storage_offset", "__dlpack__",
    "apply_", "map_", "map2_",
})  # fmt: skip
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
# Modules of Python's library whose functions have effects without calling a C function.
_LIBRARY_MODULES = frozenset({
    "queue", "subprocess", "sched", "socket", "ssl", "smtplib", "ftplib", "shelve", "webbrowser", "getpass",
    "pdb", "bdb", "code", "codeop", "cmd", "timeit", "runpy", "tempfile", "shutil", "fileinput",
    "tracemalloc", "cProfile", "profile", "secrets", "signal", "threading", "socketserver", "selectors",
    "mailbox", "trace", "concurrent", "multiprocessing", "asyncio", "http", "urllib", "sqlite3", "dbm",
    "logging", "ctypes",
})  # fmt: skip
# What those modules do without an effect.
_QUIET = {
    "threading": frozenset(
        {
            *("current_thread", "main_thread", "get_ident", "__init__", "__enter__", "__exit__", "_is_owned"),
            *("RLock", "Lock", "Condition", "_newname", "__hash__", "local"),
        }
    ),
    "logging": frozenset(),  # only what is listed below
    "urllib": frozenset(
        {
            *("urlparse", "urlsplit", "urljoin", "quote", "unquote", "quote_plus", "urlencode", "urlunparse"),
            *("_coerce_args", "_noop", "_splitnetloc", "_checknetloc", "_splitparams", "urlunsplit"),
        }
    ),
    "ctypes": frozenset({"__init__", "cast"}),
    "signal": frozenset({"_int_to_enum", "_enum_to_int"}),
    "shutil": frozenset({"get_terminal_size"}),
    "tempfile": frozenset({"gettempdir", "_gettempdir"}),
    "codeop": frozenset(),
}
_LOGGING = frozenset({"_log", "handle", "callHandlers", "setLevel", "addHandler", "removeHandler"})


@functools.cache
def library_module(filename: str) -> str | None:
    """The top-level module of Python's library that a file belongs to; None for other files."""
    if filename.startswith("<frozen "):
        return filename[len("<frozen ") : -1].partition(".")[0]
    path = os.path.abspath(filename)
    if not path.startswith(_LIBRARY) or f"{os.sep}site-packages{os.sep}" in path:
        return None
    return path[len(_LIBRARY) :].partition(os.sep)[0].removesuffix(".py")


def library_effect(module: str, function: str) -> str | None:
    """What a Python function of Python's own library does besides computing, or None."""
    if module not in _LIBRARY_MODULES or function in _QUIET.get(module, ()):
        return None
    if module == "logging" and function not in _LOGGING:
        return None
    if function.startswith("<"):  # the body of the module, or a comprehension in it
        return None
    return f"calls {module}.{function}()"


def looks_at_types(module: str, function: str) -> bool:
    """Whether a function of Python's library treats symbolic numbers differently from numbers, in C or by their classes."""
    return module == "json" or (module == "functools" and function in ("wrapper", "_method"))


LAZY = "initialises a lazy module"
READS_SEED = (
    "calls initial_seed()"  # a number that Dynamo takes for a constant, beside state that it does not guard
)
SETS_DETERMINISM = "calls use_deterministic_algorithms()"  # whose check Dynamo makes a constant
CHANGES_GRADIENTS = "changes gradients"  # a step may, whose graph gives new ones
REGISTERS_HOOK = "registers a hook on a tensor"  # that it holds; those that it makes are gone with the call


@functools.cache
def torch_effects() -> dict[int, str]:
    """Functions of torch that change the process's state, or return what only eager knows, and one of `logging` that shares
    its name with a property; by the ids of their code."""
    functions = (
        torch.manual_seed, torch.seed, torch.random.set_rng_state, torch.random.get_rng_state,
        torch.random.initial_seed, torch.random.fork_rng, torch.set_default_dtype, torch.set_default_device,
        torch.use_deterministic_algorithms, torch.save, torch.load, logging.disable,
    )  # fmt: skip
    found = {id(inspect.unwrap(each).__code__): f"calls {each.__name__}()" for each in functions}
    text = "reads a tensor's text"
    tensor: Any = torch.Tensor
    found.update({id(inspect.unwrap(tensor.__repr__).__code__): text, id(tensor.__format__.__code__): text})
    found[id(tensor.__reduce_ex__.__code__)] = "pickles a tensor"
    found[id(inspect.unwrap(tensor.__dlpack__).__code__)] = "hands on a tensor's memory"
    utils = torch.nn.utils
    changing = (
        *(torch.nn.Module.zero_grad, torch.optim.Optimizer.zero_grad),
        *(utils.clip_grad_norm_, utils.clip_grads_with_norm_, utils.clip_grad_value_),
    )
    found.update((id(inspect.unwrap(each).__code__), CHANGES_GRADIENTS) for each in changing)
    hooking = (tensor.register_hook, tensor.register_post_accumulate_grad_hook)
    found.update((id(inspect.unwrap(each).__code__), REGISTERS_HOOK) for each in hooking)
    found[id(vars(LazyModuleMixin)["_infer_parameters"].__code__)] = LAZY
    return found


def effect_of(function: Any) -> str | None:
    """What a C function does besides computing, or None."""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    if function is saved_tensors_hooks_are_enabled:  # not while a backward is traced
        return f"calls {name}()"
    if isinstance(owner, types.ModuleType) or owner is None:
        module = str(getattr(function, "__module__", None) or getattr(owner, "__name__", ""))
        if module == "builtins":
            return f"calls {name}()" if name in _BUILTINS else None
        pure = _MODULES.get(module)
        if f"{module}.{name}" in _FUNCTIONS or (pure is not None and name not in pure):
            return f"calls {module}.{name}()"
        return None
    if isinstance(owner, torch.Tensor):
        return f"calls Tensor.{name}()" if name in _TENSOR_ESCAPES else None
    kind = owner if isinstance(owner, type) else type(owner)
    full = f"{kind.__module__}.{kind.__qualname__}"
    if f"{type(owner).__module__}.{type(owner).__qualname__}.{name}".removeprefix("builtins.") in _METHODS:
        return f"calls {full}.{name}()"
    if isinstance(owner, torch._C.Generator):
        return f"calls Generator.{name}()"
    if issubclass(kind, (datetime.date, datetime.time)):
        return f"calls {full}.{name}()" if name in _CLOCKS else None
    if any(f"{each.__module__}.{each.__qualname__}".startswith(_TYPES) for each in kind.__mro__):
        return f"calls {full}.{name}()"
    return None


def effect_of_partial(value: Any) -> str | None:
    """What the C function in a `functools.partial` does besides computing: C calls it, which no profiler sees."""
    if not isinstance(value, functools.partial):
        return None
    while isinstance(value, functools.partial):
        value = value.func
    return effect_of(value) if isinstance(value, types.BuiltinFunctionType) else None


def effect_handed_on(frame: types.FrameType) -> str | None:
    """An effect of a C function that code loads without calling it, as in `partial(print)()`; from Python 3.11 on."""
    names = frame.f_code.co_names
    found = {name: frame.f_globals.get(name, frame.f_builtins.get(name)) for name in names}
    modules = [value for value in found.values() if isinstance(value, types.ModuleType)]
    found.update((name, vars(module)[name]) for module in modules for name in names if name in vars(module))
    effects = {
        name: effect
        for name, value in found.items()
        if isinstance(value, types.BuiltinFunctionType) and (effect := effect_of(value)) is not None
    }
    if not effects or sys.version_info < (3, 11):
        return None
    instructions = list(dis.get_instructions(frame.f_code))
    for index, instruction in enumerate(instructions):
        loads = instruction.opname in ("LOAD_GLOBAL", "LOAD_ATTR") and instruction.argval in effects
        if loads and not _is_called(instructions, index):
            return effects[instruction.argval].replace("calls ", "hands on ")
    return None


def _is_called(instructions: list[dis.Instruction], index: int) -> bool:
    """Whether an instruction loads what a call needs: a null beside the function, pushed before or after it."""
    first = index
    while instructions[first].opname == "LOAD_ATTR":
        first -= 1
    beside = (instructions[max(0, first - 1)], instructions[index + 1])
    pushed = any("NULL" in each.argrepr for each in instructions[first : index + 1])
    return pushed or any(each.opname == "PUSH_NULL" for each in beside)


def is_lock(value: Any) -> bool:
    """Whether a value is a lock or the like. Graphs take no locks, and profilers do not see that `with` takes one."""
    return isinstance(value, _LOCKS)


def missed_by_dynamo(function: Any) -> bool:
    """Whether a C function in code that Dynamo splits has its effect less often than in eager."""
    return (
        is_own_random(getattr(function, "__self__", None))
        or getattr(function, "__name__", "") in MISSED_BY_DYNAMO
    )


def is_own_random(value: Any) -> bool:
    """Whether a value draws numbers that are not those of the module `random`."""
    return isinstance(value, random.Random) and value is not random._inst  # type: ignore[attr-defined]


def is_hidden(function: Any) -> bool:
    """Whether profilers do not see a function's calls, as with functions of Cython and nanobind."""
    kind = type(function)
    if not callable(function) or kind in _TOLD_TYPES or kind.__module__ == "numpy":  # its ufuncs only compute
        return False
    return not inspect.isfunction(kind.__call__)


def hidden_names(kind: type) -> frozenset[str]:
    """The names of a class's hidden methods, and of the attributes beside them."""
    found = _hidden_names.get(kind)
    if found is None:
        classes = [
            each for each in kind.__mro__ if each.__module__.partition(".")[0] not in ("builtins", "torch")
        ]
        opaque = [each for each in classes if any(is_hidden(value) for value in vars(each).values())]
        found = frozenset(
            name
            for each in opaque
            for name, value in vars(each).items()
            if not name.startswith("__") and (is_hidden(value) or inspect.isgetsetdescriptor(value))
        )
        _hidden_names[kind] = found
    return found


def is_opaque(kind: type) -> bool:
    """Whether only C code knows what a class's objects hold, which may change while no guard sees it."""
    found = _opaque.get(kind)
    if found is None:
        base = next(each for each in kind.__mro__ if _package(each) in _KNOWN_PACKAGES or _is_of_c(each))
        is_known = _package(base) in _KNOWN_PACKAGES or f"{base.__module__}.{base.__name__}" in _KNOWN_TYPES
        is_known |= "function_record" in base.__name__  # of a function that was made with pybind11
        is_iterator = isinstance(getattr(kind, "__next__", None), types.WrapperDescriptorType)
        found = _opaque[kind] = is_iterator or kind is types.CellType or not is_known
    return found


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_of_c(kind: type) -> bool:
    methods = (types.WrapperDescriptorType, types.MethodDescriptorType)
    return any(isinstance(each, methods) and each.__objclass__ is kind for each in vars(kind).values())


def judge(function: Any) -> int:
    """How a watcher treats a C function; of methods, what holds for their class's other objects too."""
    if function is torch.get_num_threads or function in ANSWERED:
        return int(_EFFECT)  # no effect: its answer is guarded
    if function in autocast.SETTERS:
        return int(_C.CallWatcher.TOLD)
    if effect_of(function) is None:
        return int(_PURE)
    owner = getattr(function, "__self__", None)
    if function is warnings.warn or (
        getattr(owner, "__name__", "") in ("builtins", "_io", "io") and function.__name__ in _LOUD_NAMES
    ):
        return int(_EFFECT | _LOUD)
    return int(_EFFECT)
