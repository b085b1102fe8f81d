"""Infinities and NaN among the inputs: prepared kernels answer as eager's do."""

import pytest
import torch
from torch.nn import functional as F

import staticrt

INF, NAN = float("inf"), float("nan")
FUNCTIONS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmax over columns": lambda x: torch.softmax(x, 0),
    "log_softmax over columns": lambda x: torch.log_softmax(x, 0),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(-1),
    "chain": lambda x: torch.sigmoid(x * 2) + torch.tanh(x) * F.silu(x) - torch.exp(-x),
    "norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(len(x), dtype=torch.long), reduction="none"),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@torch.no_grad()
@pytest.mark.parametrize("columns", [2, 8, 15, 16, 17, 40])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_answers_are_eagers(name, columns):
    function = FUNCTIONS[name]
    compiled = staticrt.compile(function)
    torch.manual_seed(0)
    plain = torch.randn(7, columns)
    hidden, largest, nans = plain.clone(), plain.clone(), plain.clone()
    hidden[1], hidden[3, 0] = -INF, -INF
    largest[2, 0], largest[4, -1], largest[5] = INF, INF, INF
    nans[3, -1], nans[6] = NAN, NAN
    for x in (plain, hidden, largest, nans):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True, rtol=2e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [1, 2, 16, 33])
def test_gelu_of_infinity_is_eagers(count, dtype):
    """oneDNN, which eager asks for contiguous tensors of more than one element, may have another answer than ATen."""
    largest = torch.finfo(dtype).max / 4
    values = torch.tensor([INF, -INF, NAN, largest, -largest, 0.0, -0.0, 1.0] * 5, dtype=dtype)[:count]
    strided = torch.stack([values, values], 1)[:, 0]
    functions = [F.gelu, lambda x: F.gelu(x * 1) * 2, lambda x: F.gelu(x, approximate="tanh")]
    for function in functions:
        compiled = staticrt.compile(function)
        for x in (values, strided):
            want = function(x)
            for _ in range(3):
                got = compiled(x)
                torch.testing.assert_close(got, want, equal_nan=True)
                assert torch.equal(got.signbit()[want == 0], want.signbit()[want == 0])


@torch.no_grad()
@pytest.mark.parametrize("size", [3, 20])
def test_a_product_that_is_multiplied_by_zero_is_eagers(size):
    """Eager multiplies small products by 0, which leaves NaN of infinities, and leaves large ones out."""

    def function(c, a, b):
        return torch.baddbmm(c, a, b, alpha=0)

    compiled = staticrt.compile(function)
    torch.manual_seed(0)
    c, a, b = torch.randn(3, 2, size, size)
    a[0, 0, 0] = INF
    for _ in range(3):
        torch.testing.assert_close(compiled(c, a, b), function(c, a, b), equal_nan=True)
