"""`GraphContext`: owns one tree, its pool and its lock."""

from __future__ import annotations

import collections
import itertools
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt import locks
from staticrt.errors import CaptureError, OptionError
from staticrt.graphs.functions import Function, Mode
from staticrt.graphs.generations import Generations, Pending
from staticrt.graphs.manager import Manager, is_capturing
from staticrt.graphs.overrides import runs_plain
from staticrt.graphs.policy import Policy
from staticrt.graphs.protocol import GraphBackend, PoolStats
from staticrt.graphs.report import GraphReport, report

_contexts: weakref.WeakSet[GraphContext] = weakref.WeakSet()
_numbers = itertools.count()
_left_to_parent: list[Any] = []  # objects that a forked child must neither use nor free


class GraphContext:
    """Functions that are captured together: their graphs share one private pool.

    Contexts can be passed around and shared by threads: one call runs at a time, under the context's lock. Outputs of
    captured calls belong to the caller: outputs that are still held when a new step begins keep their values.

    Args:
        device: "cpu", or a CUDA device.
        policy: all options at once; or give single ones of `Policy` as keywords.
        backend: the device's backend; None: the registered one.

    Example:
        >>> ctx = GraphContext("cpu")
        >>> f = ctx.wrap(lambda x, y: (x @ y).relu())
        >>> f(torch.ones(2, 3), torch.ones(3, 2)).shape  # captures
        torch.Size([2, 2])
        >>> f(torch.ones(2, 3), torch.ones(3, 2)).shape  # replays
        torch.Size([2, 2])
        >>> ctx.close()
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        policy: Policy | None = None,
        backend: GraphBackend | None = None,
        **options: Any,
    ) -> None:
        if policy is not None and options:
            raise OptionError(
                "give policy= or single options, not both", fix="dataclasses.replace(policy, …)"
            )
        try:
            self.policy = policy or Policy(**options)
        except TypeError as error:
            names = ", ".join(Policy.__dataclass_fields__)
            raise OptionError(f"GraphContext: {error}", fix=f"options are {names}") from None
        self.device = torch.device(device)
        self.number = next(_numbers)
        self._backend = backend
        self._start()
        self._closed = False
        self._num_functions = 0  # wrapped functions that are alive
        _contexts.add(self)

    def _start(self) -> None:
        self._lock = threading.RLock()
        self._manager: Manager | None = None
        self.generations = Generations(self.policy.exact_pending)
        self._functions: weakref.WeakSet[Any] = weakref.WeakSet()
        # Compiled programs that run in this context, each with its wrapped function.
        self.programs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._dead: collections.deque[list[Function]] = collections.deque()

    # -- functions -----------------------------------------------------------------------------------------------

    def wrap(self, function: Callable[..., Any], **options: Any) -> Any:
        """A callable that captures `function` and replays it.

        The function must depend only on its tensor arguments, on the integers and other constants passed, and on
        values that never change, because its Python code does not run in replays. Each combination of constants,
        sizes, strides and dtypes gets its own capture; the least recently used captures are evicted. A module's
        parameters and buffers are static inputs. Calls that need gradients capture forward and backward.

        Args:
            function: a function or module. With `boxed`, takes one list, which it may empty, and returns a list.
            options: `static_inputs`: positions or names of arguments at a fixed place in memory. `mutated_inputs`:
                positions or names of arguments that are written. `constants`: tensors it closes over.
                `unused_ints`: integer arguments that change nothing. `mode`, `boxed`, `name`, `key`,
                `stack_traces`: see `WrappedFunction`.

        Example:
            >>> ctx = GraphContext("cpu")
            >>> weight = torch.ones(3, 3)
            >>> f = ctx.wrap(lambda x, w: x @ w, static_inputs=(1,))
            >>> f(torch.ones(1, 3), weight)
            tensor([[3., 3., 3.]])
        """
        from staticrt.graphs.wrap import WrappedFunction

        self._check_open()
        return WrappedFunction(self, function, **options)

    def adopt(self, wrapped: Any, functions: list[Function]) -> None:
        """Keep the tree while `wrapped` lives, and drop the captures of `functions` (a list that may grow) when it dies."""
        self._functions.add(wrapped)
        self._num_functions += 1
        weakref.finalize(wrapped, _wrapped_died, weakref.ref(self), functions).atexit = False

    def call(self, function: Function, inputs: list[Any]) -> list[Any]:
        """Run one captured function; `inputs` is emptied.

        Raises:
            CaptureError: the context is closed.
        """
        if is_capturing():
            return function.run_plain(inputs)
        with self._lock:
            if (
                self._closed and function.mode is Mode.BACKWARD
            ):  # its forward ran before, and outputs stay valid
                return function.run_plain(inputs)
            self._check_open()
            if self._dead:
                self._drop_dead()
            manager = self._manager
            if manager is None:
                manager = self._manager = Manager(
                    self.backend, self.device.index or 0, self.policy, self.generations
                )
            if runs_plain(function.mode):
                return manager.call_plain(function, inputs)
            if (
                manager.bound or function.mode is Mode.BACKWARD
            ):  # a backward belongs to the step of its forward
                return manager.call(function, inputs)
            with self.generations:
                return manager.call(function, inputs)

    def forget(self, function: Function) -> None:
        """Drop the captures of one function. With the last capture of the tree its memory goes back."""
        with self._lock:
            if self._manager is not None:
                self._manager.forget(function)
                if not self._manager.roots and not self._manager.in_call:
                    self._manager.trim()

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> Generations:
        """`with ctx.step():` makes the calls inside one step, as if one outer call made them."""
        return self.generations

    def new_pending(self) -> Pending:
        """A token for a backward that needs outputs of this step. Drop it once the backward can no longer run."""
        return self.generations.new_pending()

    # -- life ----------------------------------------------------------------------------------------------------

    @property
    def manager(self) -> Manager | None:
        """The tree; None before the first call and after the last wrapped function died."""
        return self._manager

    @property
    def backend(self) -> GraphBackend:
        """What captures on this device."""
        if self._backend is None:
            from staticrt.graphs.backend import get_backend

            self._backend = get_backend(self.device)
        return self._backend

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Move outputs that are held to memory of their own, then free the graphs and the pool.

        Wrapped functions raise afterwards. A second call does nothing.
        """
        with self._lock:
            self._closed = True
            self._drop_manager()

    def trim(self) -> int:
        """Drop every capture and give unused memory back; later calls capture again. Returns bytes."""
        with self._lock:
            return self._manager.trim() if self._manager is not None else 0

    def memory(self) -> PoolStats:
        """Memory of the pool."""
        with self._lock:
            return self._manager.pool.stats() if self._manager is not None else PoolStats(0, 0, 0, 0)

    def explain(self) -> GraphReport:
        """Per node of the tree: the reason of its capture, replays, bytes copied. Also uncaptured calls with reasons, and memory."""
        with self._lock:
            functions = [f for wrapped in self._wrapped() for f in wrapped.functions()]
            return report(self._manager, functions, str(self.device))

    def __enter__(self) -> GraphContext:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphContext:
        """The same context: a copy of a captured function is captured in the context of the original."""
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a GraphContext cannot be pickled: its captures belong to this process")

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._functions)} functions"
        return f"<staticrt.graphs.GraphContext on {self.device}, {state}>"

    def __del__(self) -> None:
        manager = getattr(self, "_manager", None)
        if manager is not None and not sys.is_finalizing():  # the process takes the memory with it
            self._manager = None
            manager.close()

    def _wrapped(self) -> Sequence[Any]:
        return sorted(self._functions, key=lambda wrapped: wrapped.number)

    def _check_open(self) -> None:
        if self._closed:
            raise CaptureError(
                "Running a captured function after its graph context was closed",
                fix="make a new GraphContext",
            )

    def _drop_dead(self) -> None:
        """Drop captures of wrapped functions that died. REQUIRES: the lock, and no call under way."""
        while self._dead:
            for function in self._dead.popleft():
                if self._manager is not None:
                    self._manager.forget(function)
        if self._num_functions == 0:
            self._drop_manager()

    def _drop_manager(self) -> None:
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()

    def _idle(self) -> bool:
        return self._manager is None or not self._manager.in_call

    def _forked(self) -> None:
        """Start empty in a forked child, without touching the parent's graphs."""
        _left_to_parent.append((self._manager, self._lock))
        functions, programs = self._functions, self.programs
        self._start()
        self._functions, self.programs = functions, programs
        for wrapped in functions:
            wrapped.forget_all()


def _wrapped_died(context: weakref.ref[GraphContext], functions: list[Function]) -> None:
    ctx = context()
    if ctx is None:
        return
    ctx._num_functions -= 1
    ctx._dead.append(functions)
    # May run in any thread at any time, also inside a call of this context.
    if ctx._lock.acquire(blocking=False):
        try:
            if ctx._idle():
                ctx._drop_dead()
        finally:
            ctx._lock.release()


def _after_fork() -> None:
    for context in locks.members(_contexts):
        context._forked()


os.register_at_fork(after_in_child=_after_fork)
