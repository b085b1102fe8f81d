"""Whole steps of layers whose weight a hook computes before each forward."""

import warnings

import pytest
import torch
from torch import nn

import staticrt
from staticrt.training import optim


def _normalised(norm):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers parametrizations
        torch.manual_seed(0)
        layers = [nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)]
        return nn.Sequential(norm(layers[0].double()), *layers[1:]).double()


NORMS = {
    "spectral": lambda layer: nn.utils.spectral_norm(layer, n_power_iterations=2, dim=1),
    "weight": nn.utils.weight_norm,
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_steps_equal_eager_in_training_and_evaluation_mode(norm):
    """Two forwards in a step, as a discriminator's of real and generated data."""
    model = _normalised(norm)
    eager = _normalised(norm)
    found = []
    for owner, compiled in ((eager, False), (model, True)):
        optimizer = optim.SGD(owner.parameters(), lr=0.1)

        def train(x, y, owner=owner, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (owner(x) - owner(y)).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(train, fullgraph=True) if compiled else train
        torch.manual_seed(1)
        seen = []
        for call in range(6):
            owner.train(call not in (2, 3))
            loss = step(*torch.randn(2, 4, 6).double()).detach()
            seen.append((loss, owner[0].weight))
        assert len({id(weight) for _loss, weight in seen}) == 6, "a weight of an earlier step was changed"
        found.append([(loss, weight.detach()) for loss, weight in seen])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-12, atol=1e-13)
    assert not step.explain().eager
    assert sorted(each.fast.calls for each in step._variants) == [1, 3]
    assert not model[0].weight.requires_grad


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_weight_of_the_step_before_is_read_as_in_eager():
    model = _normalised(nn.utils.spectral_norm)
    eager = _normalised(nn.utils.spectral_norm)
    found = []
    for owner, compiled in ((eager, False), (model, True)):
        optimizer = optim.SGD(owner.parameters(), lr=0.1)

        def train(x, owner=owner, optimizer=optimizer):
            before = owner[0].weight.detach().sum()
            optimizer.zero_grad()
            loss = owner(x).square().mean() * before
            loss.backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(train) if compiled else train
        torch.manual_seed(1)
        found.append([step(torch.randn(4, 6).double()).detach() for _call in range(4)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-13)
    assert any("before the layer's hook computes it" in each.reason for each in step.explain().eager)


def test_a_weight_of_other_sizes_needs_another_recording():
    model = _normalised(nn.utils.weight_norm)

    @staticrt.compile_step
    def step(x):
        return model(x).square().mean()

    with torch.enable_grad():
        step(torch.randn(4, 6).double())
        model[0].weight = torch.zeros(3, dtype=torch.float64)
        step(torch.randn(4, 6).double())
    assert len(step.explain().traces) == 2
