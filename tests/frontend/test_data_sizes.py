"""Sizes that data decides: what torch's rules assume of them holds for one call, and no other call fails for it."""

import pytest
import torch
from torch.nn import functional as F

import staticrt
from staticrt.frontend.tracing.sizing import Sizing

LENGTHS = [(3, 3), (3, 3), (1, 4), (4, 1), (2, 2), (1, 1), (0, 1), (5, 5)]


def positives(count):
    x = torch.zeros(6)
    x[:count] = torch.arange(count) + 1.0
    return x


def added(x, y):
    return x[x > 0] + y[y > 0]


def written(x, y):
    z = torch.maximum(x[x > 0], y[y > 0]) * 2
    x.mul_(2)
    return z


@torch.no_grad()
@pytest.mark.parametrize("function", [added, written])
def test_lengths_that_broadcast_are_not_taken_for_equal(function):
    """Of two such lengths torch's rule for broadcasting assumes that they are equal; one of them may be 1."""
    compiled = staticrt.compile(function)
    for first, second in LENGTHS:
        for _ in range(2):
            x, y = positives(first), positives(second)
            mine = x.clone()
            assert torch.equal(compiled(mine, y), function(x, y))
            assert torch.equal(mine, x)


@torch.no_grad()
def test_pieces_of_a_tensor_whose_length_data_decides():
    def sums(x):
        return torch.stack([torch.where(x == value)[0].sum() for value in torch.unique(x)])

    compiled = staticrt.compile(sums)
    for values in ([1, 2, 1, 3, 2, 5], [4, 4, 2, 6, 1, 1], [1, 1, 1], [3, 3, 1, 2, 5, 4, 4]):
        x = torch.tensor(values)
        for _ in range(2):
            assert torch.equal(compiled(x), sums(x))
    explanation = compiled.explain()
    assert not explanation.eager
    assert not explanation.notes


@torch.no_grad()
def test_a_bound_that_the_model_asks_for_is_its_error():
    def few(x):
        y = x[x > 0]
        torch._check(y.shape[0] < 4)
        return y * 2

    compiled = staticrt.compile(few)
    for _ in range(2):
        assert torch.equal(compiled(positives(3)), few(positives(3)))
        with pytest.raises(RuntimeError):
            compiled(positives(5))


@torch.no_grad()
def test_a_mask_of_positions_reads_and_writes_rows():
    """Adding in place asks whether two lengths agree, from within a meta kernel: the answer is computed on real values."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def experts(x):
        mask = (torch.arange(x.shape[1]) + x.sum(-1).long()) % 2 == 0
        hidden = x * 1
        ours, theirs = first(hidden[~mask]), second(hidden[mask])
        hidden[~mask] += ours
        hidden[mask] += theirs
        return hidden

    compiled = staticrt.compile(experts)
    for sizes in ((2, 5, 4), (2, 5, 4), (3, 7, 4), (1, 1, 4)):
        x = torch.randn(sizes)
        torch.testing.assert_close(compiled(x), experts(x))
    explanation = compiled.explain()
    assert not explanation.eager
    assert not explanation.notes


@torch.no_grad()
def test_text_of_a_size_of_torchs_symbols(monkeypatch):
    """Torch's symbols keep the name of a size whose value is guarded where the equation cannot be solved."""
    monkeypatch.setattr(Sizing, "first", staticmethod(lambda dynamic, shape_env: Sizing.SHAPE_ENV))

    def function(x):
        rows = F.max_pool2d(x, 3, 4, 1).shape[2]
        return x * len(f"{rows} rows")

    compiled = staticrt.compile(function, fullgraph=True)
    for size in (20, 21, 60, 20):
        x = torch.randn(1, 1, size, 5)
        assert torch.equal(compiled(x), function(x))
    assert compiled.explain().eager == ()
