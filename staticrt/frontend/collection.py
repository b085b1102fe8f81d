"""The garbage collector rests while a trace is made.

Finalizers and callbacks that it calls would be taken for the model's code. Most objects of a trace live as long as it does.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Nothing is collected within but where somebody asks for it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
