"""What a long measurement has done: a line for each result and, on a terminal, a progress bar below."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

WIDTH = 24


class Progress:
    """`done / total`, what runs now, and elapsed seconds, on one line of stderr."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = max(total, 1)
        self._done = 0
        self._begin = time.monotonic()
        self._stream = sys.stderr if stream is None else stream
        self._visible = self._stream.isatty()

    def show(self, what: str) -> None:
        """Say what runs now."""
        if not self._visible:
            return
        filled = WIDTH * self._done // self._total
        elapsed = time.monotonic() - self._begin
        bar = "#" * filled + "-" * (WIDTH - filled)
        line = f"[{bar}] {self._done}/{self._total} {elapsed:.0f} s  {what}"
        self._write(line[: shutil.get_terminal_size().columns - 1])

    def say(self, result: str) -> None:
        """Print a line that stays."""
        if self._visible:
            self._write("")
        self._stream.write(f"[{time.monotonic() - self._begin:4.0f} s] {result}\n")
        self._stream.flush()

    def advance(self) -> None:
        self._done += 1

    def finish(self) -> None:
        """Clear the line."""
        if self._visible:
            self._write("")

    def _write(self, line: str) -> None:
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()
