"""Conditions that a call must meet before it is captured or replayed. Each reason names the input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.graphs.functions import Function, Mode
from staticrt.graphs.policy import Policy
from staticrt.graphs.protocol import GraphBackend
from staticrt.graphs.storage import is_plain, storage_ptr
from staticrt.graphs.tree import PathNode


def unsupported_input(
    function: Function, inputs: Sequence[Any], owns: Callable[[torch.Tensor], bool]
) -> str | None:
    """Why a graph cannot take these inputs; None if it can.

    Args:
        owns: whether a tensor is on the graph's device.
    """
    for index, value in enumerate(inputs):
        if not isinstance(value, torch.Tensor):
            continue
        name = function.input_name(index)
        if not is_plain(value):
            return f"{name} is a {value.layout} tensor of type {type(value).__name__}"
        if not owns(value):
            return f"{name} is on {value.device}, not on the graph's device"
        if value.requires_grad and torch.is_grad_enabled():
            return f"{name} requires gradients"
    return None


def assume_static_inputs(function: Function, inputs: Sequence[Any], backend: GraphBackend) -> None:
    """In training, treat parameters and written inputs (statistics, counters) as static although the caller did not say so.

    Copying them would cost their size in each call, and a write to the copy would be lost. If one of them moves, the function
    is captured again; after `Policy.unstable_after` moves the input is copied, or the function runs uncaptured. Devices
    whose replays accept inputs at any address need no such assumption.
    """
    if function.mode is Mode.INFERENCE or backend.caps.rebind_inputs:
        return
    parameters = {i for i, value in enumerate(inputs) if isinstance(value, torch.nn.Parameter)}
    function.static_inputs |= parameters | set(function.mutated)


def why_no_key(leaves: Sequence[Any], names: Sequence[str], constants: tuple[type, ...]) -> str:
    """Why a call has no key, so that it cannot be captured.

    Args:
        names: argument names, as far as known.
        constants: types that keys hold besides numbers.
    """
    for index, leaf in enumerate(leaves):
        name = names[index] if index < len(names) else f"argument {index}"
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                return f"{name} is a {leaf.layout} tensor"
        elif not isinstance(leaf, (int, float, complex, torch.Generator, *constants)):
            return f"{name} is a {type(leaf).__name__}, which cannot be part of a key"
    return "an active mode or transform must see every operator of the call"


def inputs_to_watch(
    function: Function, inputs: Sequence[Any], current: PathNode | None
) -> dict[int, torch.Tensor]:
    """Inputs outside the pool that were not declared as written, by index. A run shows whether the function writes them."""
    return {
        index: value
        for index, value in enumerate(inputs)
        if isinstance(value, torch.Tensor)
        and is_plain(value)
        and index not in function.mutated
        and not (current is not None and current.gave_out(storage_ptr(value)))
    }


def why_writes_prevent_capture(
    function: Function, inputs: Sequence[Any], current: PathNode | None, policy: Policy
) -> str | None:
    """Why a function that writes inputs runs uncaptured: a written input has no fixed address, or shares its memory."""
    if not policy.mutation:
        names = ", ".join(function.input_name(i) for i in function.mutated)
        return f"mutation on input: {names}; the policy does not capture functions that write inputs"
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
