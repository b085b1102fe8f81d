"""Reasons to run a call uncaptured, known before it runs. Each names the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.capture.functions import Function, Mode
from staticrt.capture.policy import Policy
from staticrt.capture.protocol import GraphBackend
from staticrt.capture.storage import is_plain, storage_ptr
from staticrt.capture.tree import PathNode


def unfit_input(function: Function, inputs: Sequence[Any], backend: GraphBackend) -> str | None:
    """Why these inputs cannot be those of a graph of this device."""
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            continue
        name = function.input_name(index)
        if not is_plain(value):
            return f"{name} is a {value.layout} tensor of type {type(value).__name__}"
        if not backend.owns(value):
            return f"{name} is on {value.device}, not on the graph's device"
        if value.requires_grad and torch.is_grad_enabled():
            return f"{name} requires gradients"
    return None


def assume_places(function: Function, inputs: Sequence[Any], backend: GraphBackend) -> None:
    """In training, parameters and what is written (statistics, counters) stay where they are, though nobody said so.

    A copy would cost their size in each call, and a write would be lost. Those that move after all are captured again, and
    are copied, or run plain, after a few times (`Policy.unstable_after`). Where replays find inputs anywhere nothing is assumed.
    """
    if function.mode is Mode.INFERENCE or backend.caps.rebind_inputs:
        return
    parameters = {i for i, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter)}
    function.static_inputs |= parameters | set(function.mutated)


def untold(leaves: Sequence[Any], names: Sequence[str], constants: tuple[type, ...]) -> str:
    """Why a call has no key: what it cannot be told from others by.

    Args:
        names: of arguments, as far as known.
        constants: types that keys hold besides numbers.
    """
    for index, leaf in enumerate(leaves):
        name = names[index] if index < len(names) else f"argument {index}"
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                return f"{name} is a {leaf.layout} tensor"
        elif not isinstance(leaf, (int, float, complex, torch.Generator, *constants)):
            return f"{name} is a {type(leaf).__name__}, which cannot be told from another"
    return "a mode or transform around the call wants to see every operator"


def unwatched(function: Function, inputs: Sequence[Any], current: PathNode | None) -> dict[int, torch.Tensor]:
    """Inputs outside the pool that the function may write although nobody said so."""
    return {
        index: value
        for index, value in enumerate(inputs)
        if isinstance(value, torch.Tensor)
        and is_plain(value)
        and index not in function.mutated
        and not (current is not None and current.gave_out(storage_ptr(value)))
    }


def written_elsewhere(
    function: Function, inputs: Sequence[Any], current: PathNode | None, policy: Policy
) -> str | None:
    """Why a function that writes inputs runs plain: a written input has no fixed place, or shares its memory."""
    if not policy.mutation:
        names = ", ".join(function.input_name(i) for i in function.mutated)
        return f"mutation on input: {names}; captures of functions that write inputs are off"
    written: dict[int, int] = {}
    for index in function.mutated:
        value = inputs[index]
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            continue
        ptr = storage_ptr(value)
        fixed = index in function.static_inputs and index not in function.unstable
        if ptr != 0 and not fixed and not (current is not None and current.gave_out(ptr)):
            return (
                f"mutation on input: {function.input_name(index)} is neither static nor an output of this step"
                + _trace(function)
            )
        written[ptr] = index
    for index, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and is_plain(value) and index not in function.mutated:
            other = written.get(storage_ptr(value))
            if other is not None and storage_ptr(value) != 0:
                return (
                    f"mutation on input: {function.input_name(other)} shares memory with "
                    f"{function.input_name(index)}"
                )
    return None


def _trace(function: Function) -> str:
    trace = function.stack_trace(0)
    return f" (found from {trace.strip()})" if trace else ""
