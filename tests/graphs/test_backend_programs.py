"""Compiled programs inside captured graphs: one step that reads and writes where it is told."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.graphs.backend import get_backend
from staticrt.graphs.cpu_pool import CpuGraphPool


def capture(function, *inputs):
    graph = get_backend("cpu").new_graph(CpuGraphPool())
    with graph.capture(inputs=inputs):
        outputs = function(*inputs)
    return graph, outputs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        y = self.b(h)
        return y.softmax(-1), y.view(-1), x[1:], h.sum()


def test_a_compiled_module_is_one_step():
    torch.manual_seed(0)
    model = Net().eval()
    fast = staticrt.compile(model)
    x = torch.randn(3, 8)
    with torch.no_grad():
        for _ in range(3):
            fast(x)
        graph, outputs = capture(fast, x)
        assert graph.stats["programs"] == 1
        for _ in range(3):
            x = torch.randn(3, 8)
            graph.replay([x])
            want = model(x)
            torch.testing.assert_close((outputs[0], outputs[1], outputs[3]), (want[0], want[1], want[3]))


def test_what_surrounds_a_compiled_module_is_recorded_too():
    torch.manual_seed(0)
    model = Net().eval()
    fast = staticrt.compile(model)
    scale = torch.tensor(2.0)

    def f(x, module):
        y = module((x * scale).relu())
        return y[0] + 1, module(x - 1)[3] * y[3]

    x = torch.randn(3, 8)
    with torch.no_grad():
        f(x, fast)
        graph, outputs = capture(lambda a: f(a, fast), x)
        assert graph.stats["programs"] == 2
        for value in (2.0, 3.0):
            scale.fill_(value)
            x = torch.randn(3, 8)
            graph.replay([x])
            torch.testing.assert_close(outputs, f(x, model))


def test_outputs_of_a_program_can_be_placed_elsewhere():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        fast(x)
        graph, y = capture(fast, x)
        before = y.clone()
        graph.bind_outputs([y])
        other, out = torch.randn(2, 4), torch.empty(2, 4)
        graph.replay([other], [out])
        torch.testing.assert_close(out, model(other))
    assert torch.equal(y, before)


def test_a_program_that_writes_its_argument():
    def f(cache, x):
        cache.add_(x)
        return cache * 2

    fast = staticrt.compile(f)
    fast(torch.zeros(3), torch.ones(3))
    fast(torch.zeros(3), torch.ones(3))
    cache, x = torch.zeros(3), torch.ones(3)
    graph, y = capture(fast, cache, x)
    assert cache.tolist() == [1, 1, 1]
    for step in (2, 3):
        graph.replay([cache, x])
        assert cache.tolist() == [step] * 3
        assert y.tolist() == [2 * step] * 3


def test_values_that_change_the_program_are_followed():
    """An operator that refuses some values finishes on the general path, in replays as in calls."""

    def f(a, b):
        return (a // b) * 2

    fast = staticrt.compile(f)
    a, b = torch.tensor([6, 8]), torch.tensor([2, 3])
    fast(a, b)
    fast(a, b)
    graph, y = capture(fast, a, b)
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        graph.replay([a, torch.tensor([0, 1])])
    graph.replay([torch.tensor([9, 9]), b])
    assert y.tolist() == [8, 6]


def test_random_numbers_of_a_program_go_on():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    reference = copy.deepcopy(model)
    fast = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        fast(x)
        fast(x)
        torch.manual_seed(5)
        graph, y = capture(fast, x)
        got = [y.clone()]
        for _ in range(3):
            graph.replay([x])
            got.append(y.clone())
        torch.manual_seed(5)
        for t in got:
            torch.testing.assert_close(t, reference(x))
