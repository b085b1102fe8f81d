"""Ways to compile a function, for tests that hold for each of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import staticrt


def backend(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="staticrt", options=options or None)  # type: ignore[no-any-return]


def splits(function: Callable[..., Any]) -> Callable[..., Any]:
    """Dynamo splits calls that need gradients."""
    return staticrt.compile(function, joint_trace=False)


COMPILERS = {"compile": staticrt.compile, "backend": backend}

each_compiler = pytest.mark.parametrize("compiler", COMPILERS.values(), ids=COMPILERS)
each_compiler_for_gradients = pytest.mark.parametrize(
    "compiler", [*COMPILERS.values(), splits], ids=[*COMPILERS, "splits"]
)
