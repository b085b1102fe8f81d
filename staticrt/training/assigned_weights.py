"""Weights that the hooks of `torch.nn.utils.spectral_norm` and `weight_norm` compute before each forward.

The hook assigns them to an attribute of the layer. A compiled step returns them like its other results, detached, and
assigns them to the attribute after the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from staticrt.frontend.guards.state import Snapshot
from staticrt.frontend.reasons import CannotTrace


class AssignedWeights:
    """Such weights of some modules while a step is recorded.

    Args:
        modules: modules that the step reaches; their submodules count too.
        snapshot: the step's Python state, which includes these modules. It compares only the layout of what a hook replaces.

    Attributes:
        places: attributes and name of each weight that the last run assigned.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._before: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        parts = {id(part): part for module in modules for part in module.modules()}
        for module in parts.values():
            hooks: Iterable[Any] = module._forward_pre_hooks.values()
            for hook in hooks:
                if type(hook) in (SpectralNorm, WeightNorm):
                    before = vars(module).get(hook.name)
                    if type(before) is torch.Tensor:
                        self._before.append((vars(module), hook.name, before))

    def take(self, read: Iterable[int]) -> list[torch.Tensor]:
        """The weights that the run assigned.

        Args:
            read: ids of the tensors that the graph reads.

        Raises:
            CannotTrace: the run read a weight of an earlier run and then replaced it.
        """
        self.places = []
        taken = []
        known = set(read)
        for attributes, name, before in self._before:
            now = attributes[name]
            if id(before) not in known:
                self._snapshot.let_replace(attributes, name)
            elif now is not before:
                raise CannotTrace(
                    f"the step reads {name!r} of a layer before the layer's hook computes it", ""
                )
            if now is not before:
                self.places.append((attributes, name))
                taken.append(now)
        self.restore()
        return taken

    def restore(self) -> None:
        """Put back what the attributes held before the run."""
        for attributes, name, before in self._before:
            attributes[name] = before
