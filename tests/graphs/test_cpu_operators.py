"""Operators in CPU graphs equal eager, their errors included."""

import pytest
import torch
from torch import nn

from tests.support.graph_harness import Captured, check

OPERATORS = {
    "clone": lambda a: a.clone(),
    "contiguous": lambda a: a.t().contiguous(),
    "to": lambda a: a.to(torch.float64) + 1,
    "cat": lambda a: torch.cat([a, a * 2], 1),
    "stack": lambda a: torch.stack([a, -a]),
    "split": lambda a: [t * i for i, t in enumerate(a.split(2, 1))][1],
    "index": lambda a: a[torch.tensor([1, 0, 1])],
    "index two": lambda a: a[torch.tensor([1, 0]), torch.tensor([2, 5])],
    "index_put": lambda a: a.clone().index_put_((torch.tensor([0]),), torch.tensor(7.0)),
    "masked_fill": lambda a: a.masked_fill(a > 0, 0),
    "topk": lambda a: tuple(a.topk(2)),
    "sort": lambda a: tuple(a.sort(descending=True)),
    "max": lambda a: tuple(a.max(1)),
    "std": lambda a: a.std(0),
    "var_mean": lambda a: torch.var_mean(a, 1),
    "cumsum": lambda a: a.cumsum(1),
    "einsum": lambda a: torch.einsum("ij,kj->ik", a, a),
    "logsumexp": lambda a: a.logsumexp(1),
    "layer_norm": lambda a: nn.functional.layer_norm(a, (6,)),
    "group_norm": lambda a: nn.functional.group_norm(a.view(1, 4, 6), 2),
    "sdpa": lambda a: nn.functional.scaled_dot_product_attention(*[a.view(1, 2, 2, 6)] * 3),
    "conv1d": lambda a: nn.functional.conv1d(a.view(1, 4, 6), torch.ones(2, 4, 3)),
    "max_pool": lambda a: nn.functional.max_pool2d(a.view(1, 1, 4, 6), 2),
    "interpolate": lambda a: nn.functional.interpolate(a.view(1, 1, 4, 6), scale_factor=2.0),
    "pad": lambda a: nn.functional.pad(a, (1, 1), value=3.0),
    "cross_entropy": lambda a: nn.functional.cross_entropy(a, torch.arange(4)),
    "one_hot_free": lambda a: torch.zeros(4, 6).scatter_(1, torch.arange(4).view(4, 1), 1.0) + a,
    "gather": lambda a: a.gather(1, torch.zeros(4, 2, dtype=torch.long)),
    "complex": lambda a: torch.view_as_real(torch.complex(a, -a).conj() * 2j),
    "conj view": lambda a: torch.view_as_real((torch.complex(a, a).conj() + 1).resolve_conj()),
    "fft": lambda a: torch.fft.rfft(a).abs(),
    "linalg": lambda a: torch.linalg.solve(a[:, :4] + 5 * torch.eye(4), a),
    "svdvals": lambda a: torch.linalg.svdvals(a),
    "bfloat16": lambda a: (a.bfloat16() @ a.bfloat16().t()).float(),
    "integer": lambda a: (a * 100).long() // 7 % 5,
    "bool": lambda a: ((a > 0) & (a < 1)).any(1),
    "type promotion": lambda a: (a > 0) + 1.5,
    "number minus": lambda a: 3 - a / 2,
    "foreach": lambda a: tuple(torch._foreach_mul([a, a + 1], 2.0)),
    "out": lambda a: torch.add(a, 1, out=torch.empty(4, 6)),
    "out resized": lambda a: torch.add(a, 1, out=torch.empty(0)),
    "expand": lambda a: a[:1].expand(4, 6) + a,
    "as_strided": lambda a: a.as_strided((3, 2), (1, 6)) * 1.0,
    "transpose_": lambda a: (a * 2).transpose_(0, 1) + 1,
    "empty": lambda a: torch.empty(4, 6).copy_(a),
    "empty size": lambda a: a[:0].sum(0) + a.sum(0),
    "no elements": lambda a: a[:0] * 2,
    "diag write": lambda a: (lambda b: (b.fill_diagonal_(0), b)[1])(a.clone()),
    "lift": lambda a: a * torch.tensor(3) + torch.as_tensor([1.0] * 6),
    "embedding_bag": lambda a: nn.functional.embedding_bag(torch.tensor([[0, 1], [2, 3]]), a),
    "roll": lambda a: a.roll(1, 0),
    "unfold": lambda a: a.unfold(1, 2, 2).sum(-1),
    "batch_norm": lambda a: nn.functional.batch_norm(a, torch.zeros(6), torch.ones(6)),
    "dropout off": lambda a: nn.functional.dropout(a, 0.0) * 2,
    "checkpoint": lambda a: torch.utils.checkpoint.checkpoint(torch.sin, a, use_reentrant=False) + 1,
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_equal_eager(name):
    torch.manual_seed(1)
    check(OPERATORS[name], lambda: (torch.randn(4, 6),), calls=2)


def test_an_error_in_a_replay_is_eagers_and_the_next_replay_works():
    table = torch.randn(4, 3)
    captured = Captured(lambda i: nn.functional.embedding(i, table) * 2, torch.tensor([0, 3]))
    with pytest.raises(IndexError):
        captured(torch.tensor([0, 9]))
    assert torch.equal(captured(torch.tensor([1, 2]))[0], table[1:3] * 2)


def test_a_division_by_zero_raises_as_in_eager():
    captured = Captured(lambda a, b: a // b, torch.tensor([6, 8]), torch.tensor([2, 3]))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        captured(torch.tensor([6, 8]), torch.tensor([0, 3]))
    assert captured(torch.tensor([9, 9]), torch.tensor([2, 3]))[0].tolist() == [4, 3]


def test_a_custom_operator_is_called_as_it_is():
    @torch.library.custom_op("staticrt_test::twice_plus", mutates_args=())
    def twice_plus(a: torch.Tensor, n: int) -> torch.Tensor:
        return a * 2 + n

    @torch.library.custom_op("staticrt_test::bump", mutates_args={"a"})
    def bump(a: torch.Tensor) -> None:
        a += 1

    def f(a):
        b = a * 1
        bump(b)
        return twice_plus(b, 3)

    check(f, lambda: (torch.randn(3),))
