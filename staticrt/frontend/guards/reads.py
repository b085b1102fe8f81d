"""What model code reads by name: globals, attributes of modules and classes, free variables, the environment.

A trace is valid while these are the same objects. They are found when a function of model code is first entered, before it
can change them, by the names in its code, which include all that it will read. Names that are computed while it runs are
reported by the builtins that look them up (`model_builtins.py`).
"""

from __future__ import annotations

import builtins
import copyreg
import dataclasses
import dis
import functools
import os
import sys
import types
from collections.abc import Callable, Set
from typing import Any

import torch

from staticrt.frontend.guards.code_objects import CodeSet, cached_by_code, takes_arguments, with_inner
from staticrt.frontend.guards.code_reads import (
    asked_globals,
    catches,
    global_names,
    imported_names,
    lists_attributes,
    written_free,
)
from staticrt.frontend.guards.effects import (
    ANSWERED,
    effect_of_partial,
    is_lock,
    is_own_random,
    library_module,
)
from staticrt.frontend.guards.global_locks import FIND_GLOBALS, global_locks
from staticrt.frontend.guards.late_effects import module_look_ups, names_modules
from staticrt.frontend.guards.special_names import names_of
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.state_values import cell_content
from staticrt.frontend.reasons import is_torch_file, is_trace_file, is_user_file
from staticrt.native import _C
from staticrt.torch_private import default_process_group

_MISSING = object()
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
LOOKS_UP_MODULE = "looks up a module by a name that it computes"
_SERIALIZATION = torch.serialization.__file__
_PROCESS_GROUPS = os.path.join("distributed", "distributed_c10d.py")
# Files of torch that run for a model as in eager; other files may run for the tracer.
_LAYERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), *parts)
    for parts in (("nn", ""), ("functional.py",), ("distributions", ""), ("_jit_internal.py",))
)


@cached_by_code
def returns_setting(code: types.CodeType) -> bool:
    """Whether a function of torch may return a setting: it has no parameters, or asks for a process group."""
    return is_torch_file(code.co_filename) and (
        not takes_arguments(code) or code.co_filename.endswith(_PROCESS_GROUPS)
    )


@functools.cache
def is_layer_file(filename: str) -> bool:
    """Whether a file of torch holds layers and what they call."""
    return filename.startswith(_LAYERS)


def looks_up_modules(frame: types.FrameType) -> bool:
    """Whether code that begins may read `sys.modules` by names that it computes."""
    names = names_of(frame.f_code)
    return "modules" in names and "sys" in names and not names_modules(frame.f_code)


@dataclasses.dataclass(frozen=True)
class ModuleIsThere:
    """Whether a module has been imported or can be found, as `import` finds it."""

    name: str

    def __call__(self) -> bool:
        if self.name in sys.modules:
            return sys.modules[self.name] is not None
        package = self.name.rpartition(".")[0]
        path = None
        if package:
            if not ModuleIsThere(package)():
                return False
            # Of a package that has not been imported, only an import tells.
            path = getattr(sys.modules.get(package), "__path__", None)
            if path is None:
                return package not in sys.modules
        finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
        return any(finder.find_spec(self.name, path) is not None for finder in finders)

    @property
    def __name__(self) -> str:
        return f"import {self.name}"


class Reads:
    """Adds to a snapshot what functions may read by name.

    Args:
        snapshot: gets it.
        refuse: called with a phrase and the frame where a trace cannot hold at all.
    """

    def __init__(self, snapshot: Snapshot, refuse: Callable[[str, types.FrameType], None]) -> None:
        self._snapshot = snapshot
        self._refuse = refuse
        self.is_new: Callable[[Any], bool] = lambda _value: False  # whether the run made an object
        self._codes = CodeSet()
        self._entered: dict[
            int, tuple[types.CodeType, set[int]]
        ] = {}  # with the ids of its functions' globals
        self._inner = CodeSet()  # codes of functions that functions which run make
        self._done: set[tuple[str, frozenset[str]]] = set()
        snapshot.names_are_told = snapshot.follows_code

    def enter(self, frame: types.FrameType) -> None:
        """A function of model code, or a layer of torch, begins."""
        code = frame.f_code
        if code.co_filename.startswith("<eval_with_key>"):  # a graph: Dynamo guards what else it reads
            self._snapshot.add_names(names_of(code))
            return
        if not self._snapshot.follows_code:
            return
        is_model = not is_torch_file(code.co_filename)
        if is_model and code.co_argcount:
            self._first_argument(frame, frame.f_locals.get(code.co_varnames[0], _MISSING))
        scope = frame.f_globals
        if id(scope) in (entered := self._entered.setdefault(id(code), (code, set()))[1]):
            return
        entered.add(id(scope))
        names = names_of(code)
        if lists_attributes(code, is_model):
            self._snapshot.lists_attributes = True
            if is_model:
                self._snapshot.list_classes()
        self._snapshot.catches |= is_model and catches(code)
        (self._snapshot.add_model_names if is_model else self._snapshot.add_names)(names)
        if code not in self._inner and (function := _C.function_of(frame)) is not None:
            self._snapshot.add_function(function)
        self._inner.update(value for value in code.co_consts if isinstance(value, types.CodeType))
        # Not what code names as attributes only: a script's loop gives `x` and `data` new values in each call.
        wanted = names if names & FIND_GLOBALS else global_names(code)
        locks = global_locks(frame)
        for name in wanted & scope.keys():
            self._global(scope, name, names, frame if is_model else None, name in locks)
        self._builtins(scope, wanted)
        if not is_model:
            return
        for name in code.co_freevars:
            if not _is_local(frame, name):
                self._free(frame, name, names)
        self._tables(names)
        imported = names & sys.modules.keys()
        if imported and _IMPORT_NAME in code.co_code[::2]:
            self._snapshot.add_scope(sys.modules, imported)
        for name in imported:
            self._module(sys.modules[name], names, frame)
        if (hidden := self._snapshot.hidden_read()) is not None:
            self._refuse(f"may use {hidden}, whose state and effects no guard sees", frame)
        if looks_up_modules(frame) and module_look_ups(code) is None:
            self._refuse(LOOKS_UP_MODULE, frame)

    def library(self, frame: types.FrameType) -> None:
        """A function of Python's library runs for the model: it reads its arguments and the state of its module."""
        code = frame.f_code
        if not self._snapshot.follows_code or code in self._codes:
            return
        self._codes.add(code)
        names = names_of(code)
        self._snapshot.lists_attributes |= lists_attributes(code, is_model=False)
        self._snapshot.add_names(names)
        self._snapshot.add_numbers(frame.f_globals, names)
        self._tables(names)

    def setting(self, frame: types.FrameType) -> None:
        """Model code calls a function of torch that may return a setting: the variables that it reads, and what it asks C for."""
        code, scope = frame.f_code, frame.f_globals
        if not self._snapshot.follows_code or code in self._codes:
            return
        self._codes.add(code)
        if code.co_filename.endswith(_PROCESS_GROUPS):
            self._snapshot.add_answer(default_process_group)
            return
        if code.co_filename == _SERIALIZATION and (function := _C.function_of(frame)) is not None:
            self._snapshot.add_answer(function)  # of a module of settings that it imports
            return
        found = {name: scope[name] for name in global_names(code) & scope.keys()}
        self._snapshot.add_scope(scope, [name for name, value in found.items() if not callable(value)])
        for module in (value for value in found.values() if isinstance(value, types.ModuleType)):
            for asked in (vars(module).get(name) for name in code.co_names):
                if asked is not None and asked in ANSWERED:
                    self._snapshot.add_answer(asked)

    def function(self, function: types.FunctionType) -> None:
        """Add what a function that does not run now would read by name."""
        names: set[str] = set()
        global_ones: set[str] = set()
        imports: set[str] = set()
        for code in with_inner(function.__code__):
            names |= names_of(code)
            global_ones |= global_names(code)
            imports |= imported_names(code)
            # What it computes with `getattr` is not told.
            self._snapshot.lists_attributes |= lists_attributes(code, is_model=False)
        scope, filename = function.__globals__, function.__code__.co_filename
        if is_user_file(filename):
            self._snapshot.add_model_names(names)
            wanted = names if names & FIND_GLOBALS else global_ones
            self._builtins(scope, wanted)
            for name in wanted & scope.keys():
                self._global(scope, name, frozenset(names), None)
            imported = names & sys.modules.keys()
            self._snapshot.add_scope(sys.modules, imported)
            for name in imports:
                self.looks_for(name)
            for name in imported - scope.keys():
                self._module(sys.modules[name], frozenset(names), None)
            held = [cell_content(cell) for cell in function.__closure__ or ()]
            for module in (value for value in held if isinstance(value, types.ModuleType)):
                self._module(module, frozenset(names), None)
            if not names.isdisjoint(("isinstance", "issubclass")):
                self._snapshot.add_virtual_subclasses()
        elif library_module(filename):
            self._snapshot.add_names(names)
            self._snapshot.add_numbers(scope, frozenset(names))
            for called in (scope[name] for name in global_ones & scope.keys()):
                if isinstance(called, types.FunctionType) and library_module(called.__code__.co_filename):
                    self._snapshot.add_function(called)
        self._tables(names)

    def _builtins(self, scope: dict[str, Any], names: Set[str]) -> None:
        absent = names - scope.keys()
        if absent:
            self._snapshot.add_scope(scope, absent)
            self._snapshot.add_scope(vars(builtins), absent)

    def _tables(self, names: Set[str]) -> None:
        """Dicts of the process that code reads by any key."""
        if "environ" in names or "getenv" in names:
            self._snapshot.add("os.environ", getattr(os.environ, "_data", None))
        if "dispatch_table" in names:  # which `copy` looks classes up in
            self._snapshot.add("copyreg.dispatch_table", copyreg.dispatch_table)

    def imports(self, name: str, frame: types.FrameType) -> None:
        """Model code imports a module by a name that it may have computed."""
        if sys.modules.get(name) is not None:
            self._snapshot.add_scope(sys.modules, (name,))
            self._module(sys.modules[name], frozenset(self._snapshot.read_names), frame)

    def looks_for(self, name: str) -> None:
        """Model code imports a module that has not been imported, or asks whether it is there."""
        if self._snapshot.follows_code:
            self._snapshot.add_answer(ModuleIsThere(name))

    def _first_argument(self, frame: types.FrameType, first: Any) -> None:
        """Add the class of a method's first argument, of which it most likely is a function."""
        owner = first if isinstance(first, type) else type(first)
        if first is _MISSING or issubclass(owner, torch.Tensor):
            return
        self._snapshot.add_class(owner)
        attributes = _C.attributes_of(first) or {}
        for name in names_of(frame.f_code) & attributes.keys():
            self._check_value(attributes[name], name, frame)

    def _global(
        self,
        scope: dict[str, Any],
        name: str,
        names: frozenset[str],
        frame: types.FrameType | None,
        is_watched: bool = False,
    ) -> None:
        """A name in a module; `is_watched`: a lock that ends the trace when the code reads it."""
        value = scope[name]
        is_module = isinstance(value, types.ModuleType)
        if name.startswith("__") and not (
            is_module or isinstance(value, str)
        ):  # `torch.__future__`, `__version__`
            return
        if not is_watched:
            self._check_value(value, name, frame)
        is_only_asked = (
            frame is not None
            and type(value) is set
            and name in asked_globals(frame.f_code)
            and names.isdisjoint(FIND_GLOBALS)
        )
        self._snapshot.add_scope(scope, (name,), is_only_asked)
        if is_module:
            self._module(value, names, frame)

    def _free(self, frame: types.FrameType, name: str, names: frozenset[str]) -> None:
        value = frame.f_locals.get(name, _MISSING)
        if self.is_new(value):
            return  # a later call makes its own
        self._check_value(value, name, frame)
        if isinstance(value, types.ModuleType):
            self._module(value, names, frame)
        elif value is not _MISSING:
            self._snapshot.add(name, value)
        if name in written_free(frame.f_code):
            self._refuse(f"writes the variable {name!r} of a function that has returned", frame)

    def _module(self, module: Any, names: frozenset[str], frame: types.FrameType | None) -> None:
        """Names of a module, and of those in it."""
        if not isinstance(module, types.ModuleType):
            return  # `sys.modules` may hold None or any other object
        if (module.__name__, names) in self._done:
            return
        self._done.add((module.__name__, names))
        if module.__name__.partition(".")[0] == "numpy":
            self._snapshot.add_numpy()
        scope = vars(module)
        for name in names & scope.keys():
            self._global(scope, name, names, frame)
        if type(module) is not types.ModuleType:
            self._snapshot.add_class(type(module))
        elif is_user_file(str(scope.get("__file__") or "<none>")):
            self._snapshot.add_scope(scope, names - scope.keys())

    def _check_value(self, value: Any, name: str, frame: types.FrameType | None) -> None:
        self._snapshot.may_draw |= is_own_random(value)
        if frame is None:
            return
        if hasattr(type(value), "__next__") and not isinstance(value, type):
            self._refuse(f"reads the iterator {name!r}", frame)
        if is_lock(value):
            self._refuse(f"uses the lock {name!r}", frame)
        effect = effect_of_partial(value)
        if effect is not None:
            self._refuse(effect, frame)


def _is_local(frame: types.FrameType, name: str) -> bool:
    """Whether a free variable belongs to a function of the model that is running."""
    outer = frame.f_back
    while outer is not None and not is_trace_file(outer.f_code.co_filename):
        if name in outer.f_code.co_cellvars and any(
            each is frame.f_code for each in with_inner(outer.f_code)
        ):
            return True
        outer = outer.f_back
    return False
