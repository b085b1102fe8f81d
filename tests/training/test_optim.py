"""Optimisers that steps are compiled with: torch's results, torch's state dict."""

import copy

import pytest
import torch

import staticrt
from staticrt.training import optim
from tests.support.training_cases import OPTIMIZERS, data, mlp, plain_step, run_both


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_20_compiled_steps_equal_torch(name):
    step, _ = run_both(mlp, data("mlp"), name)
    assert len(step._variants) == 1
    assert step._variants[0].fast.calls >= 17  # recorded once; nothing but the first calls enters Python


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager_steps_are_torchs_own(name):
    theirs_type, own_type, arguments = OPTIMIZERS[name]
    theirs = [torch.ones(3, requires_grad=True)]
    own = [torch.ones(3, requires_grad=True)]
    a, b = theirs_type(theirs, **arguments), own_type(own, **arguments)
    for i in range(3):
        for params, optimizer in ((theirs, a), (own, b)):
            params[0].grad = torch.full((3,), float(i))
            optimizer.step()
    assert torch.equal(theirs[0], own[0])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_dict_round_trip_both_ways(name):
    """20 steps with the optimiser exchanged twice, through its state dict, equal 20 without."""
    theirs_type, own_type, arguments = OPTIMIZERS[name]
    torch.manual_seed(0)
    expected_model = mlp().eval()
    model = copy.deepcopy(expected_model)
    expected = theirs_type(expected_model.parameters(), **arguments)
    for batch in data("mlp"):
        plain_step(expected_model, expected)(*batch)
    current = theirs_type(model.parameters(), **arguments)
    for i, batch in enumerate(data("mlp")):
        if i in (5, 12):
            kind = own_type if i == 5 else theirs_type
            other = kind(model.parameters(), lr=77.0)
            other.load_state_dict(current.state_dict())
            current = other
            step = plain_step(model, current)
            if i == 5:
                step = staticrt.compile_step(step, fullgraph=True)
        elif i == 0:
            step = plain_step(model, current)
        step(*batch)
    torch.testing.assert_close(model.state_dict(), expected_model.state_dict(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        current.state_dict()["state"], expected.state_dict()["state"], rtol=1e-4, atol=1e-5
    )


def test_numbers_change_without_recording_again():
    def between(i, model, optimizer):
        group = optimizer.param_groups[0]
        group["lr"] *= 0.9
        group["weight_decay"] += 0.01
        group["betas"] = (0.9 - 0.01 * i, 0.999)

    step, _ = run_both(mlp, data("mlp"), "adamw", between=between)
    assert len(step._variants) == 1


def test_schedulers_of_torch_work():
    schedulers = {}

    def between(i, model, optimizer):
        if id(optimizer) not in schedulers:
            schedulers[id(optimizer)] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=30)
        schedulers[id(optimizer)].step()

    step, _ = run_both(mlp, data("mlp"), "sgd-momentum", between=between)
    assert len(step._variants) == 1


def test_a_flag_that_changes_is_another_recording():
    def between(i, model, optimizer):
        optimizer.param_groups[0]["maximize"] = i % 2 == 0

    run_both(mlp, data("mlp"), "sgd", between=between)


def test_load_state_dict_between_compiled_steps():
    saved = {}

    def between(i, model, optimizer):
        if i == 5:
            saved[id(optimizer)] = copy.deepcopy(optimizer.state_dict())
        if i == 9:
            optimizer.load_state_dict(saved[id(optimizer)])

    step, _ = run_both(mlp, data("mlp"), "adam", between=between)
    assert len(step._variants) == 1  # other tensors of the same kind: bound anew


def test_parameter_groups_and_a_group_added_later():
    def make_step(model, optimizer):
        return plain_step(model, optimizer)

    def build():
        model = mlp()
        return model

    torch.manual_seed(0)
    models = [build()]
    models.append(copy.deepcopy(models[0]))
    for model, kind in zip(models, (torch.optim.AdamW, optim.AdamW), strict=True):
        optimizer = kind(
            [
                {"params": model[0].parameters(), "lr": 1e-2, "weight_decay": 0.0},
                {"params": [model[4].weight], "betas": (0.5, 0.9)},
            ]
        )
        step = make_step(model, optimizer)
        if kind is optim.AdamW:
            step = staticrt.compile_step(step)
        torch.manual_seed(3)
        for i, batch in enumerate(data("mlp")):
            step(*batch)
            if i == 8:
                optimizer.add_param_group({"params": [*model[3].parameters(), model[4].bias], "lr": 0.1})
    torch.testing.assert_close(models[1].state_dict(), models[0].state_dict(), rtol=1e-4, atol=1e-5)


def test_step_hooks_run_once_eagerly():
    calls = []
    p = torch.ones(2, requires_grad=True)
    torch.optim.SGD([p], lr=0.1)  # patches torch's class
    optimizer = optim.SGD([p], lr=0.1)
    optimizer.register_step_post_hook(lambda *args: calls.append(1))
    p.grad = torch.ones(2)
    optimizer.step()
    assert calls == [1]


def test_tensor_learning_rate():
    p = torch.ones(4, requires_grad=True)
    lr = torch.tensor(0.5)
    optimizer = optim.SGD([p], lr=lr)

    @staticrt.compile_step(fullgraph=True)
    def step():
        p.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    assert torch.equal(p.detach(), torch.full((4,), 0.5))
    lr.fill_(0.25)
    step()
    assert torch.equal(p.detach(), torch.full((4,), 0.25))


def test_dtypes():
    for dtype in (torch.float64, torch.bfloat16):
        a = torch.linspace(-1, 1, 8, dtype=dtype).requires_grad_()
        b = a.detach().clone().requires_grad_()
        ours, theirs = optim.Adam([a], lr=0.1), torch.optim.Adam([b], lr=0.1, fused=True)

        def run(p, optimizer):
            optimizer.zero_grad()
            (p * p).sum().backward()
            optimizer.step()

        compiled = staticrt.compile_step(lambda run=run, a=a, ours=ours: run(a, ours))
        for _ in range(5):
            compiled()
            run(b, theirs)
        torch.testing.assert_close(a, b)
        assert len(compiled._variants) == 1


def test_a_complex_parameter_runs_eagerly():
    p = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    optimizer = optim.SGD([p], lr=0.5)

    def run():
        optimizer.zero_grad()
        (p * p.conj()).real.sum().backward()
        optimizer.step()

    step = staticrt.compile_step(run)
    with pytest.warns(UserWarning, match=r"runs eagerly: an optimiser of torch\.complex64 parameters"):
        step()
    assert torch.equal(p.detach(), torch.zeros(2, dtype=torch.complex64))


def test_state_of_another_dtype_than_its_parameter_is_as_in_eager():
    def trained(compile_step):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = compile_step(step)
        for dtype in (torch.float32, torch.float32, torch.float32, torch.float64, torch.float64):
            model.to(dtype)  # the momentum stays float32
            step(torch.ones(2, 3, dtype=dtype))
        return list(model.parameters())

    with pytest.warns(UserWarning, match=r"runs eagerly: torch\.float32 state of a torch\.float64 parameter"):
        compiled = trained(staticrt.compile_step)
    torch.testing.assert_close(compiled, trained(lambda step: step))
