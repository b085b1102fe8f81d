"""Fake tensors that model code cannot tell from tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from staticrt.frontend.reasons import CannotTrace, is_user_file, model_line
from staticrt.frontend.tracing import indexing


def _noted(name: str, even_in_parts: bool = False) -> property:
    """An attribute whose value depends on where the caller's tensor comes from: model code that asks runs eagerly.

    Args:
        even_in_parts: where Dynamo splits the code, too: what a graph returns is no view.
    """
    plain: Any = getattr(torch.Tensor, name)

    def read(tensor: Any) -> Any:
        frame: Any = sys._getframe(1)
        if frame.f_code.co_name == "_getattr":  # which model code calls as `getattr`
            frame = frame.f_back
        if is_user_file(frame.f_code.co_filename):
            reason = f"the model reads .{name} of a tensor"
            tensor.fake_mode.unseen_reads.append((reason, model_line(frame), even_in_parts))
        return plain.__get__(tensor)

    if not hasattr(plain, "__set__"):
        return property(read)
    return property(read, plain.__set__, plain.__delete__)


_data: Any = torch.Tensor.data
set_data = _data.__set__


class TraceTensor(FakeTensor):
    """A fake tensor as model code sees it: a `torch.Tensor` or `torch.nn.Parameter`."""

    __getitem__ = indexing.getitem  # type: ignore[assignment]
    __setitem__ = indexing.setitem  # type: ignore[assignment]
    grad = _noted("grad")  # type: ignore[assignment]
    grad_fn = _noted("grad_fn")  # type: ignore[assignment]
    is_leaf = _noted("is_leaf")  # type: ignore[assignment]
    _base = _noted("_base", even_in_parts=True)  # type: ignore[assignment]
    _is_view = _noted("_is_view", even_in_parts=True)  # type: ignore[assignment]
    _version = _noted("_version")  # type: ignore[assignment]
    is_inference = _noted("is_inference")  # type: ignore[assignment]

    def _note_data(self: Any, value: torch.Tensor) -> None:
        # No operator runs. Where the value is a view of this tensor, not even the memory tells afterwards.
        self.fake_mode.sets_data = True
        set_data(self, value)

    data = property(_data.__get__, _note_data)  # type: ignore[assignment]

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
        # The method of torch's tensors asks symbolic sizes before any mode sees the call.
        found: torch.Tensor = torch.ops.aten.contiguous.default(self, memory_format=memory_format)
        return found

    def __deepcopy__(self, memo: Any) -> Any:
        # Torch's copies the attributes too, and so the whole trace.
        raise CannotTrace("the model copies a tensor by copy.deepcopy")

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[misc, override]
        return torch.nn.Parameter if getattr(self, "_is_param", False) else torch.Tensor


class TraceParameter(TraceTensor):
    """A `TraceTensor` that stands for a parameter."""


# Errors that Python and torch's argument parser raise name the class: "'Tensor' object is not callable".
TraceTensor.__name__ = torch.Tensor.__name__
TraceParameter.__name__ = torch.nn.Parameter.__name__


def show_as_plain(tensor: torch.Tensor) -> None:
    """Make a `TraceTensor` of a fake tensor, in place."""
    if type(tensor) is FakeTensor:
        plain: Any = tensor
        plain.__class__ = TraceParameter if getattr(tensor, "_is_param", False) else TraceTensor
