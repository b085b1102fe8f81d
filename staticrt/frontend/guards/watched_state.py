"""State between the calls of a model that Dynamo splits, whose guards do not cover all that code reads."""

from __future__ import annotations

import sys

from staticrt import tuning
from staticrt.frontend.guards.code_objects import CodeSet
from staticrt.frontend.guards.code_reads import asks_for_handled
from staticrt.frontend.guards.effects import MISSED_BY_DYNAMO
from staticrt.frontend.guards.numpy_errors import NumpyErrorsRecord
from staticrt.frontend.guards.object_records import ClassRecord, FunctionRecord, MembersRecord
from staticrt.frontend.guards.own_frames import looks_at_frames
from staticrt.frontend.guards.reads import Reads
from staticrt.frontend.guards.records import MISSING, DictRecord, Record, ScopeRecord
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.guards.value_records import AnswerRecord
from staticrt.frontend.reasons import is_user_file

# What a tensor is in autograd differs where a graph returns it.
_OF_GRAPHS = frozenset({"_version", "_base", "_is_view"})
# Dynamo guards little of these kinds, and models seldom change them.
_SELDOM = (AnswerRecord, ClassRecord, FunctionRecord, MembersRecord, NumpyErrorsRecord, ScopeRecord)


class WatchedState:
    """What a trace that failed had reached, and what the functions among it name.

    What a model changes in its own calls is left to Dynamo, each attribute for itself: it would be compiled anew in
    every one.

    Args:
        snapshot: of the trace, with the state as it was before.
        seldom: only classes, functions and globals are watched.
        numbers: globals that are numbers as well.
    """

    def __init__(self, snapshot: Snapshot, seldom: bool, numbers: bool = True) -> None:
        _add_functions(snapshot)
        # Whether code names state that Dynamo reads differently from eager, however often it compiles.
        self.is_misread = (
            not _OF_GRAPHS.isdisjoint(snapshot.model_names)
            or not MISSED_BY_DYNAMO.isdisjoint(snapshot.read_names)
            or any(
                is_user_file(each.__code__.co_filename)
                and (looks_at_frames(each) or asks_for_handled(each.__code__))
                for each in snapshot.functions()
            )
            or _imports_replaced(snapshot)
            or bool(snapshot.caches)  # Dynamo calls the functions behind them
            or any(isinstance(each, NumpyErrorsRecord) and each.has_effect for each in snapshot.records())
            or snapshot.reaches_bounded()
        )
        self._records = [
            record if numbers or not isinstance(record, ScopeRecord) else _without_numbers(record)
            for record in snapshot.records()
            if not seldom or isinstance(record, _SELDOM) or getattr(record, "is_ordered", False)
        ]
        self._names = frozenset(snapshot.read_names)
        self._guard = StateGuard(self._records, self._names, None)

    def holds(self) -> bool:
        """Whether nothing was changed since the last call."""
        return self._guard.holds()

    def ran(self) -> None:
        """A call ended: what it changed is not watched any more."""
        if not self._guard.holds():
            self._records = [
                rest for record in self._records if (rest := _unchanged(record, self._names)) is not None
            ]
            self._guard = StateGuard(self._records, self._names, None)


def _imports_replaced(snapshot: Snapshot) -> bool:
    """Whether code imports a module of a name for which Dynamo keeps another one, for good."""
    dynamo = sys.modules.get("torch._dynamo.symbolic_convert")
    if dynamo is None:
        return False
    scopes = (record for record in snapshot.records() if isinstance(record, ScopeRecord))
    imported = {name for scope in scopes if scope.live is sys.modules for name in scope.saved}
    modules = {name: sys.modules.get(name) for name in imported}
    return any(dynamo._import_module(name) is not module for name, module in modules.items() if module)


def _unchanged(record: Record, names: frozenset[str]) -> Record | None:
    """What a record says of what is as it was; of a dict's keys, those that code may read as names.

    A function's answer is watched from here on.
    """
    changes = list(record.changes())
    if not changes and (record.part or record.holds()):
        return record
    if isinstance(record, AnswerRecord):
        return AnswerRecord(record.function)  # compiling imports modules, which register abstract classes
    if (
        isinstance(record, DictRecord)
        and not record.is_ordered
        and all(isinstance(k, str) for k in record.live)
    ):
        saved = {name: record.saved.get(name, MISSING) for name in names | record.saved.keys()}
    elif isinstance(record, ScopeRecord):
        saved = record.saved
    else:
        return None
    rest = ScopeRecord(record.live, saved.items())
    for name in rest.changes():
        del rest.saved[name]
    return rest


def _without_numbers(record: ScopeRecord) -> ScopeRecord:
    others = (item for item in record.saved.items() if not isinstance(item[1], (int, float, complex)))
    return ScopeRecord(record.live, others)


def _add_functions(snapshot: Snapshot) -> None:
    """What functions that may run would read: of those that were reached, and of those that they reach."""
    reads = Reads(snapshot, lambda _what, _frame: None)
    done = CodeSet()
    for _round in range(tuning.MAX_WATCHED_DEPTH):
        functions = [each for each in snapshot.functions() if each.__code__ not in done]
        for function in functions[: tuning.MAX_WATCHED_FUNCTIONS - len(done)]:
            done.add(function.__code__)
            reads.function(function)
    snapshot.lists_attributes |= any(each.__code__ not in done for each in snapshot.functions())
