"""Python code that reads a tensor's values without an operator: the recording of an operator never sees it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from staticrt.native import _C

# `item`, `bool` and comparisons are operators; numpy's functions and `__array__` call `numpy`.
READS = ("tolist", "numpy", "__dlpack__")
_lock = threading.Lock()
_captures = 0  # under way, in any thread


@contextlib.contextmanager
def reads_noticed() -> Iterator[None]:
    """Inside, such a read makes the capture of its thread fail; threads that capture nothing read as ever."""
    global _captures
    with _lock:
        _captures += 1
        if _captures == 1:
            for name in READS:
                setattr(torch.Tensor, name, _noticed(name, getattr(torch.Tensor, name)))
    try:
        yield
    finally:
        with _lock:
            _captures -= 1
            if _captures == 0:
                for name in READS:
                    _put_back(name)


def _noticed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
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
