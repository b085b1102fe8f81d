"""Autocast on CPU as a model being traced sees it.

A tracer runs below autocast, where torch reports that it is off and where the operators of a decomposition would not be
cast. So the tracer notes what the model turns on and off, and turns it on again for decompositions.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from staticrt.native import _C

# The C functions with which a thread sets autocasting; a profiler of the model's calls sees them.
SETTERS = frozenset(
    getattr(torch, name)
    for name in ("set_autocast_enabled", "set_autocast_cpu_enabled", "set_autocast_cache_enabled")
    if hasattr(torch, name)
)


class _State(threading.local):
    on = False
    dtype: torch.dtype | None = None  # of the outermost block


_state = _State()


def is_on() -> bool:
    """Whether the model being traced by this thread runs under autocast now."""
    return _state.on


def note() -> bool:
    """The model being traced by this thread has set autocasting: see it, and keep its cache off.

    The cache belongs to the process: the cast of a parameter, a fake here, would serve eager calls of other threads.

    Returns:
        Whether a block lies in one of another dtype: eager's cache then gives it the outer one's casts of parameters.
    """
    _state.on = torch.is_autocast_enabled("cpu")
    torch.set_autocast_cache_enabled(False)
    if not _C.autocast_nesting():  # eager has emptied its cache
        _state.dtype = None
    elif _state.on:
        dtype = torch.get_autocast_dtype("cpu")
        _state.dtype = _state.dtype or dtype
        return dtype != _state.dtype
    return False


def put_back(on: bool) -> None:
    """Restore the answer of `is_on()`."""
    _state.on = on


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """While a model is traced: `is_on()` follows it, as far as `note` is called."""
    before, cached = _state.on, torch.is_autocast_cache_enabled()
    _state.dtype = None
    try:
        note()
        yield
    finally:
        _state.on = before
        torch.set_autocast_cache_enabled(cached)


@contextlib.contextmanager
def for_parts() -> Iterator[None]:
    """In a tracer's handler: autocast applies to operators called in this block as to the model's own calls."""
    if not _state.on:
        yield
        return
    torch.set_autocast_enabled("cpu", True)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cpu", False)
