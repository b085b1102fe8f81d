"""Gradients of parameters that change besides a call: by other threads during its trace, or by the forward itself."""

import operator
import threading

import pytest
import torch

import staticrt
from staticrt.frontend.tracing import trace as tracing

GRADIENT = torch.Tensor.grad  # a descriptor of C


class Plain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).relu()


class Clears(Plain):
    def forward(self, x):
        self.zero_grad()
        return self.layer(x)


class ClearsByOptimizer(Plain):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)

    def forward(self, x):
        self.optimizer.zero_grad()
        return self.layer(x)


class ClearsByAnotherName(Plain):
    def __init__(self):
        super().__init__()
        self.clear = self.layer.zero_grad

    def forward(self, x):
        self.clear()
        return self.layer(x)


class Clips(Plain):
    def forward(self, x):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.5)
        return self.layer(x)


class ClipsValues(Plain):
    def forward(self, x):
        torch.nn.utils.clip_grad_value_(self.parameters(), 0.1)
        return self.layer(x)


class ReadsByAnotherName(Plain):
    def forward(self, x):
        return self.layer(x) + GRADIENT.__get__(self.layer.weight).sum()


class ReadsByGetter(Plain):
    read = operator.attrgetter("grad")

    def forward(self, x):
        return self.layer(x) + self.read(self.layer.weight).sum()


class Accumulates(Plain):
    def forward(self, x):
        self.layer(x).sum().backward()
        return self.layer(x)


@pytest.mark.parametrize("had_gradients", [False, True])
def test_a_backward_during_a_trace_is_kept(monkeypatch, had_gradients):
    model = Plain()
    x = torch.randn(4, 3)
    if had_gradients:
        model(x).sum().backward()
    before = [p.grad.clone() if had_gradients else torch.zeros_like(p) for p in model.parameters()]
    traced = []

    def beside(request, make=tracing.trace):
        result = make(request)
        thread = threading.Thread(target=lambda: model(x).sum().backward())
        thread.start()
        thread.join()
        traced.append(request)
        return result

    monkeypatch.setattr(tracing, "trace", beside)
    staticrt.compile(model)(torch.randn(2, 3))
    assert traced
    wanted = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    for p, old, new in zip(model.parameters(), before, wanted, strict=True):
        torch.testing.assert_close(p.grad, old + new)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "kind",
    [Clears, ClearsByOptimizer, ClearsByAnotherName, Clips, ClipsValues, Accumulates],
)
def test_gradients_that_the_forward_changes(kind, gradients):
    torch.manual_seed(0)
    eager, model = kind(), kind()
    model.load_state_dict(eager.state_dict())
    compiled = staticrt.compile(model)
    x = torch.randn(4, 3)
    for _ in range(4):
        results = []
        for function, module in ((eager, eager), (compiled, model)):
            module.layer(x).sum().backward()
            with torch.set_grad_enabled(gradients or kind is Accumulates):
                result = function(x)
            if gradients:
                result.sum().backward()
            results.append(result.detach())
        torch.testing.assert_close(*results)
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


@torch.no_grad()
def test_zero_grad_that_is_not_called_is_no_reason_to_run_eagerly():
    class MayClear(Plain):
        def forward(self, x, clear=False):
            if clear:
                self.zero_grad()
            return self.layer(x)

    model = MayClear()
    compiled, x = staticrt.compile(model), torch.randn(4, 3)
    assert torch.equal(compiled(x), model(x))
    assert not compiled.explain().eager


@pytest.mark.filterwarnings("ignore")
def test_gradients_that_there_are_only_after_the_first_call():
    model = Clips()
    compiled, x = staticrt.compile(model), torch.randn(4, 3)
    for _ in range(3):
        model.zero_grad()
        with torch.no_grad():
            compiled(x)
    for p in model.parameters():
        p.grad = torch.full_like(p, 7)
    with torch.no_grad():
        compiled(x)
    assert all(p.grad.abs().max() < 1 for p in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("kind", [ReadsByAnotherName, ReadsByGetter])
def test_gradients_that_are_read_by_another_name(kind):
    model = kind()
    compiled, x = staticrt.compile(model), torch.randn(4, 3)
    for scale in (1, 2, 3):
        for p in model.parameters():
            p.grad = torch.full_like(p, scale)
        torch.testing.assert_close(compiled(x), model(x))
