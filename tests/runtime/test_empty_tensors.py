"""Prepared kernels at sizes that are 0: the same answers as eager's, the same errors, and no division by a size."""

import pytest
import torch
import torch.nn.functional as F

import staticrt

SHAPES = [(0, 3), (3, 0), (2, 0, 3), (0, 4, 5), (2, 3, 0)]
FUNCTIONS = {
    "cat": lambda x: torch.cat([x, x]).clone(),
    "cat of the last dimension": lambda x: torch.cat([x, x * 2], -1) + 1,
    "stack": lambda x: torch.stack([x, x], -1) + 1,
    "split": lambda x: torch.cat([y + 1 for y in x.split(1, -1)] or [x]),
    "flip": lambda x: x.flip(-1) + x.flip(0),
    "roll": lambda x: x.roll(1, 0) + 1,
    "permuted copy": lambda x: x.transpose(-1, -2).contiguous() * 2,
    "reshape": lambda x: x.transpose(0, -1).reshape(-1) + 1,
    "pad": lambda x: F.pad(x, (1, 2)) + 1,
    "sum": lambda x: x.sum(-1) + x.sum(0).sum(-1, keepdim=True).mean(),
    "all of it": lambda x: x.sum() + 1,
    "softmax": lambda x: torch.softmax(x, -1) + torch.log_softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]) * 2,
    "RMS norm": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "cumulative sum": lambda x: x.cumsum(-1) + 1,
    "pointwise chain": lambda x: torch.tanh(x * 2) + torch.sigmoid(x).exp(),
    "broadcast": lambda x: x + x[..., :1] * 2,
    "linear": lambda x: F.linear(x, torch.ones(5, x.shape[-1])) + 1,
    "product": lambda x: x @ x.transpose(-1, -2) + 1,
    "the other product": lambda x: x.transpose(-1, -2) @ x + 1,
    "gather": lambda x: x.gather(-1, torch.zeros_like(x[..., :0], dtype=torch.int64)) + 1,
    "index": lambda x: x[:, torch.zeros(0, dtype=torch.int64)] + 1,
    "index_select": lambda x: x.index_select(0, torch.zeros(0, dtype=torch.int64)) * 2,
    "where": lambda x: torch.where(x > 0, x, x * 2),
    "masked fill": lambda x: x.masked_fill(x > 0, 1.0) + 1,
    "part that is written": lambda x: _written(x),
    "embedding": lambda x: F.embedding(x.to(torch.int64), torch.ones(4, 3)) + 1,
    "cast": lambda x: x.to(torch.int32) + 1,
    "integer division": lambda x: x.to(torch.int64) // 2,
    "argmax of others": lambda x: (x + 1).sum(0).shape[0] + x,
    "tril": lambda x: x.tril() + x.triu(1),
    "repeat": lambda x: x.repeat(*([2] * x.dim())) + 1,
    "repeat_interleave": lambda x: x.repeat_interleave(2, -1) + 1,
    "one hot": lambda x: (x.to(torch.int64)[..., None] == torch.arange(3)).float() + 1,
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]) + 1,
    "sort": lambda x: x.sort(-1).values + 1,
    "norm": lambda x: x.norm(dim=-1) + 1,
    "any": lambda x: (x > 0).any(-1) | (x > 1).all(-1),
    "unfold": lambda x: x.unsqueeze(-1).expand(*x.shape, 3).reshape(*x.shape[:-1], -1) + 1,
}


def _written(x):
    y = x.clone()
    y[..., :1] += 1
    y[0:0] = 2
    return y


def outcome(function, x):
    try:
        return function(x), None
    except (RuntimeError, IndexError, ValueError) as error:
        return None, type(error)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
@torch.no_grad()
def test_empty_tensors(name, shape):
    function = FUNCTIONS[name]
    fast = staticrt.compile(function)
    full = torch.randn([size or 2 for size in shape]).abs()
    for x in (torch.randn(shape), full, torch.randn(shape), torch.randn(shape)):
        expected, error = outcome(function, x)
        answer, ours = outcome(fast, x)
        assert ours == error
        if error is None:
            torch.testing.assert_close(answer, expected, equal_nan=True)
            assert answer.numel() == 0 or answer.stride() == expected.stride()
