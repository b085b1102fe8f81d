"""`torch.compiler.is_compiling()` and the like return True in threads that trace.

If torch reports that it compiles, models skip code that no graph holds, and operators such as `torch.cond` reach the tracer
whole. torch keeps that answer in a variable of the process, which all threads read. So its two functions get new code,
once, that checks the thread first. They stay the same objects with the same source and signature, and return the same as
before in threads that do not trace. So nothing is set when a trace begins, and nothing has to be restored when it ends, is
interrupted, or another thread forks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from staticrt.frontend.reasons import NESTS, CannotTrace
from staticrt.torch_private import hidden_from_dynamo


class _Thread(threading.local):
    traces = False
    differentiates = False  # its trace records a backward as well


thread = _Thread()  # set by `patches.tracing` alone
# Asks whether it is compiled, and takes the number out of a tensor if it is not.
_optimizers: Any = importlib.import_module("torch.optim.optimizer")  # torch.optim deletes its name
_OPTIMIZER_VALUE: types.CodeType = _optimizers._get_value.__code__


@hidden_from_dynamo  # which compiles what eager code calls between graph breaks, this as well
def _is_compiling() -> bool | None:
    """What `torch.compiler.is_compiling` returns in this thread; None: torch's own answer."""
    if not thread.traces:
        return False if _others and _is_of_others() else None
    asker = sys._getframe(2)
    if asker.f_code is torch.nn.TransformerEncoder.forward.__code__:
        _refuse_nested_batch(asker.f_locals)
    # While torch's optimisers are compiled, they compute with single-precision tensors of their steps, eagerly with numbers.
    return asker.f_code is not _OPTIMIZER_VALUE


# Threads in which Dynamo compiles for this package, and tells all others that they compile.
_others: list[int] = []


@contextlib.contextmanager
def dynamo_compiles() -> Iterator[None]:
    """Context manager: Dynamo compiles for this thread only."""
    before = depth()
    _others.append(threading.get_ident())
    try:
        yield
    finally:
        put_back(before)


def depth() -> int:
    """How often `dynamo_compiles` has begun in this thread and not ended."""
    return _others.count(threading.get_ident())


def put_back(depth_before: int) -> None:
    """Restore the answer of `depth()`."""
    for _ in range(depth() - depth_before):
        _others.remove(threading.get_ident())


def _is_of_others() -> bool:
    """Whether nothing compiles in this thread."""
    return (
        threading.get_ident() not in _others
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._guards.TracingContext.try_get() is None
    )


def _leave_others_behind() -> None:
    """In a forked child: the threads that compiled do not exist there to reset Dynamo's flag."""
    if _others and threading.get_ident() not in _others:
        _others.clear()
        torch.compiler._is_compiling_flag = False


os.register_at_fork(after_in_child=_leave_others_behind)


@hidden_from_dynamo
def _is_dynamo_compiling() -> bool | None:
    return True if thread.traces else None  # cond and friends then call their operators at once


def _refuse_nested_batch(names: dict[str, Any]) -> None:
    """Raise CannotTrace where `nn.TransformerEncoder` asks before it makes a nested tensor of a padded batch."""
    if names["mask"] is None and not torch.is_autocast_enabled():
        raise CannotTrace(NESTS, even_in_parts=True)


def _ask_the_thread_first(function: types.FunctionType, ask: Callable[[], bool | None]) -> None:
    """Give a function of torch without arguments new code: it returns the result of `ask`, or torch's answer for None."""
    code = function.__code__
    before = types.FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )

    def template() -> Any:
        own: Any = "ask"
        torchs: Any = "before"
        answer = own()
        return torchs() if answer is None else answer

    stands_for = {"ask": ask, "before": before}
    own = template.__code__
    function.__code__ = own.replace(
        co_consts=tuple(stands_for.get(value, value) for value in own.co_consts),
        co_name=code.co_name,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )


def _scan_of_a_trace(generic: Callable[..., Any]) -> Callable[..., Any]:
    """`generic_associative_scan`, which records a scan where its operands are fake tensors of a trace.

    A scan has no derivative of ours: where a backward is recorded, torch's own halves the length again and again.
    """

    @functools.wraps(generic)
    def generic_associative_scan(
        operator: Callable[..., Any], leaves: list[Any], dim: int = 0, additional_inputs: Any = ()
    ) -> Any:
        differentiates = thread.differentiates and torch.is_grad_enabled()
        if isinstance(leaves[0], FakeTensor) and thread.traces and not differentiates:
            from staticrt.frontend.tracing.control_flow import sequential_scan

            return sequential_scan(operator, leaves, dim, additional_inputs)
        return generic(operator, leaves, dim, additional_inputs)

    return generic_associative_scan


def _install() -> None:
    compiler: Any = torch.compiler
    _ask_the_thread_first(compiler.is_compiling, _is_compiling)
    _ask_the_thread_first(compiler.is_dynamo_compiling, _is_dynamo_compiling)
    # The package gives the function of that name, not the module.
    scans: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    scans.generic_associative_scan = _scan_of_a_trace(scans.generic_associative_scan)


_install()
