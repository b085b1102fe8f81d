"""Attention in blocks of queries with masks of every layout, against eager in double."""

import pytest
import torch
import torch.nn.functional as F

import staticrt

MASKS = {
    "numbers": lambda rows, keys: torch.randn(rows, keys),
    "truth": lambda rows, keys: torch.rand(rows, keys) > 0.3,
    "transposed numbers": lambda rows, keys: torch.randn(keys, rows).t(),
    "transposed truth": lambda rows, keys: (torch.rand(keys, rows) > 0.3).t(),
    "one number a row": lambda rows, keys: torch.randn(rows, 1).expand(rows, keys),
    "one row": lambda rows, keys: torch.rand(1, 1, 1, keys) > 0.5,
    "nothing seen": lambda rows, keys: torch.zeros(rows, keys, dtype=torch.bool),
}


@pytest.mark.parametrize(
    "sizes", [(64, 64, 32), (5, 7, 8), (17, 33, 24), (130, 70, 32), (40, 600, 64)], ids=str
)
@pytest.mark.parametrize("name", MASKS)
@torch.no_grad()
def test_masks(name, sizes):
    rows, keys, depth = sizes
    q, k, v = (torch.randn(2, 2, n, depth) for n in (rows, keys, keys))
    mask = MASKS[name](rows, keys)
    compiled = staticrt.compile(F.scaled_dot_product_attention)
    for _ in range(3):
        answer = compiled(q, k, v, mask)
    assert "blocks of queries" in str(compiled.explain())
    wide = mask.double() if mask.is_floating_point() else mask
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide).float()
    torch.testing.assert_close(answer, expected, equal_nan=True)
