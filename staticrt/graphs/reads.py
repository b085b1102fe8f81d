"""Detects Python code that reads a tensor's values without an operator, which a capture would not record."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from staticrt import locks
from staticrt.native import _C

# `item`, `bool` and comparisons are operators; numpy's functions and `__array__` call `numpy`.
READS = ("tolist", "numpy", "__dlpack__")
_lock = locks.reentrant()
_captures = 0  # under way, in any thread


@contextlib.contextmanager
def detect_reads() -> Iterator[None]:
    """Inside the block, such a read makes the capture of its thread fail. Threads without a capture are not affected."""
    global _captures
    with _lock:
        _captures += 1
        if _captures == 1:
            for name in READS:
                setattr(torch.Tensor, name, _reporting(name, getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        with _lock:
            _captures -= 1
            if _captures == 0:
                for name in READS:
                    _put_back(name)


def _reporting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        _C.note_read(f"Tensor.{name}()")
        return method(self, *args, **kwargs)

    read.in_class = name in vars(torch.Tensor)  # type: ignore[attr-defined]
    return read


def _put_back(name: str) -> None:
    read: Any = vars(torch.Tensor)[name]
    if read.in_class:
        setattr(torch.Tensor, name, read.__wrapped__)
    else:
        delattr(torch.Tensor, name)
