"""Compare calls of a compiled function with eager ones, with all that a caller can see of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import staticrt


def seen(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]]) -> Any:
    """What one call on new arguments shows: results, arguments afterwards, aliases, and the generator's state.

    Args:
        make: makes the arguments.
    """
    args = make()
    torch.manual_seed(0)
    try:
        result = function(*args)
    except Exception as error:
        return type(error)
    results = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [x for x in (*results, *args) if isinstance(x, torch.Tensor)]
    memory = [x.untyped_storage().data_ptr() if x.numel() else 0 for x in tensors]
    return (
        [_facts(x) for x in (*results, *args)],
        [[j for j in range(i) if memory[j] == place != 0] for i, place in enumerate(memory)],
        torch.rand(1).item(),
    )


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        strides = [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1]
        return value.dtype, list(value.shape), strides if value.numel() else [], str(value.tolist())
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def check(
    function: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]], backend: bool = True, times: int = 2
) -> None:
    """Assert that compiled calls show what eager ones do, also when repeated, and through `torch.compile`.

    Args:
        calls: each makes the arguments of a call; all calls are made of one compiled function, in order.
        backend: also call `torch.compile(function, backend="staticrt")`.
    """
    torch._dynamo.reset()
    ways = {"staticrt.compile": staticrt.compile(function)}
    if backend:
        ways["backend"] = torch.compile(function, backend="staticrt")
    for name, compiled in ways.items():
        for number, make in enumerate(call for call in calls for _ in range(times)):
            with torch.no_grad():
                assert seen(compiled, make) == seen(function, make), f"{name}, call {number}"


def equal_eager(
    train: Callable[[Callable[..., Any]], Any],
    compiler: Callable[..., Any] = staticrt.compile_step,
    **tolerances: Any,
) -> Any:
    """Assert that `train(compile)` returns the same where `compile` compiles a function and where it returns it.

    Args:
        train: makes everything anew, for example the model, the optimiser and the step, and returns what is compared.
        tolerances: of `torch.testing.assert_close`.

    Returns:
        The function that was compiled.
    """
    made = []

    def compile(function: Any) -> Any:
        made.append(compiler(function))
        return made[-1]

    found = []
    for each in (compile, lambda function: function):
        torch.manual_seed(0)
        found.append(train(each))
    torch.testing.assert_close(*found, **tolerances)
    return made[-1]
