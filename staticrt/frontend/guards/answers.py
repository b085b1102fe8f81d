"""What code asks functions instead of reading it from an object by name: a trace depends on the answers."""

from __future__ import annotations

import abc
import types
from collections.abc import Callable
from typing import Any

from staticrt.frontend.guards.decimal_context import DecimalContextRecord
from staticrt.frontend.guards.numpy_errors import NumpyErrorsRecord
from staticrt.frontend.guards.records import Record
from staticrt.frontend.guards.value_records import AnswerRecord, ListingRecord


class Answers:
    """The part of `Walk` that makes records of answers."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._asked: set[Any] = set()  # what each record is of

    def add_answer(self, function: Callable[[], Any]) -> None:
        """Code asks a function without arguments, whose answer is a number or text."""
        self._add_once(function, lambda: AnswerRecord(function))

    def add_decimals(self) -> None:
        """Code may compute decimal numbers."""
        self._add_once(DecimalContextRecord, DecimalContextRecord)

    def add_numpy(self) -> None:
        """Code may call functions of numpy."""
        self._add_once(NumpyErrorsRecord, NumpyErrorsRecord)

    def add_virtual_subclasses(self) -> None:
        """Code asks whether something is of an abstract class."""
        self.add_answer(abc.get_cache_token)

    def add_listing(self, value: Any, names: list[str]) -> None:
        """Code lists the attributes of a value."""
        self._records.append(ListingRecord(value, names))

    def listed_subclasses(self, owner: type) -> list[type]:
        """The subclasses of a class; that it has these is guarded."""
        kept: list[type] = owner.__subclasses__()

        def subclasses() -> bool:
            return owner.__subclasses__() == kept

        self._add_once(("subclasses", id(owner)), lambda: AnswerRecord(subclasses))
        return kept

    def annotations(self, function: types.FunctionType) -> dict[str, Any]:
        """The annotations of a function; that it has these is guarded."""

        def annotations() -> int:
            return id(function.__annotations__)

        self._add_once(("annotations", id(function)), lambda: AnswerRecord(annotations))
        return function.__annotations__

    def _add_once(self, asked: Any, record: Callable[[], Record]) -> None:
        if asked not in self._asked:
            self._asked.add(asked)
            self._records.append(record())
