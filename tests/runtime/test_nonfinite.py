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
