"""Records of what tensors, buffers and C functions hold or answer when a trace first meets them."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable
from typing import Any

import torch

from staticrt.frontend.guards.records import MISSING, Compared, ComparedInPython
from staticrt.frontend.guards.state_values import content_of, has_bytes_of_ctypes, layout_of
from staticrt.frontend.guards.tensor_memory import requires_grad_of
from staticrt.native import _C


class TensorRecord(Compared):
    """The Python attributes of a tensor by names that code may read, and whether it requires gradients.

    Args:
        names: the names, to which more are added.
        compared: ids of tensors that the graph reads, to which more are added: their layout is compared with it.
    """

    part = "tensors"

    def __init__(self, path: str, live: torch.Tensor, names: set[str], compared: set[int]) -> None:
        self.path = path
        self.live = live
        self._compared = compared
        self._names = names
        self.saved: dict[str, Any] = dict(_C.attributes_of(live) or {})
        self._requires_grad = requires_grad_of(live)

    def is_switched(self) -> bool:
        """Whether it requires gradients and did not before, or the other way round."""
        return requires_grad_of(self.live) is not self._requires_grad

    def switch_back(self) -> None:
        """Let it require gradients as before."""
        if self.is_switched():
            self.live.requires_grad_(self._requires_grad)

    def _differing(self) -> list[str]:
        now = _C.attributes_of(self.live) or {}
        if not now and not self.saved:
            return []
        keys = (now.keys() | self.saved.keys()) & self._names
        return sorted(key for key in keys if now.get(key, MISSING) is not self.saved.get(key, MISSING))

    def changes(self) -> Iterable[str]:
        switched = ["requires_grad"] if self.is_switched() else []
        return [f"{self.path}.{name}" for name in (*self._differing(), *switched)]

    def restore(self) -> None:
        self.switch_back()
        for name in self._differing():
            if name in self.saved:
                vars(self.live)[name] = self.saved[name]
            else:
                del vars(self.live)[name]

    def of(self, other: torch.Tensor) -> TensorRecord:
        """The record of another tensor in this one's place."""
        compared = {id(other)} if id(self.live) in self._compared else set()
        return TensorRecord(self.path, other, self._names, compared)

    def entry(self) -> tuple[Any, ...]:
        attributes = {name: value for name, value in self.saved.items() if name in self._names}
        return self.live, attributes, id(self.live) not in self._compared


class FactsRecord(ComparedInPython):
    """What a tensor is in autograd, for code that names such attributes."""

    NAMES = frozenset({"grad", "grad_fn", "is_leaf", "_base", "_version"})

    def __init__(self, live: torch.Tensor, names: frozenset[str]) -> None:
        self.live = live
        self.saved = [(name, getattr(live, name)) for name in sorted(names)]

    def changes(self) -> Iterable[str]:
        return ()

    def restore(self) -> None:
        """`Escapes` takes back what a trace leaves there."""

    def holds(self) -> bool:
        return all(
            now is value or (name == "_version" and now == value)
            for name, value in self.saved
            for now in (getattr(self.live, name),)
        )


class BufferRecord(ComparedInPython):
    """The bytes of a numpy array, an `array.array`, a bytearray, a memoryview or an object of `ctypes`; of an array also
    its layout."""

    def __init__(self, path: str, live: Any) -> None:
        self.path = path
        self.live = live
        self.saved = content_of(live)
        self._layout = layout_of(live)

    def restore(self) -> None:
        if self.holds():
            return
        if isinstance(self.live, bytearray):
            self.live[:] = self.saved
        elif isinstance(self.live, memoryview):
            if self.live.c_contiguous and not self.live.readonly:
                self.live.cast("B")[:] = self.saved
        elif isinstance(self.live, array.array):
            self.live[:] = array.array(self.live.typecode, self.saved)
        elif has_bytes_of_ctypes(self.live):
            memoryview(self.live).cast("B")[:] = self.saved
        elif len(self.saved) == self.live.nbytes:
            dtype, shape, _strides, is_writeable = self._layout
            self.live.dtype, self.live.shape = dtype, shape
            if content_of(self.live) != self.saved:
                self.live.flags.writeable = True
                self.live[...] = type(self.live)(shape, dtype, self.saved)
            self.live.flags.writeable = is_writeable

    def has_layout(self) -> bool:
        """Whether an array has the shape, strides, type and flag of then."""
        return layout_of(self.live) == self._layout

    def holds(self) -> bool:
        return self.has_layout() and content_of(self.live) == self.saved


class AnswerRecord(Compared):
    """The result of a C function without arguments: a number or a text."""

    part = "answers"

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.saved = function()

    def changes(self) -> Iterable[str]:
        return () if self.function() == self.saved else [f"{self.function.__name__}()"]

    def restore(self) -> None:
        """What it tells of cannot be undone."""

    def entry(self) -> tuple[Any, ...]:
        return self.function, self.saved


class ListingRecord(ComparedInPython):
    """What `dir` lists of a value."""

    path = "dir()"

    def __init__(self, live: Any, names: list[str]) -> None:
        self.live = live
        self.saved = names

    def restore(self) -> None:
        """The records of the value's dict and class undo it."""

    def holds(self) -> bool:
        return dir(self.live) == self.saved
