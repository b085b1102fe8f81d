"""Backwards of joint traces: twice, later, from other threads, with hooks, after writes."""

import copy
import threading

import pytest
import torch
from torch import nn

from tests.support.joint_traces import joint, joint_calls, notes, same_gradients


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    yield compiled, model, eager, torch.randn(3, 4)
    assert joint_calls(compiled)


def test_retain_graph(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        out = run(x).sum()
        out.backward(retain_graph=True)
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            out.backward()
    same_gradients(model, eager)


def test_a_backward_after_the_weights_changed(pair):
    compiled, model, eager, x = pair
    texts = []
    for run, owner in ((compiled, model), (eager, eager)):
        out = run(x).sum()
        with torch.no_grad():
            owner[2].weight.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as raised:
            out.backward()
        texts.append(str(raised.value).split(";")[0])
    assert texts[0].split("[")[0] == texts[1].split("[")[0]
    for run, owner in ((compiled, model), (eager, eager)):  # what no gradient reads may change
        out = run(x).sum()
        with torch.no_grad():
            owner[0].weight.add_(1)
            owner[0].bias.add_(1)
        out.backward()
    same_gradients(model, eager)


def test_second_derivatives(pair):
    compiled, model, eager, x = pair
    for run, owner in ((compiled, model), (eager, eager)):
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(run(y).sum(), y, create_graph=True)
        (g * g).sum().backward()
        (h,) = torch.autograd.grad(run(y).pow(3).sum(), y)
        owner.found = (y.grad, h)
    torch.testing.assert_close(model.found, eager.found)
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad)


def test_interleaved_and_from_another_thread(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        outs = [run(x * i).sum() for i in (1, 2, 3)]
        for out in (outs[1], outs[0]):
            out.backward()
        thread = threading.Thread(target=outs[2].backward)
        thread.start()
        thread.join()
    same_gradients(model, eager)


def test_results_written_in_place_afterwards(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        out = run(x)
        out.mul_(2).add_(1)
        out.sum().backward()
    same_gradients(model, eager)


def test_a_saved_result_written_in_place_raises():
    compiled = joint(lambda x: x.exp())
    for run in (compiled, lambda x: x.exp()):
        out = run(torch.ones(3, requires_grad=True))
        out.data.add_(0)  # unseen, as in eager
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    assert joint_calls(compiled) == 1


def test_what_eager_overwrites_raises_at_every_size():
    """Elements share memory, so that sizes decide whether `contiguous` copies what is written."""

    def forward(x):
        y = x * 1
        z = torch.addcmul(y, y, y)
        y.contiguous().t().add_(1)
        return z

    compiled = joint(forward)
    for sizes in ((3, 4), (2, 2), (2, 2), (5, 5), (3, 4), (4, 3)):
        raised = []
        for run in (compiled, forward):
            x = torch.arange(40.0).as_strided(sizes, (1, 1)).requires_grad_()
            try:
                run(x).sum().backward()
                raised.append("")
            except RuntimeError as error:
                raised.append(str(error).split("[")[0])
        assert raised[0] == raised[1], sizes


def test_hooks_run_as_often_as_in_eager(pair):
    compiled, model, eager, x = pair
    counts = {}
    compiled(x)  # traced before there are hooks
    for name, run, owner in (("compiled", compiled, model), ("eager", eager, eager)):
        seen = counts[name] = []
        weight = owner[0].weight
        handles = [
            weight.register_hook(lambda g, seen=seen: seen.append("tensor") or 2 * g),
            weight.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append("after")),
        ]
        for _ in range(2):
            run(x).sum().backward()
        for handle in handles:
            handle.remove()
    assert counts["compiled"] == counts["eager"]
    same_gradients(model, eager)


def test_a_hook_that_is_there_first():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    seen = []
    model.weight.register_hook(lambda g: seen.append(g) or 3 * g)
    compiled = joint(model)
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    assert len(seen) == 1
    torch.testing.assert_close(model.weight.grad, 3 * x.sum(0).expand(2, 4))
    assert "hooks" in notes(compiled)


def test_saved_tensors_hooks_pack_what_is_saved(pair):
    compiled, model, eager, x = pair
    compiled(x)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        out = compiled(x).sum()
    assert packed
    assert not any(type(t) not in (torch.Tensor, nn.Parameter) for t in packed)
    out.backward()
    eager(x).sum().backward()
    same_gradients(model, eager)


def test_gradients_that_are_there_are_added_to(pair):
    compiled, model, eager, x = pair
    for run, owner in ((compiled, model), (eager, eager)):
        for p in owner.parameters():
            p.grad = torch.ones_like(p)
        run(x).sum().backward()
    same_gradients(model, eager)


def test_arguments_with_a_history(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        w = torch.full((4,), 2.0, requires_grad=True)
        run(x * w).sum().backward()
        run.grad_of_w = w.grad
    torch.testing.assert_close(compiled.grad_of_w, eager.grad_of_w)
    same_gradients(model, eager)


# -- batch norm --------------------------------------------------------------------------------------------------------
