"""`staticrt.compile_step`: compile a whole training step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch

from staticrt.api.options import checked_options
from staticrt.errors import InputError
from staticrt.training.step import CompiledStep

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile_step(function: F, **options: Any) -> F: ...
@overload
def compile_step(function: None = None, **options: Any) -> Callable[[F], F]: ...
def compile_step(function: Any = None, *, dynamic: bool | None = None, **options: Any) -> Any:
    """Compile a whole training step: forward, backward and update as one Program with one arena.

    The function computes a loss, calls `loss.backward()` or `torch.autograd.grad`, and updates parameters, with an
    optimiser of `torch.optim` or `staticrt.training.optim`, or by hand under `torch.no_grad()`. It may be used as a
    decorator. Parameters, buffers, optimiser state and `.grad` are afterwards as after an eager call; results are
    detached. Learning rates may change between calls without recording again; so may the other numbers of SGD, Adam
    and AdamW. A step with an optimiser of torch's that has hooks is recorded for each learning rate.

    The first call runs eagerly where the optimiser has yet to make its state. A step that cannot be recorded (it
    prints, reads a value with `item()`, …) runs eagerly, with a warning; `explain()` says why.
    Gradients that are left in `.grad` are results, allocated in each call; those reset before the step ends
    (`optimizer.zero_grad()` last) live in the arena.

    Args:
        function: the step.
        dynamic: None: sizes are constants of the first recording, symbols once a second size comes. True: symbols
            at once. False: each size is recorded.
        options: see `staticrt.options.OPTIONS`.

    Returns:
        A `CompiledStep`, or without `function` a decorator.

    Raises:
        OptionError: an unknown option or value.
        TraceError: with `fullgraph=True`, the step cannot be recorded.
    """
    parsed = checked_options({"dynamic": dynamic, **options})
    if function is None:
        return lambda function: CompiledStep(function, parsed)
    if isinstance(function, CompiledStep):
        function = function.function
    if not callable(function) or isinstance(function, torch.nn.Module):
        raise InputError(
            f"staticrt.compile_step takes a function that trains, got {type(function).__name__}",
            fix="write a function that computes the loss, calls backward() and steps the optimiser",
        )
    return CompiledStep(function, parsed)
