"""Writes into parts of tensors, which a prepared program makes in the tensor's own bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import staticrt


def recurrence(x: Tensor, y: Tensor) -> Tensor:
    b = x * 2
    for i in range(1, b.shape[-1]):
        b[..., i] += b[..., i - 1] * y[..., i]
    return b


def neighbours(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    a = torch.zeros_like(x)
    a[1:] = x[:-1]
    a[:, 1:-1] *= y[:, 2:]
    a[:, ::2] = a[:, ::2].flip(0)
    return a, a.sum()


def old_versions(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    a = x + y
    row = a[1]
    before = a + 1
    a[1] = a[0]
    a[0] = row + 1
    a[2] += row
    return before, a, row * 1


def of_an_input(x: Tensor, y: Tensor) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)
    x[:, -1] = y[:, 0]
    x.t()[1] += 1
    x[1:3, 1:3] = x[0:2, 0:2].clone()
    return x


@pytest.mark.usefixtures("num_threads_stays")
@pytest.mark.parametrize("function", [recurrence, neighbours, old_versions, of_an_input])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_eagers(function: Callable[..., object], dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    fast = staticrt.compile(function)
    generator = torch.Generator().manual_seed(5)
    for size in (6, 6, 150, 150):
        x = torch.randint(-9, 9, (size, size + 1), generator=generator).to(dtype)
        y = torch.randint(-2, 2, (size, size + 1), generator=generator).to(dtype)
        kept = x.clone(), y.clone()
        for _ in range(3):
            torch.testing.assert_close(fast(x, y), function(x, y), rtol=1e-6, atol=1e-6)
        assert torch.equal(x, kept[0])
        assert torch.equal(y, kept[1])


def test_the_parts_alone_are_written() -> None:
    """Old bytes are kept where nobody reads the old tensor: the arena holds one tensor, not one per write."""

    def function(x: Tensor) -> Tensor:
        a = x + 1
        for i in range(8):
            a[i] += i
        return a.sum()

    fast = staticrt.compile(function)
    x = torch.randn(1000, 1000)
    with torch.no_grad():
        for _ in range(4):
            got = fast(x)
    torch.testing.assert_close(got, function(x))
    rows = [row for row in fast.profile(x).rows if "select_scatter" in row.op]
    assert rows
    assert {row.route for row in rows} == {"copy"}
    (signature,) = fast.explain().traces[0].signatures
    assert signature.arena_bytes < 1.5 * x.nbytes
