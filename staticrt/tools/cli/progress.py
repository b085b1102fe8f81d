"""Shows on a terminal what takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

QUIET_SECONDS = 1.0
_REFRESH_SECONDS = 0.5


@contextlib.contextmanager
def progress(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Show `what` and the elapsed seconds on one line of stderr after the first second, if stderr is a terminal."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield
        return
    done = threading.Event()

    def show() -> None:
        begin = time.monotonic()
        wait = QUIET_SECONDS
        while not done.wait(wait):
            wait = _REFRESH_SECONDS
            out.write(f"\rstaticrt: {what} … {time.monotonic() - begin:.0f} s\x1b[K")
            out.flush()
        if wait != QUIET_SECONDS:
            out.write("\r\x1b[K")
            out.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
