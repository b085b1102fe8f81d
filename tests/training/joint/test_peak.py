"""What a training step holds at its peak, in bytes: beside its arenas no more than eager's."""

import copy
import gc

import pytest
import torch
from torch import nn

import staticrt
from staticrt.models.bench.train_memory import allocated_peak
from staticrt.models.bench.train_models import Transformer
from tests.support.joint_traces import joint_calls


def _deep(depth, width):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


MODELS = {
    "deep MLP": (lambda: _deep(24, 64), (256, 64)),
    "deep MLP, small batch": (lambda: _deep(12, 128), (16, 128)),
    "deep MLP with ReLU": (
        lambda: nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(64, 64), nn.ReLU()))),
        (512, 64),
    ),
    "transformer": (lambda: Transformer(64, 4, 4), (8, 32, 64)),
    "convolutions": (
        lambda: nn.Sequential(*(m for _ in range(8) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()))),
        (8, 8, 16, 16),
    ),
}


def _step(model, x):
    def step():
        model(x).square().mean().backward()
        for p in model.parameters():
            p.grad = None

    return step


@pytest.mark.parametrize("name", MODELS)
def test_a_step_holds_no_more_than_eagers(name):
    make, sizes = MODELS[name]
    torch.manual_seed(0)
    model, x = make(), torch.randn(*sizes)
    compiled = staticrt.compile(copy.deepcopy(model))
    peaks = {}
    for way, run in (("eager", model), ("compiled", compiled)):
        step = _step(run, x)
        for _ in range(3):
            step()
        gc.collect()
        peaks[way] = allocated_peak(step)
    assert joint_calls(compiled) >= 4
    assert peaks["compiled"] <= peaks["eager"], peaks
    # Arenas stay between calls: the peak of a later step does not show them.
    arenas = sum(stats["arena_bytes"] for native in _natives(compiled) for stats in native.prepared_stats)
    assert arenas > 0
    assert peaks["compiled"] + arenas <= 1.25 * peaks["eager"], (peaks, arenas)


def _natives(compiled):
    for trace in compiled._executor._joint.traces:
        yield trace.executable.native
        for _key, plan in trace.executable.backward.plans.items():
            yield plan.native


def test_saved_tensors_go_while_the_backward_runs_unless_the_graph_is_kept():
    torch.manual_seed(0)
    model, x = _deep(24, 64), torch.randn(256, 64)
    compiled = staticrt.compile(model)
    incoming = torch.randn_like(x)

    def step(keep):
        for p in model.parameters():
            p.grad = None
        compiled(x).backward(incoming, retain_graph=keep)

    peaks = {}
    for keep in (True, False):
        for _ in range(3):
            step(keep)
        peaks[keep] = allocated_peak(lambda keep=keep: step(keep))
    saved = 24 * x.nbytes
    gradients = sum(p.nbytes for p in model.parameters())
    assert peaks[True] >= saved + gradients
    assert peaks[False] < saved + gradients / 2


def test_a_backward_that_fails_halfway_has_let_its_saved_tensors_go():
    def f(x, i):
        return (x.sin() * x.gather(0, i)).cos()

    compiled = staticrt.compile(f)
    x = torch.randn(4, requires_grad=True)
    for _ in range(3):
        i = torch.tensor([0, 1, 2, 3])
        out = compiled(x, i)
        out.sum().backward()
    i = torch.tensor([0, 1, 2, 3])
    out = compiled(x, i).sum()
    i.data.fill_(99)  # unnoticed by the version: the backward's scatter raises
    with pytest.raises((RuntimeError, IndexError), match="index 99"):
        out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()
    out = compiled(x, torch.tensor([3, 1, 2, 0]))
    x.grad = None
    out.sum().backward()
    y = x.detach().clone().requires_grad_()
    f(y, torch.tensor([3, 1, 2, 0])).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_results_and_views_of_what_is_saved_stay(monkeypatch):
    """A saved tensor that somebody else holds is not touched, and a second backward over a kept graph is as the first."""

    def f(x, w):
        h = torch.tanh(x @ w)
        return h, (h @ w).exp()

    compiled = staticrt.compile(f)
    for call in range(4):
        found = []
        for run in (compiled, f):
            torch.manual_seed(call)
            x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
            h, y = run(x, w)
            kept = h.detach()[1:]
            (h.sum() + y.sum()).backward(retain_graph=True)
            (h.sum() + y.sum()).backward()
            found.append((h, y, kept, x.grad, w.grad))
        torch.testing.assert_close(*found)
