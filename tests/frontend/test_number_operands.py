"""Numbers where an operator takes a tensor: `torch.mul(2, x)`, `torch.sub(x.shape[0], x)`, `torch.div(1, x)`."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

import staticrt
from tests.support.compilers import each_compiler

FUNCTIONS = {
    name: getattr(torch, name)
    for name in (
        "add",
        "sub",
        "mul",
        "div",
        "true_divide",
        "floor_divide",
        "subtract",
        "multiply",
        "remainder",
    )
}
DTYPES = (torch.float32, torch.float16, torch.int64)


def _number(kind: str, x: torch.Tensor) -> object:
    return {"int": 3, "float": 2.5, "size": x.shape[0], "ratio": x.shape[0] / 4}[kind]


@pytest.mark.parametrize("kind", ["int", "float", "size", "ratio"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_number_before_a_tensor(name: str, kind: str) -> None:
    function = FUNCTIONS[name]
    for dtype in DTYPES:

        def model(x: torch.Tensor) -> torch.Tensor:
            return function(_number(kind, x), x) * 2

        compiled = staticrt.compile(model)
        for rows in (3, 5, 3):
            x = torch.arange(1, 4 * rows + 1).reshape(rows, 4).to(dtype)
            want, got = model(x), compiled(x)
            assert got.dtype == want.dtype
            torch.testing.assert_close(got, want)
        assert "outside the runtime" not in str(compiled.explain())


def test_division_with_rounding_and_alpha() -> None:
    def model(x: torch.Tensor) -> list[torch.Tensor]:
        rows = x.shape[0]
        return [
            torch.div(7, x, rounding_mode="floor"),
            torch.div(rows, x, rounding_mode="trunc"),
            torch.sub(rows, x, alpha=3),
            torch.add(2.5, x, alpha=2),
            torch.sub(x, rows, alpha=2),
        ]

    compiled = staticrt.compile(model)
    for rows in (2, 6):
        x = torch.randint(1, 5, (rows, 3))
        torch.testing.assert_close(compiled(x), model(x))
    assert "outside the runtime" not in str(compiled.explain())


@each_compiler
def test_gradients(compiler: Any) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.div(1.0, torch.mul(x.shape[0], torch.sub(2, x))) + torch.mul(operator.truediv(1, 3), x)

    compiled = compiler(model)
    for rows in (3, 5, 7):
        x = torch.rand(rows, 4)
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).sum().backward()
        model(eager).sum().backward()
        torch.testing.assert_close(ours.grad, eager.grad)
