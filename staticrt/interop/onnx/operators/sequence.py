"""Sequences (Python lists) and optional values (None or the value)."""

from __future__ import annotations

from typing import Any

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Value, axis_of
from staticrt.interop.onnx.numbers import Numbers, Tensor, as_tensor, objects, whole
from staticrt.interop.onnx.registry import op


def _position(position: Numbers, length: int, behind: int = 0) -> int:
    index = int(position.item())
    if not -length <= index < length + behind:
        raise OnnxError(f"position {index} of a sequence of {length}")
    return index + length if index < 0 else index


@op("SequenceEmpty", since=11)
def sequence_empty(*, dtype: int = 1) -> Any:
    return ([],)


op("SequenceConstruct", since=11)(lambda *items: list(items))


@op("SequenceInsert", since=11)
def sequence_insert(items: Value, value: Tensor, position: Numbers | None = None) -> Any:
    index = len(items) if position is None else _position(position, len(items), 1)
    return [*items[:index], value, *items[index:]]


@op("SequenceErase", since=11)
def sequence_erase(items: Value, position: Numbers | None = None) -> Any:
    index = len(items) - 1 if position is None else _position(position, len(items))
    return [*items[:index], *items[index + 1 :]]


@op("SequenceAt", since=11)
def sequence_at(items: Value, position: Numbers) -> Any:
    return items[_position(position, len(items))]


@op("SequenceLength", since=11)
def sequence_length(items: Value) -> Numbers:
    return Numbers(objects([len(items)], ()), torch.int64)


@op("ConcatFromSequence", since=11)
def concat_from_sequence(items: Value, *, axis: int, new_axis: int = 0) -> Tensor:
    values = [as_tensor(item) for item in items]
    return torch.stack(values, axis) if new_axis else torch.cat(values, axis)


@op("SplitToSequence", since=11)
def split_to_sequence(x: Tensor, split: Numbers | None = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    axis = axis_of(axis, x.dim())
    if split is None:
        parts = torch.split(x, 1, axis)
        return [part if keepdims else part.squeeze(axis) for part in parts]
    sizes = split.list() if split.array.ndim else whole(split.item())
    return list(torch.split(x, sizes, axis))


@op("Optional", since=15)
def optional(x: Value = None, *, type: Any = None) -> Any:
    return (x,)


@op("OptionalHasElement", since=15)
def optional_has_element(x: Value = None) -> Numbers:
    return Numbers(objects([x is not None], ()), torch.bool)


@op("OptionalGetElement", since=15)
def optional_get_element(x: Value) -> Any:
    if x is None:
        raise OnnxError("OptionalGetElement of an empty optional value")
    return (x,)
