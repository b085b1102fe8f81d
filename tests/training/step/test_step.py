"""`staticrt.compile_step`: after any number of steps everything is as after eager ones."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.errors import InputError, OptionError, TraceError
from staticrt.runtime.eager_calls import watch_eager
from staticrt.training import optim
from tests.support.training_cases import MODELS, data, mlp, pair, plain_step, run_both


@pytest.mark.parametrize("optimizer", ["sgd-momentum", "adamw"])
@pytest.mark.parametrize("name", MODELS)
def test_20_steps_equal_eager(name, optimizer):
    step, _ = run_both(MODELS[name][0], data(name), optimizer, fullgraph=True)
    assert len(step._variants) == 1


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_other_batch_sizes_need_one_more_recording(name, dynamic):
    torch.manual_seed(2)
    batches = [MODELS[name][1](n) for n in (6, 6, 5, 4, 7, 6, 3)]
    step, _ = run_both(MODELS[name][0], batches, fullgraph=True, dynamic=dynamic)
    assert len(step._variants) == (2 if dynamic is None else 1)


def test_a_parameter_frozen_midway():
    def between(i, model, optimizer):
        if i == 8:
            model[0].weight.requires_grad_(False)
        if i == 14:
            model[0].weight.requires_grad_(True)

    run_both(mlp, data("mlp"), between=between)


def test_weights_loaded_midway():
    def between(i, model, optimizer):
        if i == 8:
            torch.manual_seed(5)
            model.load_state_dict(mlp().state_dict())

    step, _ = run_both(mlp, data("mlp"), between=between)
    assert len(step._variants) == 1


def test_training_and_evaluation_mode():
    def between(i, model, optimizer):
        model.train(i % 3 != 0)

    step, _ = run_both(MODELS["cnn"][0], data("cnn"), between=between)
    assert len(step._variants) == 2


def test_a_hook_added_midway_runs():
    seen = []

    def between(i, model, optimizer):
        if i == 8:
            model[0].weight.register_hook(lambda grad: (seen.append(1), grad * 0.5)[1])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_both(mlp, data("mlp"), between=between)
    assert len(seen) == 2 * 11


def test_a_parameter_with_a_hook_is_not_recorded():
    """Also where the hook only computes: what else it does in later calls, a recording would not know."""

    def between(i, model, optimizer):
        if i == 0:
            model[0].weight.register_hook(lambda grad: grad * 0.5)

    with pytest.warns(UserWarning, match="a parameter has hooks"):
        step, _ = run_both(mlp, data("mlp", 5), between=between)
    assert not step._variants


def test_a_gradient_may_have_other_strides_than_its_parameter():
    policy = getattr(torch.autograd, "enforce_grad_layout_policy", None)
    if policy is None:
        pytest.skip("this torch always enforces the strides of gradients")
    weight = torch.ones(2, 3, requires_grad=True)

    def step(x):
        weight.grad = None
        (weight.t() * x).sum().backward()

    compiled = staticrt.compile_step(step)
    strides = []
    for run in (step, compiled):
        strides.append([])
        for enforced in (True, True, False, False, True):
            with policy(enforced):
                run(torch.ones(3, 2))
            strides[-1].append(weight.grad.stride())
    assert len({*strides[0]}) == 2
    assert strides[1] == strides[0]
    assert [report.calls for report in compiled.explain().eager] == [2]


def test_a_schedule_before_the_optimiser_warns_as_in_eager():
    texts = []
    for compiled in (False, True):
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

        def step(x, model=model, optimizer=optimizer, schedule=schedule):
            schedule.step()
            model(x).sum().backward()
            optimizer.step()

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (staticrt.compile_step(step) if compiled else step)(data("mlp", 1)[0][0])
        texts.append({str(each.message) for each in caught if "staticrt" not in str(each.message)})
    assert "before `optimizer.step()`" in str(texts[0])
    assert texts[1] == texts[0]


def test_a_gradient_given_to_an_unused_parameter_is_reset():
    def make():
        model = mlp()
        model.unused = torch.nn.Identity()
        model.unused.weight = torch.nn.Parameter(torch.ones(3))
        return model

    def between(i, model, optimizer):
        if i == 4:
            model.unused.weight.grad = torch.ones(3)

    step, _ = run_both(make, data("mlp", 8), between=between)
    assert len(step._variants) == 1


def test_gradients_of_arguments():
    w = torch.ones(3, requires_grad=True)

    @staticrt.compile_step(fullgraph=True)
    def step(x):
        (x * w).square().sum().backward()

    for _ in range(3):
        x = torch.arange(3.0).requires_grad_()
        step(x)
        torch.testing.assert_close(x.grad, 2 * torch.arange(3.0))
    torch.testing.assert_close(w.grad, 6 * torch.arange(3.0).square())


def test_torchs_own_optimisers_are_recorded_too():
    a, b, eager, _ = pair(mlp, lr=1e-2)
    theirs = torch.optim.Adam(b.parameters(), lr=1e-2)
    step = staticrt.compile_step(plain_step(b, theirs))
    eager_step = plain_step(a, eager)
    for run in (eager_step, step):
        torch.manual_seed(1)
        for batch in data("mlp", 8):
            run(*batch)
    torch.testing.assert_close(b.state_dict(), a.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        theirs.state_dict()["state"], eager.state_dict()["state"], rtol=1e-4, atol=1e-5
    )
    assert len(step._variants) == 1
    theirs.param_groups[0]["lr"] = eager.param_groups[0]["lr"] = 0.5
    for run in (eager_step, step):
        torch.manual_seed(1)
        run(*data("mlp", 1)[0])
    torch.testing.assert_close(b.state_dict(), a.state_dict(), rtol=1e-4, atol=1e-5)


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.calls = model, optimizer, 0

    @staticrt.compile_step
    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss


def test_methods():
    a, b, eager, ours = pair(mlp, lr=1e-2)
    trainers = Trainer(b, ours), Trainer(copy.deepcopy(b), optim.Adam(b.parameters()))
    expected = plain_step(a, eager)
    for run in (expected, trainers[0].step):
        torch.manual_seed(1)
        for batch in data("mlp"):
            run(*batch)
    torch.testing.assert_close(b.state_dict(), a.state_dict(), rtol=1e-4, atol=1e-5)
    assert trainers[1].step is not trainers[0].step
    assert trainers[0].step._variants


def test_what_cannot_be_recorded_runs_eagerly_and_says_why():
    def make_step(model, optimizer):
        def step(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if loss.item() < 100:
                loss.backward()
            optimizer.step()
            return loss

        return step

    with pytest.warns(UserWarning, match="runs eagerly"):
        step, _ = run_both(mlp, data("mlp", 8), make_step=make_step)
    assert not step._variants
    assert "not recorded" in str(step.explain())

    p = torch.ones(1, requires_grad=True)

    @staticrt.compile_step(fullgraph=True)
    def prints():
        print("hello")
        p.sum().backward()

    with pytest.raises(TraceError, match=r"(?s)calls print\(\).*fix: change the step there"):
        prints()
    assert p.grad is None


def test_profiles_see_the_eager_calls_of_a_step():
    step = staticrt.compile_step(lambda x: x * 2)
    with watch_eager() as spans, torch.no_grad():
        step(torch.ones(2))
    assert [span.reason for span in spans] == ["gradients are switched off"]


def test_an_exception_leaves_nothing_behind():
    a, b, eager, ours = pair(mlp, lr=1e-2)
    step = staticrt.compile_step(plain_step(b, ours))
    expected = plain_step(a, eager)
    batches = data("mlp")
    for run in (expected, step):
        torch.manual_seed(1)
        for i, (x, y) in enumerate(batches):
            run(x, y)
            if i in (0, 5):
                with pytest.raises((IndexError, RuntimeError)):
                    run(x, torch.full_like(y, 99))
                torch.manual_seed(i)
    torch.testing.assert_close(b.state_dict(), a.state_dict(), rtol=1e-4, atol=1e-5)


def test_recording_leaves_gradients_and_parameters_alone():
    p = torch.ones(2, requires_grad=True)
    before = p.grad = torch.full((2,), 3.0)

    def step(x):
        (p * x).sum().backward()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        staticrt.compile_step(step)(torch.ones(2))
    assert p.grad is before
    assert torch.equal(before, torch.full((2,), 4.0))  # the eager run's, once
    assert torch.equal(p.detach(), torch.ones(2))


def test_writes_are_seen_by_eager_graphs():
    """A parameter saved by an eager graph and updated by a step: autograd refuses, as in eager."""
    w = torch.ones(3, requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)

    @staticrt.compile_step(fullgraph=True)
    def step():
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()

    step()
    step()
    pending = (w * w).sum()
    step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        pending.backward()


def test_results_are_the_callers():
    _, b, _, ours = pair(mlp, lr=1e-2)
    step = staticrt.compile_step(plain_step(b, ours))
    batch = data("mlp", 1)[0]
    losses = [step(*batch) for _ in range(5)]
    assert len({loss.item() for loss in losses}) == 5
    assert not any(loss.requires_grad for loss in losses[1:])


def test_sizes_among_the_results_are_sizes():
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        loss = (weight * x).sum()
        loss.backward()
        return loss, [x.shape], {"weight": weight.size()}

    compiled = staticrt.compile_step(step)
    for rows in (2, 3, 2):
        _loss, (shape,), sizes = compiled(torch.ones(rows, 3))
        assert (type(shape), type(sizes["weight"])) == (torch.Size, torch.Size)
        assert (shape, sizes["weight"]) == ((rows, 3), (3,))
    assert compiled.explain().traces


def test_gradients_reset_last_live_in_the_arena():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @staticrt.compile_step(fullgraph=True)
    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.randn(16, 64)
    step(x)
    step(x)
    (variant,) = step._variants
    assert len(variant.traced.outputs()) == 1
    (stats,) = variant._entry.executable.native.prepared_stats
    assert 0 < stats["arena_bytes"] <= 1.03 * stats["lower_bound_bytes"]
    assert all(p.grad is None for p in model.parameters())


def test_an_empty_tuple_that_a_guarded_object_holds_is_no_result():
    model = nn.Linear(4, 4)
    model.empty = ()
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    @staticrt.compile_step(fullgraph=True)
    def step(x):
        loss = model(x).sum() + len(model.empty)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step(torch.randn(2, 4))
    (variant,) = step._variants
    assert len(variant.traced.outputs()) == 1


def test_no_grad_and_wrong_uses():
    w = torch.ones(1, requires_grad=True)

    def step():
        w.square().sum().backward()

    compiled = staticrt.compile_step(step)
    with torch.no_grad(), pytest.raises(RuntimeError, match="does not require grad"):
        compiled()
    with pytest.raises(InputError, match="takes a function that trains, got Linear"):
        staticrt.compile_step(nn.Linear(1, 1))
    with pytest.raises(OptionError, match="dynamic"):
        staticrt.compile_step(step, dynamik=True)
