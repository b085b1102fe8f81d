"""Calls that return at once: `compiled.run_async(…)`, `fork(function, …)`, `wait(future)`.

Queued work runs on a few threads of the process. A thread that waits for work that has not begun runs that work itself,
so nested forks and waits do not deadlock.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from staticrt.errors import OptionError
from staticrt.frontend.guards.process_state import ThreadState

T = TypeVar("T")


class Future(concurrent.futures.Future, Generic[T]):  # type: ignore[type-arg]
    """The result of a call made with `fork` or `run_async`; a `concurrent.futures.Future`.

    `asyncio.wrap_future(future)` makes it awaitable.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        super().__init__()
        self._work: Callable[[], T] | None = work

    def run(self) -> bool:
        """Run the work in this thread, unless it has begun or was cancelled; returns whether it ran here."""
        try:
            if self.done() or not self.set_running_or_notify_cancel():
                return False
        except (concurrent.futures.InvalidStateError, RuntimeError):  # begun elsewhere
            return False
        work, self._work = self._work, None
        assert work is not None
        try:
            result = work()
        except BaseException as error:
            self.set_exception(error)
            if not isinstance(error, Exception):  # Ctrl-C belongs to this thread too
                raise
        else:
            self.set_result(result)
        return True

    def result(self, timeout: float | None = None) -> T:
        """The result; runs the call here if no thread has begun it.

        Raises:
            TimeoutError: it is still running after `timeout` seconds.
            Exception: what the call raised.
        """
        _queue.take(self)
        result: T = super().result(timeout)
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, or None; waits like `result`."""
        _queue.take(self)
        return super().exception(timeout)


class _Queue:
    """Work that has not begun, and the threads that take it."""

    def __init__(self) -> None:
        self.limit = max(1, (os.cpu_count() or 1))
        self._reset()

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[Future[Any]] = deque()
        self._idle = 0
        self._threads = 0

    def put(self, future: Future[Any]) -> None:
        with self._condition:
            self._waiting.append(future)
            if self._idle == 0 and self._threads < self.limit:
                self._threads += 1
                threading.Thread(target=self._serve, name="staticrt-async", daemon=True).start()
            else:
                self._condition.notify()

    def take(self, future: Future[Any]) -> None:
        """Run `future` in this thread if it has not begun."""
        with self._condition:
            try:
                self._waiting.remove(future)
            except ValueError:
                return
        future.run()

    def _serve(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                while not self._waiting:
                    if self._threads > self.limit:
                        self._idle -= 1
                        self._threads -= 1
                        return
                    self._condition.wait()
                self._idle -= 1
                future = self._waiting.popleft()
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                future.run()
            del future

    def set_limit(self, threads: int) -> None:
        with self._condition:
            self.limit = threads
            self._condition.notify_all()


_queue = _Queue()
# A forked child has none of its parent's threads and must not run its parent's work.
os.register_at_fork(after_in_child=_queue._reset)


def fork(function: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
    """Call `function(*args, **kwargs)` beside this thread, under this thread's modes, device and streams (`ThreadState`).

    On a device the work follows what this thread has enqueued, and the future is done once it is enqueued: the thread that
    uses the result on the same stream need not wait for the device.
    A call made under a dispatch or function mode, which belongs to its thread, is made at once, on this thread.

    Returns:
        A `Future`; the arguments live until the call is done.
    """
    if _get_current_dispatch_mode_stack() or torch._C._len_torch_function_stack():
        future: Future[T] = Future(lambda: function(*args, **kwargs))
        future.run()
        return future
    state = ThreadState()

    def work() -> T:
        with state.entered():
            return function(*args, **kwargs)

    future = Future(work)
    _queue.put(future)
    return future


def wait(future: Future[T]) -> T:
    """The result of a `fork`; runs queued work meanwhile."""
    return future.result()


def set_num_async_threads(threads: int) -> None:
    """How many threads serve `fork` and `run_async`; at first as many as the machine has cores.

    Raises:
        OptionError: fewer than 1.
    """
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise OptionError(f"threads is {threads!r}", fix="give a whole number of at least 1")
    _queue.set_limit(threads)
