"""The thread state that tracing changes, which is restored when an exception comes at any point.

A KeyboardInterrupt, or an exception that another thread sends, comes between any two bytecodes: also where the
`__enter__` of a context has run and its `__exit__` is not yet certain to be called. So tracing notes the thread's state
first and, when an exception leaves, restores what differs. If an exception interrupts that, it is done again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch._C._dynamo import eval_frame
from torch._tensor_str import PRINT_OPTS
from torch.fx.experimental import _config
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from staticrt import locks
from staticrt.frontend import budget
from staticrt.frontend.tracing import autocast, compiling
from staticrt.native import _C

T = TypeVar("T")


def certainly(run: Callable[[], T], undo: Callable[[BaseException], None]) -> T:
    """What `run` returns.

    Args:
        undo: called when an exception leaves `run`, and again if a second exception interrupts it.
    """
    undone = False
    try:
        try:
            return run()
        except BaseException as error:
            undo(error)
            undone = True
            raise
    except BaseException as error:
        if not undone:
            undo(error)
        raise


def keeping_thread_state(run: Callable[[], T]) -> T:
    """What `run` returns; where an exception leaves it, the thread's state is as before."""
    before = ThreadState()
    return certainly(run, lambda _error: before.restore())


class ThreadState:
    """The state of the thread that makes it."""

    def __init__(self) -> None:
        self._modes = _get_current_dispatch_mode_stack()
        self._function_modes = torch._C._len_torch_function_stack()
        self._transforms = torch._C._functorch.get_dynamic_layer_stack_depth()
        self._forward_gradients = torch._C._is_fwd_grad_enabled()
        self._grad = torch.is_grad_enabled()
        self._autocast = torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled(), autocast.is_on()
        self._autocast_blocks = _C.autocast_nesting()
        self._traces = compiling.thread.traces, compiling.thread.differentiates
        self._depth = compiling.depth()
        self._dynamo = eval_frame.get_eval_frame_callback()
        self._oblivious = _config.backed_size_oblivious  # type: ignore[attr-defined]
        self._print_options = dict(vars(PRINT_OPTS))  # which torch's errors about fakes change for a moment
        self._budget = budget.state()
        self._locks = locks.owned()

    def restore(self) -> None:
        """Put back what differs; as often as wanted."""
        if _get_current_dispatch_mode_stack() != self._modes:
            for mode in reversed(_get_current_dispatch_mode_stack()):
                _pop_mode(getattr(mode, "_mode_key", None))
            for mode in self._modes:
                _push_mode(mode)
        for _ in range(torch._C._len_torch_function_stack() - self._function_modes):
            torch._C._pop_torch_function_stack()
        # What Dynamo cuts out of `torch.func` begins and ends a transform by two calls, without a `with`.
        if torch._C._functorch.get_dynamic_layer_stack_depth() > self._transforms:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._transforms)
        torch._C._set_fwd_grad_enabled(self._forward_gradients)
        torch._C._set_grad_enabled(self._grad)
        on, cached, noted = self._autocast
        if torch.is_autocast_enabled("cpu") is not on:
            torch.set_autocast_enabled("cpu", on)
        if torch.is_autocast_cache_enabled() is not cached:
            torch.set_autocast_cache_enabled(cached)
        autocast.put_back(noted)
        _C.leave_autocast_blocks(self._autocast_blocks)
        compiling.thread.traces, compiling.thread.differentiates = self._traces
        compiling.put_back(self._depth)
        if eval_frame.get_eval_frame_callback() is not self._dynamo:
            eval_frame.set_eval_frame(self._dynamo)
        if _config.backed_size_oblivious is not self._oblivious:  # type: ignore[attr-defined]
            _config.backed_size_oblivious = self._oblivious  # type: ignore[attr-defined]
        vars(PRINT_OPTS).update(self._print_options)
        budget.put_back(self._budget)
        locks.release_all_but(self._locks)
