"""Joint traces (`joint_trace=True`): training equal to eager's, and Python that no graph repeats left to graph splits."""

import copy
import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from tests.support import random_regions
from tests.support.training_cases import MODELS
from tests.training.test_random_regions import _compare

ROOT = Path(__file__).parents[2]


def joint(function, **options):
    return staticrt.compile(function, joint_trace=True, **options)


def joint_calls(compiled):
    return sum(r.calls for r in compiled.explain().traces if r.executor == "native node, joint trace")


def fast_calls(compiled):
    return compiled._executor.fast_calls


def notes(compiled):
    return " ".join(compiled.explain().notes)


def both(function, *inputs, **options):
    """Results and gradients of a function of tensors, compiled and eager, from copies of the same inputs."""
    found = []
    compiled = joint(function, **options)
    for run in (compiled, function):
        own = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        torch.manual_seed(3)
        out = run(*own)
        outs = [t for t in (out if isinstance(out, tuple) else (out,)) if t.requires_grad]
        sum((t * t).sum() for t in outs).backward()
        found.append((out, [x.grad for x in own], own))
    torch.testing.assert_close(found[0], found[1])
    return compiled


def _steps(model, run, batches, seed=0):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, gradients = [], []
    for step, (x, y) in enumerate(batches):
        torch.manual_seed(seed + step)
        loss = F.cross_entropy(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        losses.append(loss.item())
    return losses, gradients, dict(model.state_dict()), torch.get_rng_state()


@pytest.mark.parametrize("name", MODELS)
def test_five_steps_with_changing_batch_sizes(name):
    make, batch = MODELS[name]
    torch.manual_seed(0)
    model = make()
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    compiled = joint(model)
    batches = [batch(size) for size in (4, 4, 7, 3, 5)]
    wide = [(x.double() if x.is_floating_point() else x, y) for x, y in batches]
    got = _steps(model, compiled, batches)
    want = _steps(eager, eager, batches)
    # float64 judges the models that draw nothing (random numbers differ by dtype) and make no tensors of float32.
    alike = name == "char" or any(isinstance(m, nn.Dropout) for m in model.modules())
    true = want if alike else _steps(exact, exact, wide)
    torch.testing.assert_close(got[:3], true[:3], rtol=2e-4, atol=2e-5, check_dtype=False)
    assert torch.equal(got[3], want[3]), "random numbers were drawn otherwise"
    assert joint_calls(compiled) == 5, compiled.explain()
    assert len([r for r in compiled.explain().traces if r.route == "training"]) == 2, (
        "one with constant sizes, one not"
    )


COUNT = int(os.environ.get("STATICRT_RANDOM_REGIONS", "24"))


def test_random_programs():
    """Those that joint traces serve are as in eager; the others are for known reasons."""
    served, reasons = 0, set()
    for seed in range(COUNT):
        gm, leaves, moved = random_regions.region(seed, writes=seed % 4 == 3, draws=seed % 3 == 0)
        try:
            want = random_regions.run(gm, leaves, moved, seed)
        except RuntimeError:  # eager refuses its backward: something saved was written
            continue
        compiled = joint(gm)
        for _call in range(2):
            try:
                got = random_regions.run(compiled, leaves, moved, seed)
                if not joint_calls(compiled):
                    break
                _compare(got, want)
            except BaseException as error:
                error.add_note(f"seed {seed}\n{gm.code}\n{compiled.explain()}")
                raise
        served += bool(joint_calls(compiled))
        reasons |= {note for note in compiled.explain().notes if note.startswith("not traced with")}
    assert served > COUNT / 3, reasons
    known = (
        "shares memory",
        "share memory",
        "is an input",
        "needs a gradient",
        "print()",
        "history",
        "modified by",
    )
    assert all(any(text in reason for text in known) for reason in reasons), reasons


LAYOUTS = {
    "expanded": lambda t: torch.ones(()).expand(t.shape),
    "transposed": lambda t: torch.randn(t.shape[::-1]).permute(*reversed(range(t.dim()))),
    "every other": lambda t: torch.randn(*t.shape[:-1], 2 * t.shape[-1])[..., ::2],
    "channels last": lambda t: torch.randn(t.shape).to(memory_format=torch.channels_last),
    "overlapping": lambda t: torch.randn(100).as_strided(t.shape, (1, 2, 1, 1)),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_incoming_gradients_of_any_layout(layout, channels_last):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 1))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(2, 3, 5, 6)
    x = x.to(memory_format=torch.channels_last) if channels_last else x
    for _call in range(2):
        out, want = compiled(x), eager(x)
        assert out.stride() == want.stride()
        gradient = LAYOUTS[layout](want)
        out.backward(gradient)
        want.backward(gradient)
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert joint_calls(compiled) == 2


def _three(a, b, c):
    return a * b, torch.sin(b) + c, (c * c).sum()


@pytest.mark.parametrize("wanted", range(1, 8))
@pytest.mark.parametrize("given", range(1, 8))
def test_undefined_and_unneeded_gradients_stay_none(given, wanted):
    compiled = joint(_three)
    found = []
    for run in (compiled, _three):
        torch.manual_seed(0)
        inputs = [torch.randn(3, requires_grad=True) for _ in range(3)]
        outs = [out for i, out in enumerate(run(*inputs)) if given >> i & 1]
        sources = [x for i, x in enumerate(inputs) if wanted >> i & 1]
        found.append(torch.autograd.grad([o.sum() for o in outs], sources, allow_unused=True))
    torch.testing.assert_close(found[0], found[1])
    assert [g is None for g in found[0]] == [g is None for g in found[1]]
    assert joint_calls(compiled) == 1


def test_requires_grad_toggled_and_frozen_halfway():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(3, 4)
    for frozen in ((), (0,), (0, 1), (2,), ()):
        for each in (model, eager):
            for i, p in enumerate(each.parameters()):
                p.requires_grad_(i not in frozen)
                p.grad = None
        compiled(x).sum().backward()
        eager(x).sum().backward()
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            torch.testing.assert_close(p.grad, q.grad)
    y = torch.randn(3, 4, requires_grad=True)
    compiled(y).sum().backward()
    z = y.detach().clone().requires_grad_()
    eager(z).sum().backward()
    torch.testing.assert_close(y.grad, z.grad)
    assert joint_calls(compiled) == 6


def test_calls_without_gradients_between():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(3, 4)
    for step in range(3):
        for each in (model, eager):
            each.train(step != 1)
        torch.manual_seed(step)
        out = compiled(x)
        torch.manual_seed(step)
        want = eager(x)
        torch.testing.assert_close(out, want)
        with torch.no_grad():
            assert not compiled.eval()(x).requires_grad
        out.sum().backward()
        want.sum().backward()
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_no_grad_and_detach_inside():
    def f(x, w):
        with torch.no_grad():
            scale = (x * w).abs().max()
        return torch.tanh(x * w) / scale + (w.detach() * x).sin()

    compiled = both(f, torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True))
    assert joint_calls(compiled) == 1
    results = []
    for run in (compiled, f):
        torch.manual_seed(0)
        x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        first = torch.autograd.grad(run(x, w).sum(), (x, w), create_graph=True)
        results.append((first, torch.autograd.grad(sum(g.pow(2).sum() for g in first), (x, w))))
    torch.testing.assert_close(results[0], results[1])


def test_in_place_operators_on_values_of_the_call():
    def f(x, w):
        y = x * w
        y[1:].mul_(2)
        y.relu_()
        z = torch.zeros(4)
        z[:2] += y[:2]
        return z.sin()

    compiled = both(f, torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True))
    assert joint_calls(compiled) == 1


def test_one_result_twice():
    def f(x):
        y = x * 2
        return y, y.argmax(), y

    compiled = joint(f)
    x = torch.randn(3, requires_grad=True)
    first, _where, second = compiled(x)
    assert first is second
    (first * second).sum().backward()
    torch.testing.assert_close(x.grad, 8 * x.detach())
    assert joint_calls(compiled) == 1


def test_numbers_and_containers_among_results():
    def f(x, scale):
        return {"y": x * scale, "n": 3, "z": [x.argmax(), (x * x).sum()], "none": None}

    compiled = joint(f)
    x = torch.randn(5, requires_grad=True)
    for _ in range(2):
        out = compiled(x, 2)
        assert list(out) == ["y", "n", "z", "none"]
        assert out["n"] == 3
        assert out["none"] is None
        assert not out["z"][0].requires_grad
        assert out["y"].requires_grad
        x.grad = None
        (out["y"].sum() + out["z"][1]).backward()
        torch.testing.assert_close(x.grad, 2 + 2 * x.detach())
    assert joint_calls(compiled) == 2


# -- autograd's rules --------------------------------------------------------------------------------------------------


@pytest.fixture
def pair():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    yield compiled, model, eager, torch.randn(3, 4)
    assert joint_calls(compiled)


def _same_gradients(model, eager):
    for p, q in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_retain_graph(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        out = run(x).sum()
        out.backward(retain_graph=True)
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            out.backward()
    _same_gradients(model, eager)


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
    _same_gradients(model, eager)


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
    _same_gradients(model, eager)


def test_results_written_in_place_afterwards(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        out = run(x)
        out.mul_(2).add_(1)
        out.sum().backward()
    _same_gradients(model, eager)


def test_a_saved_result_written_in_place_raises():
    compiled = joint(lambda x: x.exp())
    for run in (compiled, lambda x: x.exp()):
        out = run(torch.ones(3, requires_grad=True))
        out.data.add_(0)  # unseen, as in eager
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
    assert joint_calls(compiled) == 1


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
    _same_gradients(model, eager)


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
    _same_gradients(model, eager)


def test_gradients_that_are_there_are_added_to(pair):
    compiled, model, eager, x = pair
    for run, owner in ((compiled, model), (eager, eager)):
        for p in owner.parameters():
            p.grad = torch.ones_like(p)
        run(x).sum().backward()
    _same_gradients(model, eager)


def test_arguments_with_a_history(pair):
    compiled, model, eager, x = pair
    for run in (compiled, eager):
        w = torch.full((4,), 2.0, requires_grad=True)
        run(x * w).sum().backward()
        run.grad_of_w = w.grad
    torch.testing.assert_close(compiled.grad_of_w, eager.grad_of_w)
    _same_gradients(model, eager)


# -- batch norm --------------------------------------------------------------------------------------------------------


def test_calls_without_python_are_as_the_first_ones():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(6, 4)
    served = []
    steps = ["plain"] * 4 + [
        "history",
        "history",
        "frozen",
        "plain",
        "other size",
        "other data",
        "plain",
        "no grad",
    ]
    for step in steps:
        for run, owner in ((compiled, model), (eager, eager)):
            owner[0].weight.requires_grad_(step != "frozen")
            owner.found = out = None  # with it go autograd's nodes, which remember sizes
            if step == "other data":  # a weight of other sizes in the same parameter
                gc.collect()  # what a trace leaves to the collector may hold nodes, too
                owner[3].weight.data, owner[3].bias.data = torch.ones(3, 8), torch.ones(3)
                owner[3].weight.grad = owner[3].bias.grad = None
            w = torch.ones(4, requires_grad=True)
            given = torch.cat([x, x]) if step == "other size" else x * w if step == "history" else x
            with torch.set_grad_enabled(step != "no grad"):
                out = run(given)
            if step != "no grad":
                out.pow(2).sum().backward()
            owner.found = (out, w.grad, [p.grad for p in owner.parameters()])
        torch.testing.assert_close(model.found, eager.found, rtol=1e-4, atol=1e-5)
        assert model.found[0].requires_grad is eager.found[0].requires_grad
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
        served.append(fast_calls(compiled))
    assert served[3] > 0, "the second calls and later ones need no Python"


def test_running_statistics_and_second_derivatives():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.Flatten(), nn.Linear(27, 2)
    )
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for step in range(3):
        x = torch.randn(4 + step, 2, 5, 5)
        for run, owner in ((compiled, model), (eager, eager)):
            y = x.clone().requires_grad_()
            (g,) = torch.autograd.grad(run(y).pow(2).sum(), y, create_graph=True)
            g.pow(2).sum().backward()
            owner.found = y.grad
        torch.testing.assert_close(model.found, eager.found, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
    assert joint_calls(compiled) == 3


# -- what goes by graph splits, with a reason --------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 5 * g


def _hooked(x):
    y = x * 2
    y.register_hook(lambda g: 7 * g)
    return y.sin()


def _written(x):
    with torch.no_grad():
        x.add_(1)
    return x * x


def _checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda t: t.sin().cos(), x, use_reentrant=False) * x


def _computes_gradients(x):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((y**3).sum(), y)
    return g * x


REFUSED = {
    "a custom Function": (lambda x: Double.apply(x).sin(), "custom autograd Function"),
    "a view of an input": (lambda x: x.view(-1), "view of one"),
    "an input": (lambda x: (x, x * 2), "a result is an input"),
    "results that share memory": (lambda x: (lambda y: (y, y.t()))(x * 2), "share memory"),
    "a hook on a value": (_hooked, "register_hook"),
    "checkpoint": (_checkpointed, "saved tensors hooks"),
    "no gradient": (lambda x: x.argmax() + 1, "no result needs a gradient"),
    "complex numbers": (lambda x: torch.exp(1j * x).real * x, "complex numbers"),
    "what autograd knows of an argument": (lambda x: x * 2 if x.is_leaf else x * 3, "is_leaf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name):
    function, reason = REFUSED[name]
    compiled = joint(function)
    found = []
    for run in (compiled, function):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        outs = run(x)
        outs = outs if isinstance(outs, tuple) else (outs,)
        live = [out for out in outs if out.requires_grad]
        if live:
            sum(out.sum() for out in live).backward()
        found.append((outs, x.grad))
    torch.testing.assert_close(found[0], found[1])
    assert not joint_calls(compiled)
    assert reason in notes(compiled), notes(compiled)


def test_written_arguments_equal_eager():
    compiled = joint(_written)
    found = []
    for run in (compiled, _written):
        w = torch.randn(3, generator=torch.Generator().manual_seed(0), requires_grad=True)
        x = w * 1
        run(x).sum().backward()
        found.append((x.detach(), w.grad))
    torch.testing.assert_close(found[0], found[1])


def test_gradients_computed_inside():
    compiled = joint(_computes_gradients)
    x = torch.randn(4, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_a_wrong_call_does_not_forbid_a_right_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    compiled = joint(model)
    with pytest.raises(Exception, match=r"shapes cannot be multiplied|must match|mat1"):
        compiled(torch.randn(3, 5))
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    torch.testing.assert_close(model.weight.grad, x.sum(0).expand(2, 4))
    assert joint_calls(compiled) == 1


def test_nothing_is_left_in_the_model():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.last = None

        def forward(self, x):
            self.last = self.lin(x)
            return self.last.sin()

    torch.manual_seed(0)
    model = Keeps()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(2, 3)
    for _ in range(3):
        compiled(x).sum().backward()
        eager(x).sum().backward()
        assert type(model.last) is torch.Tensor
        torch.testing.assert_close(model.last, eager.last)
    _same_gradients(model, eager)
    assert all(type(p.grad) is torch.Tensor for p in model.parameters())


# -- what a first call costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "cnn", "lstm"])
def test_a_first_training_call_loads_neither_dynamo_nor_sympy(name):
    code = f"""
        import sys, torch, staticrt
        from tests.support.training_cases import MODELS
        make, batch = MODELS[{name!r}]
        model = staticrt.compile(make(), joint_trace=True)
        model(batch(4)[0]).sum().backward()
        assert not model.explain().notes, model.explain()
        print([m for m in ("sympy", "torch._dynamo", "torch._functorch.aot_autograd") if m in sys.modules])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[]"]
