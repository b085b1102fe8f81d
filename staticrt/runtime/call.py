"""One call, flattened once."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from staticrt.frontend.arguments.structure import Flattener, Structure
from staticrt.runtime.call_key import CallKey, call_key


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments of one call, and what is derived from them.

    Args:
        args, kwargs: as given.
        spec: their structure, of `(args, kwargs)`.
        leaves: the flat arguments.
        containers: the caller's containers, in the order they were flattened.
        key: what traces are chosen by.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    spec: Structure
    leaves: list[Any]
    containers: list[Any]
    key: CallKey

    @staticmethod
    def of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Flatten the arguments.

        Raises:
            EagerOnly: an argument that no trace takes.
        """
        flattener = Flattener()
        spec = flattener.flatten((args, kwargs))
        leaves = flattener.leaves
        return Call(args, kwargs, spec, leaves, flattener.containers, call_key(leaves, spec))

    def sizes(self) -> tuple[Any, ...]:
        """What tells calls of one key apart: the sizes of tensors, and ints."""
        shapes = (tuple(leaf.shape) for leaf in self.leaves if isinstance(leaf, torch.Tensor))
        return (*shapes, *self.key.ints)
