"""One capture that is ready to run, and what a call must be like to run it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt.frontend.graph import CapturedGraph, InputSpec
from staticrt.frontend.keys import CallKey
from staticrt.frontend.state import StateGuard

if TYPE_CHECKING:
    from staticrt.executable import Executable


@dataclasses.dataclass(eq=False)
class Entry:
    """One capture, ready to run."""

    captured: CapturedGraph
    executable: Executable
    state: StateGuard
    ints: tuple[tuple[int, int], ...]  # int leaves that are constants of this capture
    metadata: list[Any]
    calls: int = 0
    route: str = "whole"

    def accepts(self, leaves: Sequence[Any], call: CallKey) -> bool:
        values = dict(call.ints)
        return (
            all(values[index] == value for index, value in self.ints)
            and self.captured.guards.holds(leaves)
            and tensor_metadata(self.captured.values) == self.metadata
            and self.state.holds()
        )

    def own_tensors(self) -> Iterator[tuple[InputSpec, torch.Tensor]]:
        """The model's own tensors that the graph reads."""
        own = (spec for spec in self.captured.inputs if spec.kind != "user")
        return zip(own, self.captured.values, strict=True)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why a capture failed.

    Args:
        impossible: the model does what no graph replays; else it raised something.
    """

    reason: str
    where: str
    impossible: bool


def tensor_metadata(values: Sequence[torch.Tensor]) -> list[Any]:
    """What a capture assumed of the model's tensors (`weight.data = …` may change it)."""
    return [(v.dtype, v.shape, v.stride(), v.device, v.requires_grad) for v in values]


def _inputs(captured: CapturedGraph, leaves: Sequence[Any]) -> Iterator[tuple[InputSpec, Any]]:
    """Each input of a graph, with what this call gives for it."""
    values = iter(captured.values)
    for spec in captured.inputs:
        yield spec, leaves[int(spec.target)] if spec.kind == "user" else next(values)


def writes_inference_tensors(captured: CapturedGraph, leaves: Sequence[Any]) -> bool:
    return any(spec.mutated and value.is_inference() for spec, value in _inputs(captured, leaves))


def share_memory(captured: CapturedGraph, leaves: Sequence[Any]) -> bool:
    """Whether a written input overlaps another input: the graph has them apart."""
    seen: dict[int, bool] = {}
    for spec, value in _inputs(captured, leaves):
        if not isinstance(value, torch.Tensor):
            continue
        storage = value.untyped_storage()._cdata
        if storage in seen and (seen[storage] or spec.mutated):
            return True
        seen[storage] = seen.get(storage, False) or spec.mutated
    return False
