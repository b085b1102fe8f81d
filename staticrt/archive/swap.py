"""Parts of `LoadedModel.swap_weights`: checking the other archive, writing values into fresh programs, and the calls to prepare again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.archive.programs import BUFFER, CONSTANT, PARAMETER, TEMPORARY_BUFFER, SavedPrograms
from staticrt.errors import InputError


@dataclasses.dataclass(frozen=True)
class _TensorSpec:
    """Metadata of a tensor argument, from which `prepare` can run. `number` counts the call's distinct tensors."""

    number: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device


def without_bytes(call: Any) -> Any:
    """A call's arguments with a `_TensorSpec` for each tensor."""
    numbers: dict[int, int] = {}

    def spec(tensor: torch.Tensor) -> _TensorSpec:
        number = numbers.setdefault(id(tensor), len(numbers))
        return _TensorSpec(number, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)

    return pytree.tree_map_only(torch.Tensor, spec, call)


def with_tensors(call: Any) -> Any:
    """The call again, on tensors of unset contents."""
    made: dict[int, torch.Tensor] = {}

    def tensor(spec: _TensorSpec) -> torch.Tensor:
        if spec.number not in made:
            made[spec.number] = torch.empty_strided(
                spec.sizes, spec.strides, dtype=spec.dtype, device=spec.device
            )
        return made[spec.number]

    return pytree.tree_map_only(_TensorSpec, tensor, call)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have equal bits. `torch.equal` treats 0.0 and -0.0 as equal, and lacks some dtypes."""
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return torch.equal(a.view(bits), b.view(bits))


def check_fits(old: SavedPrograms, new: SavedPrograms) -> None:
    """Refuse an archive of another model.

    Raises:
        InputError: a weight of it has another name, shape, dtype or device, or is missing.
    """
    kinds = (PARAMETER, BUFFER, TEMPORARY_BUFFER)
    own = {name: _kind(tensor) for name, tensor in old.weights(*kinds).items()}
    found = {name: _kind(tensor) for name, tensor in new.weights(*kinds).items()}
    for name in sorted(own.keys() | found.keys()):
        if own.get(name) != found.get(name):
            raise InputError(
                f"weight {name!r} is {found.get(name, 'missing')}, expected {own.get(name, 'no such weight')}",
                at=new.where,
                fix="save the same model with other weights, or load() this one by itself",
            )


def _kind(tensor: torch.Tensor) -> str:
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}{where}"


def put_values(present: SavedPrograms, fresh: SavedPrograms, weights: Mapping[str, torch.Tensor]) -> None:
    """Give `fresh`, another opening of the same archive, these values, and those of `present` where there are none.

    Raises:
        InputError: a shape or dtype differs; nothing is written then.
    """
    own = fresh.weights(PARAMETER, BUFFER, TEMPORARY_BUFFER)
    given = {name: value for name, value in weights.items() if name in own}
    for name, value in given.items():
        if (value.shape, value.dtype) != (own[name].shape, own[name].dtype):
            raise InputError(
                f"weight {name!r} of {fresh.name} is {_kind(value)}, expected {_kind(own[name])}",
                fix="convert it, or load_state_dict(), which converts",
            )
    with torch.no_grad():
        # The present values first: weights may share bytes with some that are given.
        pairs = zip(present.archive.weights, fresh.archive.weights, strict=True)
        for (name, kind, value), (_name, _kind_there, tensor) in pairs:
            kept = kind == CONSTANT or name not in given
            if kept and not _same_bits(value, tensor):  # else the pages stay those of the file
                tensor.copy_(value)
        for name, value in given.items():
            own[name].copy_(value)
