"""Version counters: a call adds to each tensor's what eager adds, so that autograd refuses and allows what it does in eager."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import staticrt
from tests.support.compilers import backend, splits


@pytest.fixture(params=[staticrt.compile, splits, backend])
def compiler(request, fresh_dynamo):
    return request.param


def _norms():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


class _Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def _added(model, call, times=3):
    """What each of several calls adds to the versions of the model's buffers."""
    found = []
    for _ in range(times):
        before = [buffer._version for buffer in model.buffers()]
        call()
        found.append([buffer._version - old for buffer, old in zip(model.buffers(), before, strict=True)])
    return found


@pytest.mark.parametrize("gradients", [False, True])
def test_running_statistics_gain_no_versions(compiler, gradients):
    x = torch.randn(5, 4)
    eager, model = _norms(), _norms()
    compiled = compiler(model)
    with torch.set_grad_enabled(gradients):
        assert _added(model, lambda: compiled(x)) == _added(eager, lambda: eager(x)) == [[0, 0, 1]] * 3
    torch.testing.assert_close(model[1].running_var, eager[1].running_var)


def test_a_backward_may_come_after_statistics_were_updated(compiler):
    x = torch.randn(5, 4)

    def gradient(model, call):
        model.eval()
        first = call(x).square().sum()
        model.train()
        (first + call(x).square().sum()).backward()
        return model[0].weight.grad

    eager, model = _norms(), _norms()
    torch.testing.assert_close(gradient(model, compiler(model)), gradient(eager, eager))


def test_a_trace_adds_no_versions_of_its_own(compiler):
    model = _Counter()
    compiled = compiler(model)
    with torch.no_grad():
        assert _added(model, lambda: compiled(torch.ones(4))) == [[1]] * 3


def test_a_trace_that_fails_adds_no_versions():
    class Prints(_Counter):
        def forward(self, x):
            y = super().forward(x)
            print(end="")
            return y

    model = Prints()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        assert _added(model, lambda: compiled(torch.ones(4))) == [[1]] * 3
    assert compiled.explain().eager


def test_statistics_that_a_training_call_wrote_are_read_by_the_next_inference():
    model = nn.Sequential(nn.Conv2d(3, 2048, 1), nn.BatchNorm2d(2048)).eval()
    compiled = staticrt.compile(model)
    x = torch.randn(2, 3, 2, 2)
    with torch.no_grad():
        compiled(x)
        compiled(x)
        model[1].running_mean.data[1001] += 5  # as a batch norm writes: past the version counter
        torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("is_needed", [False, True])
def test_what_a_number_was_decided_by_may_be_written_where_no_gradient_needs_it(compiler, is_needed):
    """`abs` keeps its argument for a gradient that comes only with its result in the loss."""

    def model(x):
        y = x + 1
        total = y.abs().sum()
        times = int(total) % 3
        y.masked_fill_(y > 2, 2)
        return y * times + total if is_needed else y * times

    compiled = compiler(model)
    for function in (model, compiled, compiled):
        x = torch.tensor([0.5, 2.0, 5.0], requires_grad=True)
        loss = function(x).sum()
        if is_needed:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()
            assert x.grad.tolist() == [1, 0, 0]
