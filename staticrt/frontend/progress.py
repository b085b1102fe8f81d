"""Progress of work that takes longer than a second, shown on a terminal and in notebooks by tqdm.

TQDM_DISABLE=1 in the environment, which tqdm reads when it is imported, switches it off for a process.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO, TypeVar

T = TypeVar("T")

QUIET_SECONDS = 1.0
_REFRESH_SECONDS = 0.5
_CLOCK = "{desc} … {elapsed}"


class _Local(threading.local):
    shows: bool = False  # whether something of this thread is shown, or will be after a second


_local = _Local()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def is_seen(stream: TextIO | None) -> bool:
    """Whether a person sees what is written to a stream; None: to stderr."""
    asks = getattr(sys.stderr if stream is None else stream, "isatty", None)
    try:
        return (asks is not None and bool(asks())) or (stream is None and in_notebook())
    except ValueError:  # it is closed
        return False


def bar(**options: Any) -> Any:
    """A bar of tqdm for a terminal, or a widget in a notebook that has ipywidgets; see `tqdm.tqdm`."""
    from tqdm import std

    kind: Any = std.tqdm
    if options.get("file") is None and in_notebook():
        from tqdm import notebook

        has_widgets = getattr(notebook, "IProgress", None) is not None  # of ipywidgets
        kind = notebook.tqdm if has_widgets else kind
    if kind is std.tqdm:
        options["file"] = _NeverRaises(options.get("file") or sys.stderr)
    return _without_monitor(kind)(leave=False, **options)


@functools.cache
def _without_monitor(kind: Any) -> Any:
    """A class of tqdm without its monitor, which is a thread for the life of the process."""
    return type(kind.__name__, (kind,), {"monitor_interval": 0})


class _NeverRaises:
    """A stream that may be closed: tqdm keeps its lock permanently if a write raises."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def long_work(what: str, enabled: bool = True, stream: TextIO | None = None) -> Iterator[None]:
    """Show `what` and the seconds since it began on one line, after the first second.

    Work within other work of the thread that is shown is not shown by itself.

    Args:
        enabled: False shows nothing.
        stream: None: stderr.
    """
    if not enabled or _local.shows or not is_seen(stream):
        yield
        return
    done, begin = threading.Event(), time.time()

    def show() -> None:
        if done.wait(QUIET_SECONDS):
            return
        line = bar(desc=f"staticrt: {what}", bar_format=_CLOCK, file=stream)
        line.start_t = begin
        while not done.wait(_REFRESH_SECONDS):
            line.refresh()
        line.close()

    # A cell's output is found by context variables.
    thread = threading.Thread(target=contextvars.copy_context().run, args=(show,), daemon=True)
    _local.shows = True
    try:
        with contextlib.suppress(RuntimeError):  # no more threads: nothing is shown
            thread.start()
        yield
    finally:
        _local.shows = False
        done.set()
        if thread.ident is not None:
            thread.join()


def each(
    items: Sequence[T],
    what: Callable[[T], str],
    title: str,
    enabled: bool = True,
    stream: TextIO | None = None,
) -> Iterator[T]:
    """The items, one by one, with a bar of how many are done, after the first second.

    Args:
        what: the text for the item that is being worked at.
        enabled, stream: as of `long_work`.
    """
    if not enabled or _local.shows or len(items) < 2 or not is_seen(stream):
        yield from items
        return
    line = bar(desc=f"staticrt: {title}", total=len(items), delay=QUIET_SECONDS, file=stream)
    _local.shows = True
    try:
        for item in items:
            line.set_postfix_str(what(item), refresh=False)
            yield item
            line.update()
    finally:
        _local.shows = False
        line.close()
