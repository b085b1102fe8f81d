"""Python state a trace depends on, and the guard made of it.

`Snapshot` tells during a trace whether the model changed any of it (then the trace is not pure) and puts it back;
afterwards the same records are the guard: the trace holds while nothing differs.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import chain
from typing import Any

import torch

from staticrt.frontend.guards.caches import CacheRecord
from staticrt.frontend.guards.object_records import FunctionRecord, ObjectRecord
from staticrt.frontend.guards.records import DictRecord, ListRecord, LoggerRecord, Record
from staticrt.frontend.guards.special_names import stored_only
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.guards.value_records import BufferRecord, FactsRecord, TensorRecord
from staticrt.frontend.guards.walk import Walk
from staticrt.frontend.guards.weak_references import is_named
from staticrt.native import _C

_COROUTINES = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_ASK_LEVELS = frozenset({"isEnabledFor", "getEffectiveLevel"})


class Snapshot(Walk):
    """The contents, by identity, of everything mutable that a walk found."""

    # Also of the class, because `Escapes` may delete the instance's own.
    _guard: StateGuard | None = None
    guarded: Sequence[Record] = ()  # in the guard
    _unread: Sequence[Record] = ()  # not in it
    _extent: tuple[object, ...] = ()  # of what was met when the guard was made
    compares_facts = True
    num_threads: int | None = None  # of torch, if the model asked for it
    _operators: _C.OperatorKernels | None = None
    _definitions: Sequence[Record] = ()  # of operators

    def changed_arguments(self, paths: Sequence[str]) -> list[int]:
        """Indices of the leaves given to `add_arguments` to which some of these paths (see `changes`) lead."""
        roots = {re.match(r"argument \d+|", path).group() for path in paths}  # type: ignore[union-attr]
        return [index for name, index in self._arguments.items() if name in roots]

    def hidden_read(self) -> str | None:
        """A hidden member that the code may reach, as "module.Class.method"."""
        if self._hidden_method is not None:
            return self._hidden_method
        for path in self._opaque:
            if is_named(re.sub(r"\[.*\]$", "", path), self.read_names):
                return path
        for kind, names in self._hidden.items():
            if named := sorted(names & self.read_names):
                return f"{kind}.{named[0]}"
        return None

    def weak_read(self) -> str | None:
        """The path of a weak reference that code may read and whose object a guard would have to keep alive."""
        return self._weak.unkept(self.knows, self.read_names)

    def _all(self) -> Iterable[Record]:
        return chain(self._records, self._scopes.values(), self._classes.values(), self._loggers)

    def records(self) -> list[Record]:
        """Records of all state except that of arguments and of objects that only weak references lead to."""
        facts = [FactsRecord(tensor, frozenset(self.facts)) for tensor in self._tensors if self.facts]
        return [
            *(
                each
                for each in self._all()
                if not getattr(each, "path", "").startswith("argument ") and getattr(each, "is_held", True)
            ),
            *facts,
        ]

    def functions(self) -> list[types.FunctionType]:
        """The functions that were reached."""
        return [each.live for each in self._records if isinstance(each, FunctionRecord)]

    def reaches_coroutines(self) -> bool:
        """Whether code may make coroutines, which Dynamo runs at once."""
        return any(each.__code__.co_flags & _COROUTINES for each in self.functions())

    def sets_data(self) -> bool:
        """Whether the `.data` of a tensor is another one now."""
        return bool(self._memory.changed())

    def changes(self) -> list[str]:
        """Paths of state that differs now, with what happened to it."""
        others: Iterable[Record] = chain(self._unread, self.caches, self._switched())
        if self.guard().holds_all() and not any(path for record in others for path in record.changes()):
            return []
        for record in self._all():
            if isinstance(record, DictRecord):
                record.settle_sizes()
        found = [path for record in self._all() for path in record.changes()]
        if self.num_threads not in (None, torch.get_num_threads()):
            found.append("torch.get_num_threads()")
        return found

    def _switched(self) -> list[TensorRecord]:
        """Records of tensors that require gradients now and did not before, or the other way round."""
        tensors = (each for each in self._records if isinstance(each, TensorRecord))
        return [each for each in tensors if each.is_switched()]

    def changes_misread(self) -> bool:
        """Whether an attribute of a class, a bounded deque, keyword defaults, what a cache holds, or the layout of an array
        differs now.

        Dynamo handles these differently from eager.
        """
        bounded = (record for record in self._all() if isinstance(record, ListRecord) and record.is_bounded)
        functions = {id(each.__kwdefaults__) for each in self.functions()}
        defaults = (
            each for each in self._all() if isinstance(each, DictRecord) and id(each.live) in functions
        )
        records: Iterable[Record] = chain(self._classes.values(), self.caches, bounded, defaults)
        arrays = (record for record in self._all() if isinstance(record, BufferRecord))
        return any(record.changes() for record in records) or not all(each.has_layout() for each in arrays)

    def restore(self) -> None:
        """Put everything back as it was."""
        self._memory.restore()
        for tensor in self._switched():
            tensor.switch_back()
        for cache in self.caches:
            cache.restore()
        if self._guard is not None and self._guard.holds_all():
            return
        for cache in self.caches:
            cache.empty()  # what its function changed is put back now, and it has to run again
        for record in self._all():
            record.restore()

    def begin_run(self) -> None:
        """A run begins: state that it meets for the first time is compared and restored too."""
        self._guard, self._unread = None, ()

    def guard(self) -> StateGuard:
        """A quick check that nothing differs. It does not include state that is added later."""
        if self._guard is None:
            lists, is_reached = self._lists(), self._reach()
            records: list[Record] = []
            unread: list[Record] = []
            for record in self._all():
                if self._weak.lead_to_any:
                    self._let_go(record, lists)
                is_guarded = (
                    is_reached(record) and not self._is_unread(record) and not self._is_of_owner(record)
                )
                (records if is_guarded else unread).append(record)
            if self.facts and self.compares_facts:
                records += [FactsRecord(tensor, frozenset(self.facts)) for tensor in self._tensors]
            self.guarded, self._unread, self._extent = records, unread, self._met()
            self._guard = self.guard_of(records)
        return self._guard

    def differing(self) -> str:
        """What the guard finds different now, for a message; "": nothing."""
        if self.guard().holds():
            return ""
        names, lists = frozenset(self.read_names), self._lists()
        for record in (*self.guarded, *self._definitions):
            if not StateGuard([record], names, None, lists).holds():
                return next(iter(record.changes()), "") or getattr(record, "path", type(record).__name__)
        return "the number of threads, or the kernel of an operator"

    def add_operators(self, kernels: _C.OperatorKernels, definitions: Iterable[dict[str, Any]]) -> None:
        """The code calls operators, whose kernels and definitions in Python are compared from now on."""
        self._operators = kernels
        self._definitions = [DictRecord("definition of an operator", each) for each in definitions]
        is_same = not (self._definitions or self.caches or self.facts) and self._extent == self._met()
        if self._guard is not None and is_same:
            self._guard.compare(kernels)
        else:
            self._guard = None

    def _met(self) -> tuple[object, ...]:
        """How much was met, which only grows: records, the names in them, and the names in code."""
        in_scopes = [len(each.saved) for each in self._scopes.values()]
        in_classes = [len(each.saved) for each in self._classes.values()]
        return len(self._records), len(self._loggers), in_scopes, in_classes, len(self.read_names)

    def guard_of(self, records: Sequence[Record]) -> StateGuard:
        """A guard of these records instead of its own."""
        names = frozenset(self.read_names)
        guard = StateGuard(
            [*records, *self._definitions],
            names,
            self.num_threads,
            self._lists(),
            self._weak.are_read(self.read_names),
        )
        if self._operators is not None:
            guard.compare(self._operators)
        return guard

    def compares_objects_only(self) -> bool:
        """Whether all that a guard compares lies in objects which the model holds: no arguments, caches or weak references."""
        others = self.facts or self.caches or self._arguments or self._weak.are_read(self.read_names)
        return self.follows_code and self.complete and not others

    def num_holders(self, address: int) -> int:
        """In how many places the object with this id was found."""
        return self._reachable.num_holders(address)

    def _let_go(self, record: Record, lists_attributes: bool) -> None:
        """Let a guard keep alive what weak references lead to only where it has to compare it."""
        if isinstance(record, ObjectRecord):
            record.is_held &= not self._weak.leads_to(record.live)
        elif isinstance(record, DictRecord) and record.is_attributes and not lists_attributes:
            values = record.saved.items()
            record.unkept = {
                key for key, value in values if self._weak.leads_to(value) and key not in self.read_names
            }

    def returns(self, value: object) -> None:
        """The code returns an object that was there."""
        if self._containers.keep(value):
            self._guard = None

    def add_answer(self, function: Callable[[], Any]) -> None:
        """As `Walk.add_answer`, also after the run."""
        super().add_answer(function)
        self._guard = None

    def let_replace(self, attributes: dict[str, Any], name: str) -> None:
        """Any tensor of the same layout may replace the one that an attribute of a module holds."""
        self._attributes[id(attributes)].replaceable[name] = ()
        self._guard = None

    def _is_of_owner(self, record: Record) -> bool:
        """Whether the record of the container's holder compares it."""
        return isinstance(record, (DictRecord, ListRecord)) and record.live in self._containers

    def reaches_bounded(self) -> bool:
        """Whether code may reach a bounded deque, by a name that it does more than store to."""
        bounded = [each for each in self._all() if isinstance(each, ListRecord) and each.is_bounded]
        return bool(bounded) and any(map(self._reach(stored_only(self.functions())), bounded))

    def _lists(self) -> bool:
        """Whether code may reach attributes that it does not name."""
        return self.lists_attributes or not self.names_are_told

    def _reach(self, left_out: Set[str] = frozenset()) -> Callable[[Record], bool]:
        """A function that says whether the known code reaches the object of a record, by names not left out."""
        if self._lists():
            return lambda _record: True
        reached: set[int | None] = {None, *self._reachable.by(self.read_names - left_out)}
        return lambda record: self._held_by.get(id(record)) in reached

    def _is_unread(self, record: Record) -> bool:
        """Whether the code names no attribute that holds a buffer, asks for no logger's level, or for nothing in a cache."""
        if isinstance(record, LoggerRecord):
            return _ASK_LEVELS.isdisjoint(self.read_names)
        if isinstance(record, CacheRecord):
            return not record.used()
        return isinstance(record, BufferRecord) and not is_named(record.path, self.read_names)
