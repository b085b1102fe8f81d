"""The context of `decimal`: its operators read precision and rounding there, and set flags, without a visible call."""

from __future__ import annotations

import sys
from typing import Any

from staticrt.frontend.guards.records import ComparedInPython

_SETTINGS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def is_decimal(value: Any) -> bool:
    """Whether a value is a number or class of the module `decimal`."""
    owner = value if isinstance(value, type) else type(value)
    return owner.__module__ in ("decimal", "_pydecimal") and "decimal" in sys.modules


class DecimalContextRecord(ComparedInPython):
    """The settings, traps and flags of the current context; each thread has its own."""

    path = "decimal.getcontext()"

    def __init__(self) -> None:
        self.saved = _content()

    def restore(self) -> None:
        if self.holds():
            return
        context = sys.modules["decimal"].getcontext()
        for name, value in zip(_SETTINGS, self.saved, strict=False):
            setattr(context, name, value)
        traps, flags = self.saved[-2:]
        context.traps.update((signal, signal in traps) for signal in context.traps)
        context.flags.update((signal, signal in flags) for signal in context.flags)

    def holds(self) -> bool:
        return _content() == self.saved


def _content() -> tuple[Any, ...]:
    context = sys.modules["decimal"].getcontext()
    signals = (context.traps, context.flags)
    raised = (frozenset(signal for signal, is_set in each.items() if is_set) for each in signals)
    return (*(getattr(context, name) for name in _SETTINGS), *raised)
