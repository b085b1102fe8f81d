"""Donated arguments: what the caller gives up with a call, however the call is served."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from staticrt.errors import InputError, OptionError
from staticrt.frontend.arguments.names import argument_names
from staticrt.native import _C


class WrittenDonation(InputError):
    """A donated argument that the model writes: its new contents would be lost."""


def argument_of(name: str) -> str:
    """The argument that a leaf belongs to: "cache" of "cache[0]['k']"."""
    return re.split(r"[.\[]", name)[0]


def check_names(function: Callable[..., Any], donate: Sequence[str]) -> None:
    """Raise OptionError where the function has no argument of a name in `donate`."""
    if not donate:
        return
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        return
    for name in donate:
        if name not in parameters:
            raise OptionError(
                f"option 'donate' names {name!r}, which is not an argument; there are {', '.join(parameters) or 'none'}",
                fix="name arguments of the function, or of forward",
            )


def needs_gradients(donate: Sequence[str]) -> InputError:
    """Why a call whose result needs gradients is refused."""
    return InputError(
        f"cannot donate {', '.join(map(repr, donate))}: the result needs gradients, which are computed from the arguments",
        fix="call under torch.no_grad(), or compile without donate=",
    )


def call(
    serve: Callable[..., Any],
    function: Callable[..., Any],
    donate: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """`serve(*args, **kwargs)`; afterwards the donated tensors have no bytes, except those that are returned.

    Raises:
        InputError: a tensor cannot be donated: nothing has run, and it is whole.
    """
    leaves = pytree.tree_leaves((args, kwargs))
    names = argument_names(function, args, kwargs, len(leaves))
    given: list[tuple[str, torch.Tensor]] = []
    for name, leaf in zip(names, leaves, strict=bool(names)):
        if isinstance(leaf, torch.Tensor) and argument_of(name) in donate:
            _C.check_donatable(name, leaf)
            if sum(leaf is other for other in leaves) > 1:
                raise InputError(
                    f"cannot donate {name!r}: it is given twice, and another argument has the same storage",
                    fix="pass a clone()",
                )
            given.append((name, leaf))
    result = serve(*args, **kwargs)
    kept = {
        leaf.untyped_storage()._cdata for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)
    }
    for name, leaf in given:
        if leaf.untyped_storage()._cdata not in kept:
            _C.take_bytes(name, leaf)
    return result
