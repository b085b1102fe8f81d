"""A model that fills a cache where it is not there, and drops it between calls: a trace serves the new tensors."""

import copy

import pytest
import torch
from torch import nn

import staticrt


class Filling(nn.Module):
    """Keeps in `eval()` what it computes in each call of `train()`, as timm's levit."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer = nn.Linear(3, 3)
        self.kept = {} if kind == "cleared" else None

    def train(self, mode=True):
        super().train(mode)
        if mode and self.kind == "cleared":
            self.kept.clear()
        elif mode:
            self.kept = None
        return self

    def _made(self):
        scaled = self.layer.bias.detach() * 2
        return (scaled, scaled + 1) if self.kind == "pair" else scaled

    def forward(self, x):
        if self.training:
            return self.layer(x)
        if self.kind == "cleared":
            if "bias" not in self.kept:
                self.kept["bias"] = self._made()
            return self.layer(x) + self.kept["bias"]
        if self.kept is None:
            self.kept = self._made()
        if self.kind == "pair":
            return self.layer(x) * self.kept[0] + self.kept[1]
        return self.layer(x) + self.kept


@pytest.mark.parametrize("kind", ["cleared", "tensor", "pair"])
def test_phases_of_evaluation_share_their_traces(kind):
    torch.manual_seed(0)
    model = Filling(kind)
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    x = torch.randn(2, 3)
    for phase in range(5):
        results = []
        for owner, call in ((model, compiled), (eager, eager)):
            owner.train()
            call(x).sum().backward()
            with torch.no_grad():
                owner.layer.bias -= owner.layer.bias.grad
                owner.eval()
                results.append([call(x) for _ in range(3)])
        torch.testing.assert_close(*results)
        if phase == 1:
            traces = len(compiled.explain().traces)
    assert len(compiled.explain().traces) == traces == 2, compiled.explain()


class Reads(nn.Module):
    """Reads a tensor by one or several places; some differ in more than which tensor it is."""

    def __init__(self):
        super().__init__()
        self.first = {"a": torch.ones(2), "size": 2}
        self.second = [self.first["a"]]
        self.third = torch.full((2,), 0.5)

    def forward(self, x):
        one, two = self.first["a"], self.second[0]
        x = x * one + two * self.first["size"] + self.third
        if one is two:
            x = x + 10
        if two is self.third:
            x = x + 100
        return x - len(self.first) if one.sum().item() > 0 else x


def _both(model, value):
    model.first = {**model.first, "a": value}
    model.second = [value]


CHANGES = {
    "in both places": lambda m: _both(m, torch.full((2,), 3.0)),
    "in one place": lambda m: setattr(m, "first", {"a": torch.full((2,), 4.0), "size": 2}),
    "another size": lambda m: setattr(m, "first", {**m.first, "size": 3}),
    "another key": lambda m: m.first.update(b=1),
    "by a tensor that was there": lambda m: _both(m, m.third),
    "another layout": lambda m: _both(m, torch.rand(2, 2)),
    "one that needs gradients": lambda m: _both(m, torch.rand(2, requires_grad=True)),
    "a negative one": lambda m: _both(m, torch.full((2,), -1.0)),
    "with an attribute": lambda m: _both(m, _marked(torch.rand(2))),
}


def _marked(value):
    value.size = 7
    return value


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_may_differ_otherwise_is_traced_anew(change):
    torch.manual_seed(0)
    model = Reads()
    compiled = staticrt.compile(model)
    x = torch.rand(2)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
        change(model)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x))
    assert (len(compiled.explain().traces) == 1) == (change is CHANGES["in both places"])


def test_a_tensor_that_a_closure_holds_too_is_another_one_there():
    kept = torch.ones(2)
    model = nn.Module()
    model.kept = kept
    compiled = staticrt.compile(lambda x: x * kept + model.kept)
    x = torch.rand(2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), x + 1)
        model.kept = torch.full((2,), 5.0)
        torch.testing.assert_close(compiled(x), x + 5)
