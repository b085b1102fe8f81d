"""Complex numbers in a joint trace: values, gradients and lazy conjugates as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch.nn import functional as F

import staticrt
from tests.support.joint_traces import joint, joint_calls

Model = Callable[..., Any]


def _rotary(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.reshape(len(x), 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones(2), r[:2])).flatten(1)


def _lazy_negative(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Any:
    z = x * w[0]
    return (z.conj().imag * 2) @ r, z.conj().imag, z * z


def _written(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    z = torch.zeros(len(x), 4, dtype=w.dtype)
    z[:, 1:] = (x @ w.real)[:, 1:] * 1j
    return z.add_(w[0]).conj()


def _recurrent(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(4, dtype=w.dtype)
    for _ in range(4):
        h = torch.tanh(h @ w * 0.3 + x.mean(0))
    return h


MODELS: dict[str, Model] = {
    "rotary": _rotary,
    "filtered": lambda x, w, r: torch.fft.irfft(torch.fft.rfft(x) * w[0, :3], n=4),
    "transformed": lambda x, w, r: torch.fft.ifft2(torch.fft.fft2(x) * w[:1]).real,
    "product": lambda x, w, r: (((x + 1j * r) @ w) * ((x + 1j * r) @ w).conj()).real,
    "adjoint": lambda x, w, r: ((x + 1j) @ w).mH @ ((x + 1j) @ w),
    "joined and conjugate": lambda x, w, r: torch.cat([x + 0j, w], 0).T.conj(),
    "polar": lambda x, w, r: ((x * 1j) @ w).angle() + ((x + 1j) @ w).abs().softmax(-1),
    "lazy negative": _lazy_negative,
    "written": _written,
    "recurrent": _recurrent,
    "solved": lambda x, w, r: torch.linalg.solve(w + 3 * torch.eye(4), (x + 0j).mT).mT,
    "along a dimension": lambda x, w, r: ((x + 1j).prod(1), (x + 1j * r).cumsum(1), torch.sgn(x * 1j + w[0])),
    "dropped": lambda x, w, r: F.dropout(x, 0.5, True) * w[0],
}
COMPILERS: dict[str, Model] = {
    "joint": joint,
    "backend": lambda function: torch.compile(function, backend="staticrt"),
}


def _run(function: Model, arguments: list[torch.Tensor], conjugate: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    results = function(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    incoming = [torch.randn_like(result.resolve_conj()) for result in results]
    if conjugate:
        incoming = [gradient.conj() for gradient in incoming]
    return results, torch.autograd.grad(results, arguments, incoming, allow_unused=True)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", MODELS)
def test_results_and_gradients_equal_eager(name: str, compiler: str) -> None:
    torch._dynamo.reset()
    compiled = COMPILERS[compiler](MODELS[name])
    for number, rows in enumerate((4, 5, 1, 4, 5, 5)):
        generator = torch.Generator().manual_seed(number)
        arguments = [
            torch.randn(*sizes, dtype=dtype, generator=generator).requires_grad_()
            for sizes, dtype in (((rows, 4), None), ((4, 4), torch.complex64), ((4,), None))
        ]
        conjugate = number % 2 == 1
        got, expected = (_run(f, arguments, conjugate) for f in (compiled, MODELS[name]))
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
        for result, eager in zip(got[0], expected[0], strict=True):
            assert (result.is_conj(), result.is_neg()) == (eager.is_conj(), eager.is_neg())
    if compiler == "joint":
        assert joint_calls(compiled) == 6


def test_second_derivatives_equal_eager() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x.sin()).abs().pow(2)

    found = []
    for function in (staticrt.compile(model), model):
        x = torch.linspace(0, 1, 6, dtype=torch.float64).requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.pow(2).sum(), x)))
    torch.testing.assert_close(found[0], found[1])


def test_a_captured_backward_takes_lazy_gradients() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex((x * x).reshape(-1, 2))

    compiled = staticrt.compile(model, graphs=True)
    for call in range(5):
        found = []
        for function in (compiled, model):
            x = torch.linspace(0, 1, 6).requires_grad_()
            result = function(x)
            gradient = torch.complex(*torch.arange(6.0).view(2, 3))
            found.append(torch.autograd.grad(result, x, gradient.conj() if call % 2 else gradient))
        torch.testing.assert_close(*found)
