"""A backward in segments, cut after every gradient, is as eager's; `DistributedDataParallel` has it cut at its buckets."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.executor import joint_calls
from tests.support.bucket_workers import MODELS
from tests.support.threads import in_threads
from tests.training.joint import test_several_backwards as several


@pytest.fixture(autouse=True)
def cut_everywhere(monkeypatch):
    """Buckets that one gradient fills."""
    monkeypatch.setattr(joint_calls, "bucket_limits", lambda: (1,))


def compiled(model):
    return staticrt.compile(model, fullgraph=True)


def segments(fast):
    (trace,) = fast._executor._joint.traces
    return len(trace.executable.backward)


def gradients(model, x, backward):
    """The gradients that a backward leaves or returns."""
    model.zero_grad()
    x = x.clone().requires_grad_()
    returned = backward(model(x), x, list(model.parameters()))
    return returned, x.grad, [p.grad for p in model.parameters()]


def once(y, x, parameters):
    y.square().sum().backward()


def kept(y, x, parameters):
    y.sum().backward(retain_graph=True)
    y.square().sum().backward()


def second(y, x, parameters):
    found = torch.autograd.grad(y.square().mean(), [x, *parameters], create_graph=True)
    sum(g.square().mean() for g in found).backward()
    return [g.detach() for g in found]


def chosen(y, x, parameters):
    """Of the first parameters, of the last ones, and of the input."""
    loss = y.square().sum()
    loss.backward(inputs=parameters[:2], retain_graph=True)
    loss.backward(inputs=parameters[-2:], retain_graph=True)
    return torch.autograd.grad(loss, x)


def batched(y, x, parameters):
    return torch.autograd.grad(y, parameters, torch.eye(y.numel()).view(-1, *y.shape), is_grads_batched=True)


def refused(y, x, parameters):
    y.sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.sum().backward()


@pytest.mark.parametrize("backward", [once, kept, second, chosen, batched, refused])
@pytest.mark.parametrize("model", [name for name in MODELS if name != "parts"])  # dropout
def test_equals_eager(model, backward):
    torch.manual_seed(0)
    eager = MODELS[model]()
    fast = compiled(copy.deepcopy(eager))
    for batch in (4, 4, 6, 4):
        x = torch.randn(batch, 8)
        torch.testing.assert_close(
            gradients(fast, x, backward), gradients(eager, x, backward), rtol=1e-3, atol=1e-4
        )
    counts = [len(t.executable.backward) for t in fast._executor._joint.traces]
    assert min(counts) >= 3
    assert all(f"segments {count}\n" in str(fast.explain()) for count in counts), fast.explain()


@pytest.mark.parametrize("use", several.USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("make", several.MODELS, ids=lambda make: make.__name__)
def test_several_backwards_are_as_in_eager(make, use):
    torch.manual_seed(0)
    eager = make()
    fast = staticrt.compile(copy.deepcopy(eager))
    for batch in (3, 3, 5):
        several._compare(
            several._outcome(fast, fast, use, batch), several._outcome(eager, eager, use, batch), False
        )


def test_threads_run_a_kept_graph_at_once():
    torch.manual_seed(0)
    eager = MODELS["skips"]()
    fast = compiled(copy.deepcopy(eager))
    x = torch.randn(6, 8)
    weights = [torch.randn(6, 4) for _ in range(4)]
    want = [torch.autograd.grad((eager(x) * w).sum(), list(eager.parameters())) for w in weights]
    fast(x).sum().backward()
    for _ in range(20):
        y = fast(x)

        def gradients(w, y=y):
            return torch.autograd.grad((y * w).sum(), list(fast.parameters()), retain_graph=True)

        found = in_threads(gradients, weights)
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)


def test_a_parameter_may_change_once_its_gradient_is_there():
    """An optimizer in the backward: no later segment reads what it updates, as in eager."""
    torch.manual_seed(0)
    eager = MODELS["skips"]()
    fast = compiled(copy.deepcopy(eager))
    fast(torch.randn(6, 8)).sum().backward()
    fast.zero_grad()

    def update(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.01)
        p.grad = None

    for model in (eager, fast):
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
    for _ in range(3):
        x = torch.randn(6, 8)
        for model in (eager, fast):
            model(x).square().sum().backward()
    torch.testing.assert_close(fast.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    assert segments(fast) >= 3


def test_an_error_in_a_later_segment_is_eagers():
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    fast = compiled(copy.deepcopy(eager))
    x = torch.randn(4, 8)
    fast(x.clone().requires_grad_()).sum().backward()
    for model in (eager, fast):
        y = model(x.clone().requires_grad_())
        with torch.no_grad():
            model[2].weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    once_more = [gradients(model, x, once) for model in (eager, fast)]
    torch.testing.assert_close(once_more[1], once_more[0])
    assert segments(fast) >= 3
