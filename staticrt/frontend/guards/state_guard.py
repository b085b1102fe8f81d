"""Whether what a snapshot recorded still holds, compared in every call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from staticrt.frontend.guards.records import Record
from staticrt.native import _C


class StateGuard:
    """Whether what a snapshot recorded still holds.

    Args:
        records: the snapshot's records.
        names: what the code may read by name.
        num_threads: torch's number of threads, if the model asked for it.
        lists_attributes: the code may read attributes of objects that it does not name.
        reads_weakly: it may read weak references to what the model holds too, which the guard keeps alive.
    """

    def __init__(
        self,
        records: Iterable[Record],
        names: frozenset[str],
        num_threads: int | None,
        lists_attributes: bool = True,
        reads_weakly: bool = False,
    ) -> None:
        self._reads_weakly = reads_weakly
        parts: dict[str, list[Any]] = {}
        self._others: list[Record] = []
        for record in records:
            if record.part:
                parts.setdefault(record.part, []).append(record.entry())
            else:
                self._others.append(record)
        self._native = _C.StateGuard(**parts, names=names, lists_attributes=lists_attributes)
        self._names = names
        self._num_threads = num_threads
        self.counts = {part: len(entries) for part, entries in parts.items()}
        if self._others:
            self.counts["compared in Python"] = len(self._others)

    def compare(self, operators: _C.OperatorKernels) -> None:
        """The kernels of operators are compared from now on too."""
        self._native.compare(operators)
        self.counts["kernels of operators"] = len(operators)

    def holds(self) -> bool:
        """True while nothing that the trace read has changed."""
        if self._num_threads not in (None, torch.get_num_threads()):
            return False
        return self._native.holds() and all(record.holds() for record in self._others)

    def is_in_the_way(self) -> bool:
        """Whether it fails and keeps objects alive that would be gone without the guard."""
        return self._reads_weakly and not self.holds()

    def holds_all(self) -> bool:
        """True while no attribute of an object that the trace met has changed either, read or not."""
        return self.holds() and self._native.holds_all()

    def read_attribute(self, leaves: Iterable[Any]) -> str | None:
        """The name of an attribute that the caller gave a tensor and the code may read, or None."""
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and (found := _C.attributes_of(leaf)):
                for name in found:
                    if name in self._names:
                        return name
        return None

    def native(self) -> _C.StateGuard | None:
        """The check in C++, or None if there is more that only Python compares.

        The number of threads is not in it: the fast path compares that in every call.
        """
        return None if self._others else self._native
