"""State between the calls of a model that Dynamo splits: some of what code reads Dynamo does not guard."""

from __future__ import annotations

import types

from staticrt import tuning
from staticrt.frontend.guards.object_records import ClassRecord, FunctionRecord
from staticrt.frontend.guards.reads import Reads
from staticrt.frontend.guards.records import Record, ScopeRecord
from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.guards.state_guard import StateGuard
from staticrt.frontend.guards.value_records import AnswerRecord

# Of these kinds Dynamo guards little, and models seldom change them.
_SELDOM = (AnswerRecord, ClassRecord, FunctionRecord, ScopeRecord)


class WatchedState:
    """What a trace that failed had reached, and what the functions among it name.

    What a model changes in its own calls is left to Dynamo: it would be compiled anew in every one.

    Args:
        snapshot: of the trace, with the state as it was before.
        seldom: only classes, functions and globals are watched.
    """

    def __init__(self, snapshot: Snapshot, seldom: bool) -> None:
        _add_functions(snapshot)
        # Whether code names what Dynamo reads otherwise than eager, however often it compiles.
        self.is_misread = "_version" in snapshot.facts
        self._records = [
            record
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
            self._records = [record for record in self._records if _is_same(record)]
            self._guard = StateGuard(self._records, self._names, None)


def _is_same(record: Record) -> bool:
    return not any(record.changes()) and (bool(record.part) or record.holds())


def _add_functions(snapshot: Snapshot) -> None:
    """What functions that may run would read: of those that were reached, and of those that they reach."""
    reads = Reads(snapshot, lambda _what, _frame: None)
    done: set[types.CodeType] = set()
    for _round in range(tuning.MAX_WATCHED_DEPTH):
        functions = [each for each in snapshot.functions() if each.__code__ not in done]
        for function in functions[: tuning.MAX_WATCHED_FUNCTIONS - len(done)]:
            done.add(function.__code__)
            reads.function(function)
