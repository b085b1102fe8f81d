"""Functions whose outputs data decides, with graphs: replays cannot repeat a number or a size that was read."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ReplayError
from staticrt.graphs import GraphContext
from tests.support.graph_harness import Captured, device

VALUES = [[1.0, 1.0, 1.0], [-1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, 2.0, -1.0]]


class Of(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


FUNCTIONS = {
    "a number": lambda x: (x * 2).sum().item(),
    "a list of numbers": lambda x: (x * 2).tolist(),
    "nonzero": lambda x: (x + 1).nonzero(),
    "a mask": lambda x: x[x > 0] * 2,
    "unique": lambda x: torch.unique(x),
    "where, which torch does not tag": lambda x: torch.where(x > 0)[0] + 1,
    "repeat_interleave, neither": lambda x: torch.arange(3).repeat_interleave((x > 0).long()),
    "one of several": lambda x: (x * 2, (x > 0).nonzero(), x.sum().item()),
    "after a write": lambda x: (x.add_(1), x[x > 0])[1],
    "a sum of as many as there are": lambda x: x[x > 0].sum(),
}


@pytest.fixture
def context():
    with GraphContext("cpu") as ctx:
        yield ctx


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_call_gives_its_own_answer(context, name):
    function = FUNCTIONS[name]
    compiled = staticrt.compile(Of(function), graphs=context)
    for values in VALUES * 2:
        given, same = torch.tensor(values), torch.tensor(values)
        want, got = function(given), compiled(same)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        assert torch.equal(same, given)
    assert context.explain().captures == 0
    assert "depend on values" in context.explain().skips[0].reason


def test_what_sizes_decide_is_captured(context):
    compiled = staticrt.compile(Of(lambda x: (x * x.shape[0], x.shape[0])), graphs=context)
    for size in (3, 3, 4, 4, 4, 3):
        out, number = compiled(torch.ones(size))
        assert number == size
        assert torch.equal(out, torch.full((size,), float(size)))
    assert context.explain().captures == 2
    assert [skip.calls for skip in context.explain().skips] == [1]  # the first call of the second size


@torch.library.custom_op("staticrt_test::positive", mutates_args=())
def positive(x: torch.Tensor) -> torch.Tensor:
    """Nothing says that values decide the size of its result."""
    return x[x > 0].clone()


def write_draw_and_choose(x, total, generator):
    x.add_(1)
    total.add_(x.sum())
    drawn = torch.rand(3) + torch.rand(3, generator=generator)
    return positive(x) * 2, drawn, total * 1


@pytest.mark.parametrize("kind", ["cpu", "cpu_copy"])
def test_a_custom_operator_that_says_nothing_of_sizes(kind):
    """A replay that finds another size undoes what it wrote and drew; the call and all later ones run uncaptured."""
    with GraphContext("cpu", backend=device(kind)) as context:
        f = context.wrap(
            write_draw_and_choose, static_inputs=("x", "total"), mutated_inputs=("x", "total"), name="choose"
        )
        mine, theirs = (torch.Generator().manual_seed(1) for _ in range(2))
        given, same = torch.zeros(3), torch.zeros(3)
        totals = torch.zeros(()), torch.zeros(())
        torch.manual_seed(0)
        states = [torch.get_rng_state()] * 2
        # 3 positive values while it is captured and replayed, then others.
        for values in ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 3.0, 3.0], [1.0, 1.0, 1.0], *VALUES):
            given.copy_(torch.tensor(values))
            same.copy_(given)
            torch.set_rng_state(states[0])
            want = write_draw_and_choose(given, totals[0], theirs)
            states[0] = torch.get_rng_state()
            torch.set_rng_state(states[1])
            got = f(same, totals[1], mine)
            states[1] = torch.get_rng_state()
            torch.testing.assert_close(got, want, rtol=0, atol=0)
            assert torch.equal(same, given)
            assert torch.equal(*totals)
        assert torch.equal(mine.get_state(), theirs.get_state())
        report = context.explain()
        assert (report.captures, report.nodes) == (1, ())
        (skip,) = report.skips
        assert "a result has sizes [2], but [3] at the capture: it depends on values" in skip.reason
        assert skip.calls == len(VALUES) - 1


def test_a_rebound_input_that_lies_in_less_memory_is_put_back():
    """What is kept of a written input is what the tensor covers, not what the storage at the capture held."""

    def f(x):
        x.add_(1)
        return positive(x)

    whole = torch.ones(12)
    captured = Captured(f, whole.view(4, 3)[1:3, :2])
    for layout in (torch.ones(5), torch.ones(7)):
        x = layout[-5:].as_strided((2, 2), (3, 1), layout.storage_offset() + len(layout) - 5)
        x[0, 0] = -9
        before = layout.clone()
        with pytest.raises(ReplayError, match="depends on values"):
            captured.graph.replay([x])
        assert torch.equal(layout, before)
    captured.graph.replay([torch.zeros(12).view(4, 3)[:2, :2]])


def test_a_custom_operator_of_fixed_sizes_replays():
    with GraphContext("cpu") as context:
        f = context.wrap(lambda x: positive(x.abs() + 1) + 1)
        for values in VALUES:
            x = torch.tensor(values)
            assert torch.equal(f(x), x.abs() + 2)
        assert context.explain().replays == len(VALUES) - 1
