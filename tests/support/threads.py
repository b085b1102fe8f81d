"""Tests that run a function in several threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def in_threads(work: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call `work(argument)` in one thread for each argument, all at once.

    Returns:
        The results, in the order of the arguments.

    Raises:
        BaseException: the first error of a thread.
    """
    each = list(arguments)
    barrier = threading.Barrier(len(each))
    results: list[Any] = [None] * len(each)

    def run(index: int) -> None:
        barrier.wait()
        results[index] = work(each[index])

    with _threads(run, range(len(each))):
        pass
    return results


@contextlib.contextmanager
def beside(work: Callable[[Any], Any], arguments: Iterable[Any] = (None,)) -> Iterator[None]:
    """While the block runs, one thread for each argument calls `work(argument)` again and again.

    The block begins after each thread's first call.

    Raises:
        BaseException: the first error of a thread, after the block.
    """
    each = list(arguments)
    stop, begun = threading.Event(), threading.Semaphore(0)

    def run(argument: Any) -> None:
        try:
            work(argument)
        finally:
            begun.release()
        while not stop.is_set():
            work(argument)

    with _threads(run, each):
        try:
            for _ in each:
                begun.acquire(timeout=300)
            yield
        finally:
            stop.set()


@contextlib.contextmanager
def _threads(run: Callable[[Any], None], arguments: Iterable[Any]) -> Iterator[None]:
    """Threads that run beside the block and end with it."""
    errors: list[BaseException] = []

    def guarded(argument: Any) -> None:
        try:
            run(argument)
        except BaseException as error:
            errors.append(error)

    # A thread that hangs may not keep the process alive.
    threads = [threading.Thread(target=guarded, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "a thread still runs after 300 s"
    if errors:
        raise errors[0]
