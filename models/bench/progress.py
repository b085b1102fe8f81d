"""What a long measurement has done: a line for each result and, on a terminal, a progress bar below."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from staticrt.frontend.progress import bar, is_seen

_FORMAT = "[{bar:24}] {n_fmt}/{total_fmt} {elapsed}{postfix}"


class Progress:
    """`done / total`, elapsed seconds and what runs now, on one line of stderr."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._begin = time.monotonic()
        self._stream = stream
        shown = is_seen(stream)
        self._bar = bar(total=max(total, 1), file=stream, bar_format=_FORMAT) if shown else None

    def show(self, what: str) -> None:
        """Say what runs now."""
        if self._bar is not None:
            self._bar.set_postfix_str(what)

    def say(self, result: str) -> None:
        """Print a line that stays."""
        out = sys.stderr if self._stream is None else self._stream
        if self._bar is not None:
            self._bar.clear()
        out.write(f"[{time.monotonic() - self._begin:4.0f} s] {result}\n")
        out.flush()
        if self._bar is not None:
            self._bar.refresh()

    def advance(self) -> None:
        if self._bar is not None:
            self._bar.update()

    def finish(self) -> None:
        """Clear the line."""
        if self._bar is not None:
            self._bar.close()
