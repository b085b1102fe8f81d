"""A cache of fake results, since a model's layers repeat the same calls.

The fake result of an operator depends on the sizes, strides and dtypes of its arguments and the numbers among them. So
torch's rule, which takes milliseconds with symbolic sizes, runs once per trace for equal arguments; later calls get new
tensors with the same metadata. The guards are recorded already, because the sizes are the same expressions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from staticrt.shapes.fake_results import expression, new, oblivious, view_of

aten = torch.ops.aten

_CONSTANTS = (
    int,
    float,
    bool,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


# Operators that read the storage offset of a tensor.
_OF_PLACES = frozenset({aten.as_strided.default, aten.view_as_complex.default, aten.view.dtype})


class _NoKey(Exception):
    """The result of a call depends on more than a key can hold."""


@dataclasses.dataclass(frozen=True)
class _Result:
    """One tensor of a result: a new one, or a view of an argument."""

    like: torch.Tensor  # for its device
    dtype: torch.dtype
    sizes: Sequence[Any]
    strides: Sequence[Any]
    source: int | None  # among the tensors of the call
    offset: Any


def key_of(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[torch.Tensor]] | None:
    """The cache key of a call and the tensors among its arguments; None if the call cannot be cached."""
    schema = op._schema
    if schema.is_mutable:
        return None
    tensors: list[torch.Tensor] = []
    places = op in _OF_PLACES
    try:
        parts = tuple(_key(value, tensors, places) for value in args)
        named = tuple((name, _key(value, tensors, places)) for name, value in kwargs.items())
    except _NoKey:
        return None
    if not tensors:
        return None
    return (op, oblivious(), torch.get_default_dtype(), parts, named), tensors


def _key(value: Any, tensors: list[torch.Tensor], places: bool) -> Any:
    if isinstance(value, torch.Tensor):
        if (
            getattr(value, "constant", value) is not None
            or value.layout != torch.strided
            or value.is_quantized
            or value.is_conj()
            or value.is_neg()
        ):
            raise _NoKey
        tensors.append(value)
        shape = tuple(map(expression, value.shape))
        strides = tuple(map(expression, value.stride()))
        place = expression(value.storage_offset()) if places else None
        return (value.dtype, value.device, value.requires_grad, shape, strides, place)
    if isinstance(value, (list, tuple)):
        return (type(value), *[_key(item, tensors, places) for item in value])
    if isinstance(value, torch.SymInt):
        return (torch.SymInt, expression(value))
    if type(value) in _CONSTANTS or isinstance(value, (torch.dtype, torch.device)):
        return (type(value), value)
    raise _NoKey


def remember(mode: Any, key: Any, tensors: Sequence[torch.Tensor], out: Any) -> None:
    """Cache torch's result for this key, if it consists of tensors only."""
    one = isinstance(out, torch.Tensor)
    if not one and type(out) not in (list, tuple):
        return
    storages = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(tensors)))}
    made: set[int] = set()
    results = []
    for value in [out] if one else out:
        if not isinstance(value, torch.Tensor) or any(value is t for t in tensors):
            return
        if (
            getattr(value, "constant", value) is not None
            or value.requires_grad
            or value.is_conj()
            or value.is_neg()
        ):
            return
        storage = value.untyped_storage()._cdata
        source = storages.get(storage)
        offset = value.storage_offset()
        if source is None:
            if storage in made or not (isinstance(offset, int) and offset == 0):
                return
            made.add(storage)
        elif value.dtype != tensors[source].dtype:
            return
        else:
            offset = offset - tensors[source].storage_offset()
        results.append(_Result(value, value.dtype, list(value.shape), list(value.stride()), source, offset))
    _memo(mode)[key] = (None if one else type(out), results)


def recall(mode: Any, key: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The fake result of an earlier equal call, or None."""
    found = _memo(mode).get(key)
    if found is None:
        return None
    kind, results = found
    made = [_make(mode, result, tensors) for result in results]
    return made[0] if kind is None else kind(made)


def _make(mode: Any, result: _Result, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    if result.source is None:
        return new(mode, result.sizes, result.like, result.strides, result.dtype)
    return view_of(mode, tensors[result.source], result.sizes, result.strides, result.offset)


def _memo(mode: Any) -> dict[Any, Any]:
    memo: dict[Any, Any] = mode.__dict__.setdefault("_staticrt_memo", {})
    return memo
