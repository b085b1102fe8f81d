"""Traces that are right for some calls only, for what their model asked: each is told apart after loading."""

import io

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import InputError


def reload(compiled):
    file = io.BytesIO()
    staticrt.save(compiled, file, exported_program=False)
    return staticrt.load(file.getvalue())


def compiled(function, *calls):
    fast = staticrt.compile(function)
    with torch.no_grad():
        for args in calls:
            fast(*args)
    return fast


def by_sum(x):
    return x * 2 if x.sum() > 0 else x - 1


def test_branches_that_data_decides_are_saved_and_chosen():
    ones = torch.ones(3)
    loaded = reload(compiled(by_sum, (ones,), (-ones,)))
    for _ in range(3):
        for size in (2, 5):
            x = torch.rand(size) + 0.1
            torch.testing.assert_close(loaded(x), x * 2)
            torch.testing.assert_close(loaded(-x), -x - 1)


def test_a_branch_that_was_not_traced_is_an_error():
    loaded = reload(compiled(by_sum, (torch.ones(3),)))
    with pytest.raises(InputError, match="data decides a branch otherwise than when it was traced"):
        loaded(-torch.ones(3))
    assert loaded(torch.ones(3)).tolist() == [2.0] * 3


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        noise = torch.rand(4)
        self.calls.add_(1)
        return noise * 2 if x.sum() > 0 else noise - 1


def test_trying_another_branch_first_draws_and_writes_nothing():
    ones = torch.ones(3)
    module = Counter()
    fast = compiled(module, (ones,), (-ones,))
    module.calls.zero_()
    loaded = reload(fast)
    for number, x in enumerate((ones, -ones, ones, -ones), 1):
        torch.manual_seed(7)
        got = loaded(x)
        drawn = torch.rand(2)
        torch.manual_seed(7)
        want = Counter()(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(drawn, torch.rand(2))
        assert loaded.state_dict()["calls"].item() == number


def pairs(q, k, v):
    return q * 2 if q is k else q + k if k is v else q * k * v


def test_arguments_that_are_one_tensor_are_told_apart():
    t, u, w = torch.rand(3), torch.rand(3), torch.rand(3)
    calls = [(t, t, u), (t, u, u), (t, u, w)]
    loaded = reload(compiled(pairs, *calls))
    for _ in range(3):
        for call in calls:
            torch.testing.assert_close(loaded(*call), pairs(*call))
    with pytest.raises(InputError, match="'v' and 'q' are the same tensor, traced were two"):
        loaded(t, u, t)


def test_self_attention_is_saved():
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.rand(2, 5, 8)
    loaded = reload(compiled(attention, (x, x, x)))
    with torch.no_grad():
        for length in (5, 3):
            x = torch.rand(2, length, 8)
            torch.testing.assert_close(loaded(x, x, x), attention(x, x, x))
    with pytest.raises(InputError, match="two tensors, traced was one for both"):
        loaded(x, x.clone(), x)


def when_any(x):
    return x.sum() * 2 if x.numel() else torch.full((), 7.0)


def test_empty_arguments_need_a_trace_of_their_own():
    full, empty = torch.ones(4, 3), torch.ones(0, 3)
    loaded = reload(compiled(when_any, (full,)))
    with pytest.raises(InputError, match=r"'x' has sizes \[0, 3\], traced was a tensor without"):
        loaded(empty)
    loaded = reload(compiled(when_any, (full,), (empty,)))
    for _ in range(3):
        assert (loaded(full).item(), loaded(empty).item()) == (24.0, 7.0)
