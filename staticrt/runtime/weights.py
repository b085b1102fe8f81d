"""New values for a module's parameters and buffers, checked before any of them is used."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from staticrt.errors import InputError


def new_weights(
    module: torch.nn.Module, weights: Mapping[str, torch.Tensor], strict: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of a module's tensor and the one to take its place, which has the same layout and a copy's values.

    Raises:
        InputError: unknown or missing names, another shape, dtype or device.
    """
    own = module.state_dict(keep_vars=True)
    tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    unknown = sorted(set(weights) - set(tensors))
    missing = sorted(set(tensors) - set(weights)) if strict else []
    if unknown or missing:
        raise InputError(
            "weights do not fit the module"
            + (f"; unknown: {', '.join(unknown)}" if unknown else "")
            + (f"; missing: {', '.join(missing)}" if missing else ""),
            fix="name them as in state_dict(); strict=False leaves missing ones as they are",
        )
    pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, value in weights.items():
        old = tensors[name]
        if (value.shape, value.dtype, value.device) != (old.shape, old.dtype, old.device):
            raise InputError(
                f"weight {name!r} is {_describe(value)}, expected {_describe(old)}",
                fix="convert it, or load_state_dict() into the module, which copies and converts",
            )
        new = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
        with torch.no_grad():
            new.copy_(value)
        if isinstance(old, torch.nn.Parameter):
            new = torch.nn.Parameter(new, requires_grad=old.requires_grad)
        pairs[id(old)] = (old, new)  # a tied weight has several names
    return list(pairs.values())


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)} on {tensor.device}"
