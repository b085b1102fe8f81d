"""The Python state that a trace may depend on: attributes, classes, functions, containers, closures, globals.

`Walk` follows references from a model's roots and makes a record of each object that can change.
"""

from __future__ import annotations

import array
import gc
import logging
import re
import sys
import threading
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import torch

from staticrt import tuning
from staticrt.frontend.guards.answers import Answers
from staticrt.frontend.guards.caches import CacheRecord, holds_fakes, is_recorded
from staticrt.frontend.guards.decimal_context import is_decimal
from staticrt.frontend.guards.effects import hidden_names, is_hidden, is_opaque, is_own_random
from staticrt.frontend.guards.object_records import (
    ClassRecord,
    FunctionRecord,
    MembersRecord,
    ObjectRecord,
    slots_record,
)
from staticrt.frontend.guards.reachable import Reachable
from staticrt.frontend.guards.records import (
    CellRecord,
    DictRecord,
    ListRecord,
    LoggerRecord,
    ScopeRecord,
    holds_identities,
    logger_records,
)
from staticrt.frontend.guards.replaceable import ReplaceableContainers
from staticrt.frontend.guards.special_names import SPECIAL_NAMES
from staticrt.frontend.guards.state_leaves import HEAP_TYPE, is_leaf, is_read_by_name
from staticrt.frontend.guards.state_values import has_bytes_of_ctypes, is_numpy_array, slots_of
from staticrt.frontend.guards.tensor_memory import TensorMemory, gradient_of
from staticrt.frontend.guards.value_records import BufferRecord, FactsRecord, TensorRecord
from staticrt.frontend.guards.weak_references import WeakReferences
from staticrt.frontend.reasons import is_torch_file
from staticrt.native import _C

_PLAIN_DICTS = frozenset({dict, OrderedDict})
_PLAIN_LISTS = frozenset({list, tuple, set, frozenset, deque})
_DICTS: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
_VIEWS_OF_DICTS: tuple[type, ...] = (
    *(type(view) for made in _DICTS for view in (made.keys(), made.values(), made.items())),
    types.MappingProxyType,
)
_ASK_BY_NAME = frozenset({getattr, hasattr, vars, dir})
# Packages whose objects are not state of a model.
_SYSTEM = frozenset({"logging", "threading", "_thread", "concurrent", "typing", "typing_extensions", "sympy"})


class Walk(Answers):
    """Finds everything mutable that is reachable from some roots, and makes a record of each.

    Of a class it records the attributes that the code names. `add_names` adds these names while the code runs; they
    include all that the code will read.

    Args:
        roots: (name, object) pairs; modules, functions (their closures and defaults), containers, plain objects.
        follows_code: what the code reads by name is added; False: Dynamo guards it.
        leaves_out: whether others guard an object.
    """

    def __init__(
        self,
        roots: Iterable[tuple[str, Any]] = (),
        follows_code: bool = True,
        leaves_out: Callable[[Any], bool] = lambda value: False,
    ) -> None:
        super().__init__()
        self._leaves_out = leaves_out
        self._seen: set[int] = set()
        self._scopes: dict[int, ScopeRecord] = {}  # by the id of the dict
        self._classes: dict[type, ClassRecord] = {}
        self._functions: set[int] = set()
        self._attributes: dict[int, DictRecord] = {}  # of objects, by the id of the dict
        self._containers = ReplaceableContainers()
        self._reachable = Reachable()
        self._found_by_name: list[tuple[str, Any]] = []  # values of attributes, to be walked
        self._held_by: dict[int, int] = {}  # id of a record -> that of the object that it was made for
        self._modules: list[types.ModuleType] = []  # that objects of the model hold
        self._tensors: list[torch.Tensor] = []
        self._loggers: list[LoggerRecord] = []
        self._hidden: dict[str, set[str]] = {}  # class -> see `hidden_names`
        self._hidden_method: str | None = None  # bound, so that code may call it by any name
        self._weak = WeakReferences()
        self.caches: list[CacheRecord] = []
        self._lists_classes = False
        self._reads_modules = False  # code reads `sys.modules` by names
        self._opaque: list[str] = []  # paths of iterators and other objects whose state C alone knows
        self._memory = TensorMemory()
        self.gradients: dict[int, torch.Tensor | None] = {}  # of tensors when they were met, by id
        self.may_draw = False  # from a `random.Random` of its own
        self.read_names: set[str] = set(SPECIAL_NAMES)  # what the code that ran may read by name
        self.model_names: set[str] = set()  # those in the model's own code
        self.compared_tensors: set[int] = set()  # ids of those whose layout the graph's inputs tell
        self.cached_functions: dict[int, tuple[types.CodeType, str]] = {}  # by id; the caches' names
        self.facts: set[str] = set()  # what model code may ask of tensors: names of `FactsRecord`
        self.alive: list[Any] = []
        self._arguments: dict[str, int] = {}  # path of a leaf -> its index
        self.complete = True
        self.follows_code = follows_code
        self.names_are_told = False  # by `Reads`: those of all code that runs
        self.lists_attributes = False  # code may read attributes that it does not name
        self.gets_classes = False  # it holds an `attrgetter` of `__class__`
        self.catches = False  # the model's code may go on after an error
        self.add_class(torch.nn.Parameter)  # a tensor's methods and operators
        for name, root in roots:
            self.add(name, root)

    def add(self, name: str, root: Any) -> None:
        """Walk one more root."""
        queue: deque[tuple[str, Any]] = deque([(name, root)])
        self._reachable.add_root(root)
        while queue:
            path, value = queue.popleft()
            if (record := self._attributes.get(id(value))) is not None:
                record.is_attributes = False  # held as a dict, whose keys code may list
                self._reachable.add(value, value.values())
            if value is sys.modules and not self._reads_modules:
                # Imports add to it at any time, also in other threads, so only names in code are compared.
                self._reads_modules = True
                self.add_scope(sys.modules, self.read_names)
            if is_leaf(value) or id(value) in self._seen or value is sys.modules or _is_of_torch(value):
                self._containers.keep(value)
                continue
            if len(self._seen) > tuning.MAX_GUARDED_CONTAINERS:
                self.complete = False
                return
            self._remember(value)
            first = len(self._records)
            if is_decimal(value):
                self.add_decimals()
            if isinstance(value, type):
                self.add_class(value)
            elif isinstance(value, torch.Tensor):
                self._tensors.append(value)
                self._memory.add(value)
                self.gradients[id(value)] = gradient_of(value)
                self._records.append(TensorRecord(path, value, self.read_names, self.compared_tensors))
            else:
                found = list(self._reached(path, value))
                self._reachable.add(value, [item for _path, item in found])
                queue.extend((*found, *self._found_by_name))
                self._found_by_name = []
            for each in self._records[first:]:
                if hasattr(each, "path"):
                    self._held_by.setdefault(id(each), id(value))

    def add_arguments(self, leaves: Sequence[Any]) -> None:
        """Walk the arguments of a call that are neither tensors nor values: objects guarded by identity."""
        for index, leaf in enumerate(leaves):
            if not is_leaf(leaf) and not isinstance(leaf, torch.Tensor):
                self._arguments[f"argument {index}"] = index
                self.add(f"argument {index}", leaf)
        # A trace does not keep its arguments alive: its executor forgets it when they go.
        arguments = set(map(id, leaves))
        self.alive = [value for value in self.alive if id(value) not in arguments]

    def add_model_names(self, names: Iterable[str]) -> None:
        """As `add_names`, by the model's own code."""
        names = frozenset(names)
        if "data" in names and "data" not in self.model_names:
            self._memory.keep(self._tensors)
        self.model_names |= names
        self.facts |= FactsRecord.NAMES & names
        self.add_names(names)

    def add_names(self, names: Iterable[str]) -> None:
        """Code that runs may read these names, of any object."""
        new = {*names} - self.read_names
        if "requires_grad_" in new:
            new.add("requires_grad")
        if new:
            self.read_names |= new
            for record in list(self._classes.values()):
                self._walk(record.read(new))
            if "__annotations__" in new:
                for each in [record for record in self._records if isinstance(record, FunctionRecord)]:
                    self.add(f"{each.path}.__annotations__", self.annotations(each.live))
            for module in list(self._modules):
                self.add_scope(vars(module), new & vars(module).keys())
            if self._reads_modules:
                self.add_scope(sys.modules, new)

    def add_subclasses(self, owner: type) -> None:
        """Code lists the subclasses of a class."""
        for each in self.listed_subclasses(owner):
            self.add_class(each)

    def add_class(self, owner: type) -> None:
        """What a class and its bases give their objects by the names that code reads."""
        for each in owner.__mro__:
            if each.__flags__ & HEAP_TYPE and each not in self._classes:
                record = self._classes[each] = ClassRecord(each, self.read_names)
                self._walk(record.read(self.read_names))
                if self._lists_classes:
                    self.add_names(record.data())
        kind = type(owner)
        if kind is not type and kind not in self._classes:
            self.add_class(kind)

    def list_classes(self) -> None:
        """The model's code may read attributes of classes that it does not name, as `"{0.a}".format(x)` does."""
        if not self._lists_classes:
            self._lists_classes = True
            self.add_names(name for record in self._classes.values() for name in record.data())

    def add_scope(self, scope: dict[str, Any], names: Iterable[str], is_only_asked: bool = False) -> None:
        """What names mean in a module (nothing, maybe), and what that holds.

        Args:
            is_only_asked: code only asks whether something is in a set with this name, or adds to it.
        """
        record = self._scopes.get(id(scope))
        if record is None:
            if id(scope) in self._seen:
                return  # all of it is recorded
            record = self._scopes[id(scope)] = ScopeRecord(scope)
        for name in names:
            if name in record.saved and (is_only_asked or name not in record.asked):
                continue
            value = record.saved.setdefault(name, scope.get(name, _C.MISSING))
            if is_only_asked and holds_identities(value):
                record.asked.add(name)
                self._records.append(ListRecord(name, value))
                self._walk((name, kind) for kind in {*map(type, value)})
                continue
            record.asked.discard(name)
            # Of a module, code names what it reads.
            if not is_leaf(value) and not _is_of_torch(value) and not isinstance(value, types.ModuleType):
                self.add(name, value)

    def add_numbers(self, scope: dict[str, Any], names: frozenset[str]) -> None:
        """Numbers and texts among the names of a module of Python's library; its caches and functions stay out."""
        if id(scope) not in self._seen:
            record = self._scopes.setdefault(id(scope), ScopeRecord(scope))
            for name in names & scope.keys() - record.saved.keys():
                if is_leaf(scope[name]):
                    record.saved[name] = scope[name]

    def add_function(self, function: types.FunctionType) -> None:
        """A function that runs."""
        self._remember(function)
        self._reachable.add_root(function)
        self._walk(self._function(function.__qualname__, function))

    def knows(self, address: int) -> bool:
        """Whether an object (by id) was there when the snapshot was taken."""
        return address in self._seen

    def _remember(self, value: Any) -> None:
        self._seen.add(id(value))
        self.alive.append(value)

    def _walk(self, found: Iterable[tuple[str, Any]]) -> None:
        for path, value in found:
            if not is_leaf(value) and not _is_of_torch(value):
                self.add(path, value)

    def _reached(self, path: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Record a value; what it leads to."""
        if isinstance(value, torch.jit.ScriptModule):
            self._hidden_method = f"{path}, a module of TorchScript"
            return ()
        if isinstance(value, torch.nn.Module):
            return self._object(path, value)
        if isinstance(value, dict):
            record = DictRecord(path, value)
            self._records.append(record)
            items = [(f"{path}[{_key(key)}]", x) for key, x in record.saved.items() if not is_leaf(x)]
            items += [(path, key) for key in record.saved if not is_leaf(key)]
            return items if type(value) in _PLAIN_DICTS else [*self._object(path, value), *items]
        if isinstance(value, types.MethodType):
            if is_hidden(value.__func__):
                self._hidden_method = f"{_name_of(type(value.__self__))}.{value.__name__}"
            return [(path, value.__self__), (path, value.__func__)]
        if isinstance(value, types.BuiltinFunctionType):
            # Called by another name.
            self.lists_attributes |= value in _ASK_BY_NAME and path != value.__name__
            owner = value.__self__
            return () if isinstance(owner, (types.ModuleType, type)) else [(path, owner)]
        if isinstance(value, types.FunctionType):
            return self._function(path, value)
        if isinstance(value, types.ModuleType):
            self._modules.append(value)
            self.add_scope(vars(value), self.read_names & vars(value).keys())
            return ()
        if isinstance(value, (list, deque, set)):
            self._records.append(ListRecord(path, value))
        if isinstance(value, (list, deque, set, tuple, frozenset)):
            items = [(f"{path}[{i}]", item) for i, item in enumerate(value) if not is_leaf(item)]
            return items if type(value) in _PLAIN_LISTS else [*self._object(path, value), *items]
        if isinstance(value, (property, staticmethod, classmethod, partial)):
            members = MembersRecord(path, value)
            self._records.append(members)
            found = [(path, each) for each in members.saved]
            return [*found, *self._object(path, value)] if isinstance(value, partial) else found
        if isinstance(value, _VIEWS_OF_DICTS):
            return [(path, item) for item in gc.get_referents(value)]
        if isinstance(value, weakref.ref):
            return self._weak.follow(path, value)
        if isinstance(value, methodcaller):
            self.add_model_names([re.match(r"operator.methodcaller\('(\w+)'", repr(value))[1]])  # type: ignore[index]
            return ()
        if isinstance(value, attrgetter):
            names = [name for path in value.__reduce__()[1] for name in str(path).split(".")]
            self.gets_classes |= "__class__" in names
            self.add_model_names(names)
            return ()
        if is_recorded(value):
            return [*self._cache(path, value), *self._object(path, value)]
        if is_opaque(type(value)):
            self._opaque.append(path)
        return self._object(path, value)

    def _cache(self, path: str, cache: Any) -> Iterable[tuple[str, Any]]:
        record = CacheRecord(path, cache, self.knows)
        self._records.append(record)
        self.caches.append(record)
        if isinstance(function := getattr(cache, "__wrapped__", None), types.FunctionType):
            code = function.__code__
            self.cached_functions[id(code)] = (code, record.name)
        return [(record.name, value) for value in record.results()]

    def add_cached(self, code: types.CodeType, result: Any) -> None:
        """A function whose result a cache keeps returns: the result has not been changed yet."""
        if not is_leaf(result) and not holds_fakes(result):  # those are taken from the cache again
            self.add(self.cached_functions[id(code)][1], result)

    def _object(self, path: str, value: Any) -> Iterable[tuple[str, Any]]:
        package = type(value).__module__.split(".")[0]
        self.may_draw |= is_own_random(value)
        is_array = is_numpy_array(value)
        if package == "numpy" or is_array:
            self.add_numpy()
        found: list[tuple[str, Any]] = []
        if is_array or isinstance(value, (bytearray, array.array, memoryview)) or has_bytes_of_ctypes(value):
            self._records.append(BufferRecord(path, value))
            if is_array and value.dtype.hasobject:
                found += [(f"{path}[...]", item) for item in value.ravel().tolist()]
            if (pointed := getattr(value, "_objects", None)) is not None:  # what memory of `ctypes` points to
                found.append((f"{path}._objects", pointed))
            if package == "numpy" or not type(value).__flags__ & HEAP_TYPE:
                return found
        own = isinstance(value, threading.local)
        if isinstance(value, logging.Logger):
            self._loggers += logger_records(value)
            self._hidden["logging.Logger"] = {"handlers", "hasHandlers"}
            return ()
        if package in _SYSTEM and not own:
            return ()
        if hidden := hidden_names(type(value)):
            self._hidden.setdefault(_name_of(type(value)), set()).update(hidden)
        if (package == "staticrt" and not isinstance(value, torch.nn.Module)) or self._leaves_out(value):
            return ()
        if type(value).__flags__ & HEAP_TYPE:
            self.add_class(type(value))
            if not own:
                is_held = path not in self._arguments and not self._weak.leads_to(value)
                self._records.append(ObjectRecord(path, value, is_held))
        if (slots := slots_of(value)) is not None:
            self._records.append(slots_record(path, value, slots))
            found += [(f"{path}.{key}", item) for key, item in slots.items() if not is_leaf(item)]
            if own:
                return found
        if isinstance(value, BaseException):
            self._records.append(MembersRecord(path, value))
            found += [(f"{path}.args[{i}]", item) for i, item in enumerate(value.args) if not is_leaf(item)]
        attributes = _C.attributes_of(value)
        if attributes is None:
            return found
        self._reachable.add(value, [attributes])
        if id(attributes) in self._seen:
            return found
        self._seen.add(id(attributes))
        is_by_name = is_read_by_name(type(value), attributes)
        record = self._attributes[id(attributes)] = DictRecord(path, attributes, is_by_name)
        self._records.append(record)
        self._held_by[id(record)] = id(attributes)
        for key, item in list(attributes.items()):
            if is_leaf(item):
                continue
            if isinstance(value, torch.nn.Module) and key in ("_modules", "_parameters", "_buffers"):
                if id(item) not in self._seen:  # keep paths readable: "encoder.layers.0"
                    self._remember(item)
                    self._records.append(DictRecord(path, item))
                found += [(f"{path}.{name}", child) for name, child in item.items() if child is not None]
            else:
                if (
                    self.follows_code
                    and self._containers.may_have(item)
                    and not self._containers.keep(item)
                    and id(item) not in self._seen
                ):
                    self._containers.add(record, key, item)
                if type(item) in _PLAIN_DICTS and not item and id(item) not in self._seen:
                    self._remember(item)  # most objects of a model are such: the hooks of its layers
                    empty = DictRecord(f"{path}.{key}", item)
                    self._records.append(empty)
                    self._held_by[id(empty)] = id(item)
                else:
                    self._found_by_name.append((f"{path}.{key}", item))
                self._reachable.add_attribute(value, key if is_by_name else None, item)
        return found

    def _function(self, path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
        if id(function) in self._functions:
            return []
        self._functions.add(id(function))
        self._records.append(FunctionRecord(path, function))
        found: list[tuple[str, Any]] = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            record = CellRecord(f"{path}:{name}", cell)
            self._records.append(record)
            found.append((record.path, record.saved))
        found += [(f"{path}(...)", value) for value in function.__defaults__ or () if not is_leaf(value)]
        found += [(path, own) for own in (function.__kwdefaults__, _C.attributes_of(function)) if own]
        if "__annotations__" in self.read_names:
            found.append((path, self.annotations(function)))
        return found


def _key(key: Any) -> str:
    """A key of a dict as a path shows it: the text of an object may be long, or be another one in each process."""
    return repr(key) if is_leaf(key) else type(key).__name__


def _name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_of_torch(value: Any) -> bool:
    """Whether it is a function of torch, which is recorded once it runs."""
    return type(value) is types.FunctionType and is_torch_file(value.__code__.co_filename)
