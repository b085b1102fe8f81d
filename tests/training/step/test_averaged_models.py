"""Whole steps with averaged models, which ask how many models they have averaged already."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import staticrt
from staticrt.frontend.tracing import decisions
from tests.support.against_eager import equal_eager

AVERAGES = {
    "equal": lambda model: AveragedModel(model),
    "moving": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "moving one by one": lambda model: AveragedModel(model, avg_fn=get_ema_avg_fn(0.9), use_buffers=True),
}


@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
@pytest.mark.parametrize("average", AVERAGES)
def test_an_averaged_model_follows_as_in_eager(average, optimiser):
    def train(compile):
        model = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2)
        ).double()
        averaged = AVERAGES[average](model)
        optimizer = getattr(torch.optim, optimiser)(model.parameters(), lr=0.1)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            averaged.update_parameters(model)
            return loss

        losses = []
        for call, size in enumerate((4, 4, 4, 4, 3, 5, 4)):
            torch.manual_seed(call)
            losses.append(step(torch.randn(size, 4, dtype=torch.float64)).detach())
        return losses, model.state_dict(), averaged.state_dict()

    explanation = equal_eager(train, rtol=1e-11, atol=1e-13).explain()
    # One for the first model, unless Adam's first step is eager, one for others, one for other sizes.
    assert len(explanation.traces) == (3 if optimiser == "SGD" else 2), explanation
    assert sum(each.calls for each in explanation.eager) == (0 if optimiser == "SGD" else 1), explanation


def test_what_a_decision_does_not_read_is_not_computed_for_it(monkeypatch):
    computed = []
    compute = decisions._RealRun._compute

    def counted(self, node):
        computed.append(str(node.target))
        return compute(self, node)

    monkeypatch.setattr(decisions._RealRun, "_compute", counted)
    model = nn.Linear(4, 2)
    averaged = AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @staticrt.compile_step
    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        averaged.update_parameters(model)

    step(torch.randn(3, 4))
    assert len(step.explain().traces) == 1
    assert computed
    assert not any("mm" in each or "sgd" in each for each in computed), computed


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_step_in_which_data_decides_each_time_otherwise_runs_eagerly_in_the_end():
    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x, count):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            for _ in range(int(count)):
                loss = loss * 1.5
            loss.backward()
            optimizer.step()
            return loss

        losses = [step(torch.rand(3, 4).double() * 0 + 1, torch.tensor(count)) for count in range(8)]
        losses += [step(torch.ones(3, 4).double(), torch.tensor(count)) for count in (1, 3)]
        return [loss.detach() for loss in losses], list(model.parameters())

    (eager,) = equal_eager(train).explain().eager
    assert eager.reason == "data took another branch than in the trace"


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_decision_about_what_an_update_has_written_is_eagers():
    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss * (2 if model.weight.sum() > 0 else 3)

        losses = []
        for call in range(6):
            torch.manual_seed(call)
            losses.append(step(torch.randn(3, 4).double()).detach())
            with torch.no_grad():
                model.weight.mul_(-1)
        return losses, list(model.parameters())

    reasons = [each.reason for each in equal_eager(train).explain().eager]
    assert any("a branch that data decides, after a write" in each for each in reasons), reasons


@pytest.mark.parametrize("updates", [True, False])
def test_a_step_that_data_decides_is_served_by_the_fast_path(updates):
    """Also where it decides otherwise: that call is another recording's, and nothing was written before."""

    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss = nn.functional.dropout(loss * (2 if x.sum() > 0 else -1), 0.5)
            loss.backward()
            if updates:
                optimizer.step()
            return loss

        torch.manual_seed(1)
        signs = (1, 1, -1, -1, 1, 1, -1, 1)
        losses = [step(sign * torch.rand(3, 4).double()).detach() for sign in signs]
        return losses, [*model.parameters(), model.weight.grad], torch.get_rng_state()

    assert sorted(each.fast.calls for each in equal_eager(train)._variants) == [2, 4]
