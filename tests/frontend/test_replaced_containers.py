"""An attribute whose empty container is replaced by another one: the same state, unless something can tell them apart."""

import copy
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import nn

import staticrt
from staticrt.frontend.guards.state import Snapshot

KINDS = {"dict": dict, "list": list, "set": set, "defaultdict": lambda: defaultdict(list)}


class Layer(nn.Module):
    """Reads a container in `forward`."""

    def __init__(self, made):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.kept = made()

    def forward(self, x):
        return x * self.weight + len(self.kept)


def _fill(container):
    if isinstance(container, list):
        container.append(1)
    elif isinstance(container, set):
        container.add(1)
    else:
        container[1] = [1]


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_a_new_empty_container_needs_no_trace_and_a_filled_one_does(made):
    layer = Layer(made)
    compiled = staticrt.compile(layer)
    x = torch.rand(3)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x), x)
            layer.kept = made()
        assert len(compiled.explain().traces) == 1
        _fill(layer.kept)
        assert torch.equal(compiled(x), x + 1)
        layer.kept = made()
        assert torch.equal(compiled(x), x)
        _fill(layer.kept)
        assert torch.equal(compiled(x), x + 1)


def test_a_list_of_names_may_be_replaced_by_an_equal_one():
    """As transformers' `save_pretrained` does in the configuration."""
    layer = Layer(lambda: ["a", 1])
    compiled = staticrt.compile(layer)
    x = torch.rand(3)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(compiled(x), x + 2)
            layer.kept = ["a", 1]
        assert len(compiled.explain().traces) == 1
        layer.kept.append("b")
        assert torch.equal(compiled(x), x + 3)
        layer.kept = ["a", True]
        assert torch.equal(compiled(x), x + 2)
        assert len(compiled.explain().traces) == 3
        layer.kept.pop()
        assert torch.equal(compiled(x), x + 1)


def test_a_list_of_numbers_that_the_model_changes_is_changed_as_in_eager():
    class Counts(Layer):
        def forward(self, x):
            self.kept[0] += 1
            return x * self.weight + self.kept[0]

    layer = Counts(lambda: [0])
    compiled = staticrt.compile(layer)
    with torch.no_grad():
        for call in range(1, 5):
            assert torch.equal(compiled(torch.zeros(3)), torch.full((3,), float(call)))
            assert layer.kept == [call]


def _guard_of(layer):
    snapshot = Snapshot([("", layer)])
    snapshot.add_names(["kept", "other", "weight"])
    return snapshot.guard()


@pytest.mark.parametrize(
    ("made", "another"),
    [
        (dict, OrderedDict),
        (list, set),
        (lambda: defaultdict(list), lambda: defaultdict(dict)),
        (dict, type(None)),
    ],
)
def test_a_container_of_another_kind_is_another_state(made, another):
    layer = Layer(made)
    guard = _guard_of(layer)
    layer.kept = made()
    assert guard.holds()
    assert not guard.holds_all()
    layer.kept = another()
    assert not guard.holds()


def test_a_container_that_something_else_holds_is_compared_by_identity():
    layer = Layer(dict)
    layer.other = layer.kept
    guard = _guard_of(layer)
    assert guard.holds()
    layer.kept = {}
    assert not guard.holds()

    layer = Layer(dict)
    guard = _guard_of(layer)
    held = {}
    layer.kept = held
    assert not guard.holds()
    del held
    assert guard.holds()


def test_two_guards_take_a_container_that_one_of_them_met():
    layer = Layer(dict)
    first = _guard_of(layer)
    layer.kept = {}
    second = _guard_of(layer)
    assert first.holds()
    assert second.holds()


def test_a_container_that_the_model_returns_is_the_models():
    class Returns(Layer):
        def forward(self, x):
            return x * self.weight, self.kept

    layer = Returns(dict)
    compiled = staticrt.compile(layer)
    with torch.no_grad():
        for _ in range(3):
            assert compiled(torch.rand(3))[1] is layer.kept
            layer.kept = {}


class Attention(nn.Module):
    """Keeps in `eval()` what it computes in each call of `train()`, as timm's levit."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.rand(3))
        self.kept = {}

    def train(self, mode=True):
        super().train(mode)
        if mode and self.kept:
            self.kept = {}
        return self

    def _get_bias(self):
        if self.training:
            return self.bias * 2
        if "bias" not in self.kept:
            self.kept["bias"] = self.bias * 2
        return self.kept["bias"]

    def forward(self, x):
        return x + self._get_bias()


def test_a_model_that_empties_its_cache_to_train_is_traced_once_for_each_mode():
    torch.manual_seed(0)
    model = Attention()
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    for round_ in range(4):
        results = []
        for owner, call in ((model, compiled), (eager, eager)):
            owner.train()
            owner.zero_grad()
            x = torch.full((2, 3), float(round_))
            y = call(x)
            y.square().sum().backward()
            with torch.no_grad():
                owner.bias -= 0.1 * owner.bias.grad
                owner.eval()
                results.append((y, owner.bias.grad, call(x), call(x)))
        torch.testing.assert_close(*results)
    traces = [(each.route, each.calls) for each in compiled.explain().traces]
    assert sorted(traces) == [("training", 4), ("whole", 4)], compiled.explain()
