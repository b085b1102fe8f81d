"""Training loops as users write them, around `staticrt.compile(model)`: parameters, gradients, optimiser states as in eager."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, prune

import staticrt


def _net(width=8):
    return nn.Sequential(nn.Linear(width, 16), nn.Tanh(), nn.Linear(16, 4))


def _train(run, optimizer, steps, rows=lambda step: 4 + step % 2):
    for step in range(steps):
        optimizer.zero_grad()
        run(torch.randn(rows(step), 8)).square().mean().backward()
        optimizer.step()


def _scaled_gradients(compile_):
    model = _net()
    run, optimizer = compile_(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(5):
        optimizer.zero_grad()
        loss = run(torch.randn(4, 8)).square().mean() * (float("inf") if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, scaler.get_scale()


def _closures(compile_):
    model, x = _net(), torch.randn(6, 8)
    run = compile_(model)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = run(x).square().mean()
        loss.backward()
        return loss

    return model, None, [optimizer.step(closure).detach() for _ in range(3)]


def _gradient_penalty(compile_):
    critic, maker = _net(), nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8))
    judge, make = compile_(critic), compile_(maker)
    ours, theirs = torch.optim.Adam(critic.parameters(), 1e-2), torch.optim.Adam(maker.parameters(), 1e-2)
    for _step in range(3):
        real, fake, share = torch.randn(5, 8), make(torch.randn(5, 3)).detach(), torch.rand(5, 1)
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        loss = judge(fake).mean() - judge(real).mean() + 10 * (slope.norm(2, 1) - 1).square().mean()
        ours.zero_grad()
        loss.backward()
        ours.step()
        theirs.zero_grad()
        (-judge(make(torch.randn(5, 3))).mean()).backward()
        theirs.step()
    return nn.ModuleList([critic, maker]), ours, None


def _parametrised(compile_):
    model = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.ReLU(),
        parametrizations.weight_norm(nn.Linear(8, 8)),
        parametrizations.orthogonal(nn.Linear(8, 8)),
    )
    run, optimizer = compile_(model), torch.optim.SGD(model.parameters(), 0.1)
    _train(run, optimizer, 4)
    return model, optimizer, None


def _pruned(compile_):
    model = _net()
    prune.l1_unstructured(model[0], "weight", 0.5)
    run, optimizer = compile_(model), torch.optim.SGD(model.parameters(), 0.1)
    _train(run, optimizer, 3)
    prune.remove(model[0], "weight")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _train(run, optimizer, 2)
    return model, optimizer, None


def _frozen_and_thawed(compile_):
    model = _net()
    model[0].requires_grad_(False)
    run, optimizer = compile_(model), torch.optim.Adam(model[2].parameters(), 1e-2)
    _train(run, optimizer, 2)
    model[0].requires_grad_(True)
    optimizer.add_param_group({"params": list(model[0].parameters())})
    _train(run, optimizer, 2)
    model[2].requires_grad_(False)
    _train(run, optimizer, 2)
    return model, optimizer, None


def _batches_of_every_size(compile_):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))
    run, optimizer = compile_(model), torch.optim.SGD(model.parameters(), 0.1)
    given = []
    for rows in (4, 1, 0, 7, 1, 0, 3):
        x = torch.randn(rows, 8, requires_grad=True)
        optimizer.zero_grad()
        out = run(x)
        F.mse_loss(out, torch.zeros(rows, 4), reduction="sum").backward()
        optimizer.step()
        given.append((out.detach(), x.grad))
    return model, optimizer, given


def _copied_midway(compile_):
    model = _net()
    run, optimizer = compile_(model), torch.optim.Adam(model.parameters(), 1e-2)
    _train(run, optimizer, 2)
    other = copy.deepcopy(run)
    weights = list(other.parameters())
    _train(other, torch.optim.Adam(weights, 1e-2), 2)
    _train(run, optimizer, 2)
    return model, optimizer, [p.detach() for p in weights]


def _weights_replaced(compile_):
    model = _net()
    run, optimizer = compile_(model), torch.optim.SGD(model.parameters(), 0.1)
    _train(run, optimizer, 2)
    model[0].weight.data = torch.randn(16, 8)
    _train(run, optimizer, 2)
    model[0].weight.data.fill_(0.1)
    _train(run, optimizer, 2)
    model[2] = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _train(run, optimizer, 2)
    return model, optimizer, None


LOOPS = [
    _scaled_gradients,
    _closures,
    _gradient_penalty,
    _parametrised,
    _pruned,
    _frozen_and_thawed,
    _batches_of_every_size,
    _copied_midway,
    _weights_replaced,
]
WAYS = {
    "compile": staticrt.compile,
    "backend": lambda model: torch.compile(model, backend="staticrt"),
    "small budget": lambda model: torch.compile(
        model, backend="staticrt", options={"activation_memory_budget": 0.1}
    ),
}


def _result(loop, compile_):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, optimizer, given = loop(compile_)
    gradients = [p.grad for p in model.parameters()]
    state = [] if optimizer is None else optimizer.state_dict()["state"]
    return [dict(model.state_dict()), gradients, state, given, torch.get_rng_state()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_ends_as_in_eager(loop, way):
    got, want = _result(loop, WAYS[way]), _result(loop, lambda model: model)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
