"""Whole steps with a gradient scaler: updates are left out where gradients are infinite, and scales follow, as in eager."""

import warnings

import pytest
import torch
from torch import nn

import staticrt
import staticrt.training.optim
from tests.support.against_eager import equal_eager

OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "own": lambda p: staticrt.training.optim.AdamW(p, lr=0.01),
}


def _compare(make, overflows=(3, 6), sizes=(4,) * 8, between=lambda call, scaler, train: None):
    """Run the steps of `make(model, scaler)`, compiled and eager, and compare all that they leave.

    Args:
        make: the step and its optimisers.
        overflows: calls with infinite gradients.
    """

    def run(compile):
        model = nn.Sequential(
            nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 2)
        ).double()
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
        train, optimisers = make(model, scaler)
        step = compile(train)
        seen = []
        for call, size in enumerate(sizes):
            torch.manual_seed(call)
            factor = torch.tensor(float("inf") if call in overflows else 1.0, dtype=torch.float64)
            loss = step(torch.randn(size, 4, dtype=torch.float64), factor).detach()
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
            state = [each.state_dict()["state"] for each in optimisers]
            seen.append(
                (loss, gradients, scaler.state_dict(), [p.detach().clone() for p in model.parameters()])
            )
            between(call, scaler, train)
        return seen, model.state_dict(), state

    return equal_eager(run, rtol=1e-9, atol=1e-11, equal_nan=True).explain()


def _with(optimiser, clips=False, updates=True):
    def make(model, scaler):
        optimizer = OPTIMISERS[optimiser](model.parameters())

        def train(x, factor):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss * factor).backward()
            if clips:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            if updates:
                scaler.update()
            return loss

        return train, [optimizer]

    return make


@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_one_trace_serves_finite_and_infinite_gradients(optimiser, clips):
    explanation = _compare(_with(optimiser, clips))
    assert len(explanation.traces) == 1, explanation
    assert sum(each.calls for each in explanation.eager) == 1, explanation


_model = _scaler = _optimizer = None


def _step_of_globals(x, factor):
    _optimizer.zero_grad()
    loss = _model(x).square().mean()
    _scaler.scale(loss * factor).backward()
    _scaler.step(_optimizer)
    _scaler.update()
    return loss


def test_a_scaler_among_the_globals_is_found():
    scalers = []

    def make(model, scaler):
        scalers.append(scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        globals().update(_model=model, _scaler=scaler, _optimizer=optimizer)
        return _step_of_globals, [optimizer]

    explanation = _compare(make)
    assert len(explanation.traces) == 1, explanation
    assert sum(each.calls for each in explanation.eager) == 1, explanation
    assert vars(scalers[0]).keys() == vars(scalers[1]).keys()


def test_other_batch_sizes_need_one_more_trace():
    assert len(_compare(_with("adam"), sizes=(4, 4, 5, 5, 4, 3, 6, 4)).traces) == 2


def test_two_optimisers_are_left_out_each_for_itself():
    def make(model, scaler):
        optimisers = [torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[3].parameters())]

        def train(x, factor):
            for each in optimisers:
                each.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            model[0].weight.grad[0].mul_(factor)
            for each in optimisers:
                scaler.step(each)
            scaler.update()
            return loss

        return train, optimisers

    explanation = _compare(make)
    assert len(explanation.traces) == 1, explanation


def test_eager_steps_in_between_and_another_growth_factor_are_seen():
    def between(call, scaler, train):
        if call in (2, 4):
            torch.manual_seed(call)
            train(torch.randn(4, 4, dtype=torch.float64), torch.tensor(1.0))
        if call == 5:
            scaler.set_growth_factor(4.0)

    explanation = _compare(_with("adam"), between=between)
    assert len(explanation.traces) == 2, explanation


def test_a_step_that_does_not_update_its_scaler_runs_eagerly():
    def between(call, scaler, train):
        scaler.update()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        explanation = _compare(_with("sgd", updates=False), between=between)
    assert not explanation.traces
    assert any("a gradient scaler that the step does not update" in each.reason for each in explanation.eager)
