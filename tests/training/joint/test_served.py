"""Joint traces (`joint_trace=True`): values and gradients equal eager's."""

import copy
import os

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from staticrt.training import joint_program
from tests.support import random_regions
from tests.support.joint_traces import both, joint, joint_calls
from tests.support.training_cases import MODELS
from tests.training.test_random_regions import _compare


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


def test_the_backward_is_planned_for_the_results_that_get_a_gradient():
    """A loss beside other results, as transformers' models return: no plan is made for gradients of all of them."""
    weight = torch.ones(3, requires_grad=True)

    def model(x):
        y = x * weight
        return y.square().sum(), y, y.exp()

    compiled = joint(model)
    compiled(torch.full((3,), 2.0))[0].backward()
    torch.testing.assert_close(weight.grad, torch.full((3,), 8.0))
    (trace,) = compiled._executor.snapshot().joint_traces
    missing = [[len(key) for key, _plan in graph.plans.items()] for graph in trace.executable.backward]
    assert missing == [[1], [0]]  # the exponential; the other result gets what the loss adds to its gradient


def test_an_associative_scan_that_only_compiled_code_asks_for():
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def states(a, b):
        if torch.compiler.is_compiling():
            return associative_scan(combine, (a, b), dim=1, combine_mode="generic")[1]
        h, found = torch.zeros_like(b[:, 0]), []
        for t in range(b.shape[1]):
            h = a[:, t] * h + b[:, t]
            found.append(h)
        return torch.stack(found, 1)

    compiled = joint(states)
    for rows, length in ((2, 5), (3, 5), (2, 8), (1, 2)):
        found = []
        for run in (compiled, states):
            torch.manual_seed(rows)
            a, b = (torch.rand(rows, length, 3, requires_grad=True) for _ in range(2))
            result = run(a, b)
            result.cos().sum().backward()
            found.append((result.detach(), a.grad, b.grad))
        torch.testing.assert_close(found[0], found[1])
    assert joint_calls(compiled) == 4


def test_an_associative_scan_whose_step_reads_a_weight():
    from torch._higher_order_ops.associative_scan import associative_scan

    class Scan(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            return associative_scan(lambda a, b: a * self.weight + b, x, dim=0, combine_mode="generic")

    model = Scan()
    compiled = joint(copy.deepcopy(model))
    for rows in (4, 6):
        x = torch.rand(rows, 3)
        for run in (compiled, model):
            run.zero_grad()
            run(x).sum().backward()
        torch.testing.assert_close(compiled.weight.grad, model.weight.grad)
    assert joint_calls(compiled) == 2


def test_what_autograd_saves_is_no_operator_of_its_own(monkeypatch):
    """Results that a derivative reads are saved, looked at and found by detached tensors."""
    recorded = []
    monkeypatch.setattr(
        joint_program,
        "build_joint",
        lambda traced, *args, build=joint_program.build_joint: (
            recorded.append(traced) or build(traced, *args)
        ),
    )
    both(lambda x: x.sigmoid().tanh().exp(), torch.randn(3, requires_grad=True))
    (traced,) = recorded
    assert not traced.module.graph.find_nodes(op="call_function", target=torch.ops.aten.detach.default)
