"""Autocast on CPU as a model being captured sees it.

A tracer runs below autocast, where torch answers that it is off, and where an operator that is taken apart would
meet none of its casts. So what the model turns on and off is noted, and turned on again for the parts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

_set_enabled = torch.set_autocast_enabled


class _State(threading.local):
    on = False


_state = _State()


def is_on() -> bool:
    """Whether the model being captured by this thread runs under autocast now."""
    return _state.on


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """While a model is captured: `is_on()` follows it."""

    def set_enabled(*args: Any) -> None:
        _set_enabled(*args)
        if len(args) == 2 and str(args[0]) == "cpu":
            _state.on = bool(args[1])

    before = _state.on
    replaced = torch.set_autocast_enabled
    _state.on = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled = set_enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.set_autocast_enabled = replaced
        _state.on = before


@contextlib.contextmanager
def for_parts() -> Iterator[None]:
    """In a tracer's handler: operators called here meet autocast as the model's own calls do."""
    if not _state.on:
        yield
        return
    _set_enabled("cpu", True)
    try:
        yield
    finally:
        _set_enabled("cpu", False)
