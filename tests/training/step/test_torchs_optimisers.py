"""Whole steps with torch's own optimisers: updates as precise as eager's, and no new trace for another learning rate."""

import functools
import warnings

import pytest
import torch
from torch import nn

import staticrt
import staticrt.training.optim
from staticrt.training import recording
from tests.support.against_eager import equal_eager

OPTIMISERS = {
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {"weight_decay": 0.1},
    "Adadelta": {},
    "Rprop": {},
    "Adagrad": {"lr_decay": 0.1},
    "RMSprop": {"momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True},
    "ASGD": {"t0": 3, "weight_decay": 0.1},
    "Adafactor": {"weight_decay": 0.1},
    "Muon": {"weight_decay": 0.1},
}


FUSED = ("SGD", "Adam", "AdamW", "Adagrad")


@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for name in OPTIMISERS
        for way in ("loop", "foreach", "fused")[: 3 if name in FUSED else 1 if name == "Muon" else 2]
    ],
)
def test_steps_in_double_precision_equal_eagers(name, way):
    options = {"lr": 1e-2, "foreach": way == "foreach", **OPTIMISERS[name]}
    if way == "fused":
        options["fused"] = True
    if name == "Muon":  # has one way, and takes matrices only
        del options["foreach"]

    def train(compile):
        bias = name != "Muon"
        model = nn.Sequential(nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 2, bias=bias)).double()
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        losses = []
        for call, size in enumerate((8, 8, 3, 1, 8, 5, 5)):
            torch.manual_seed(call)
            losses.append(step(torch.randn(size, 4, dtype=torch.float64)).detach())
            losses += [p.grad.clone() for p in model.parameters()]
            scheduler.step()
        return losses, model.state_dict(), optimizer.state_dict()["state"]

    report = equal_eager(train, rtol=1e-12, atol=1e-13).explain()
    assert len(report.traces) == 2, report  # one of constant sizes, one of symbolic ones
    assert all(item.reason.startswith("an optimiser's first step") for item in report.eager), report


def test_adafactor_takes_the_larger_of_two_numbers_as_python_does_where_one_is_nan():
    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = torch.optim.Adafactor(model.parameters(), d=1.5, eps=(1e-4, 1e-3), maximize=True)

        @compile
        def step(x, factor):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            model.bias.grad[0] *= factor
            optimizer.step()

        for call, factor in enumerate((1.0, 1.0, float("nan"))):
            torch.manual_seed(call)
            step(torch.randn(3, 4, dtype=torch.float64), torch.tensor(factor))
        assert model.bias.isnan().tolist() == [True, False]
        return list(model.parameters()), optimizer.state_dict()["state"]

    assert len(equal_eager(train, equal_nan=True).explain().traces) == 1


@pytest.mark.filterwarnings("ignore")  # it runs eagerly
@pytest.mark.parametrize("optim", [torch.optim, staticrt.training.optim], ids=["torch", "own"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_that_changes_its_learning_rate_does_so_once_a_call(name, optim, scheduled):
    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = getattr(optim, name)(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        @compile
        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if scheduled:
                scheduler.step()
            else:
                optimizer.param_groups[0]["lr"] *= 0.5

        for call in range(4):
            torch.manual_seed(call)
            step(torch.randn(3, 4, dtype=torch.float64))
        return optimizer.param_groups[0]["lr"], list(model.parameters())

    equal_eager(train)


def test_an_optimiser_is_left_as_it_was():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    attributes = {*vars(optimizer)}

    @staticrt.compile_step
    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for size in (3, 3, 5):
        step(torch.randn(size, 4))
    assert len(step.explain().traces) == 2
    assert {name for name in vars(optimizer) if not name.startswith("_")} <= attributes
    assert type(optimizer) is torch.optim.AdamW
    assert optimizer.param_groups[0]["foreach"] is None


def test_a_hook_that_comes_later_runs_in_every_call():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = []

    @staticrt.compile_step
    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hooks that change Python state run eagerly
        for _ in range(3):
            step(torch.randn(3, 4))
        optimizer.register_step_post_hook(lambda *args: calls.append(None))
        for _ in range(3):
            step(torch.randn(3, 4))
    assert len(calls) == 3


@pytest.mark.filterwarnings("ignore:staticrt")  # counting runs eagerly
@pytest.mark.parametrize("optim", [torch.optim, staticrt.training.optim], ids=["torch", "own"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
@pytest.mark.parametrize("how", ["read", "asked", "copied", "counted"])
def test_what_a_step_itself_reads_of_its_optimiser_is_as_in_eager(name, optim, how):
    def train(compile):
        model = nn.Linear(4, 2).double()
        optimizer = getattr(optim, name)(model.parameters(), lr=0.1)
        if how == "counted":
            optimizer.count = 0

        @compile
        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            group = optimizer.param_groups[0]
            if how == "asked" and group["lr"] < 0.06:
                loss = 2 * loss
            loss.backward()
            optimizer.step()
            if how == "counted":
                optimizer.count += 1
                return loss * optimizer.count
            return loss * {"read": group["lr"], "copied": dict(group)["lr"]}.get(how, 1)

        losses = []
        for call in range(6):
            torch.manual_seed(call)
            losses.append(step(torch.randn(3, 4, dtype=torch.float64)).detach())
            optimizer.param_groups[0]["lr"] *= 0.8
        return losses, list(model.parameters()), getattr(optimizer, "count", 0)

    equal_eager(train)


def test_an_optimiser_that_is_a_global_of_the_code_is_recorded_at_once():
    model = nn.Linear(4, 2)
    code = """
def train(x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
"""
    scope = {"model": model, "optimizer": torch.optim.Adam(model.parameters())}
    exec(code, scope)
    step = staticrt.compile_step(scope["train"])
    for _ in range(3):
        step(torch.randn(3, 4))
    (eager,) = step.explain().eager
    assert eager.reason.startswith("an optimiser's first step")
    assert eager.calls == 1


def _compare(train_of, between=lambda call, model, optimizer: None, calls=5, **options):
    """Run the steps that `train_of(model, optimizer)` gives, compiled and eager, and compare all they leave."""

    def train(compile):
        model = nn.ModuleList(nn.Linear(4, 4) for _ in range(2)).double()
        optimizer = torch.optim.SGD(model[0].parameters(), **{"lr": 0.1, **options})
        step = compile(train_of(model, optimizer))
        results = []
        for call in range(calls):
            between(call, model, optimizer)
            torch.manual_seed(call)
            results.append(step(torch.randn(3, 4, dtype=torch.float64)))
        gradients = [p.grad is not None and p.grad for p in model.parameters()]
        return results, list(model.parameters()), gradients

    return equal_eager(train).explain()


def _lower_the_rate(call, model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.1 if call < 2 else 0.01


@pytest.mark.filterwarnings("ignore:staticrt")
@pytest.mark.parametrize("optim", [torch.optim, staticrt.training.optim], ids=["torch", "own"])
@pytest.mark.parametrize("update", ["given.step()", "config['optimizer'].step()", "update()"])
def test_the_rate_of_an_optimiser_that_only_the_run_meets_may_change(update, optim):
    code = f"""
def train(x, given):
    model.zero_grad()
    model[0](x).square().mean().backward()
    {update}

def update():
    optimizer.step()
"""

    def train(compile):
        model = nn.Sequential(nn.Linear(4, 2)).double()
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        scope = {"model": model, "optimizer": optimizer, "config": {"optimizer": optimizer}}
        exec(code, scope)
        step = compile(scope["train"])
        for call in range(5):
            _lower_the_rate(call, model, optimizer)
            torch.manual_seed(call)
            step(torch.randn(3, 4, dtype=torch.float64), optimizer if "given" in update else None)
        return list(model.parameters())

    step = equal_eager(train)
    assert step.explain().traces or "given" in update  # of an argument, its tensors are arguments too


@pytest.mark.parametrize("use", ["zeroed", "clipped", "written"])
def test_parameters_may_join_an_optimiser_that_the_step_does_not_step(use):
    def train_of(model, optimizer):
        def train(x):
            if use == "zeroed":
                optimizer.zero_grad()
            model[1](model[0](x)).square().mean().backward()
            params = [p for group in optimizer.param_groups for p in group["params"]]
            if use == "clipped":
                nn.utils.clip_grad_norm_(params, 0.01)
            if use == "written":
                with torch.no_grad():
                    for p in params:
                        p.sub_(p.grad, alpha=0.1)

        return train

    def between(call, model, optimizer):
        if call == 3:
            optimizer.add_param_group({"params": list(model[1].parameters())})

    assert _compare(train_of, between, calls=6).traces


def test_an_optimiser_that_the_step_never_steps_needs_no_state():
    def train_of(model, optimizer):
        other = torch.optim.Adam(model[1].parameters())

        def train(x):
            optimizer.zero_grad()
            other.zero_grad()
            model[1](model[0](x)).square().mean().backward()
            optimizer.step()

        return train

    explanation = _compare(train_of)
    assert len(explanation.traces) == 1
    assert explanation.eager == ()


def test_an_optimiser_with_a_parameter_that_gets_no_gradient_is_recorded():
    def train_of(model, optimizer):
        optimizer.add_param_group({"params": list(model[1].parameters())})

        def train(x):
            optimizer.zero_grad()
            model[0](x).square().mean().backward()
            optimizer.step()

        return train

    explanation = _compare(train_of, _lower_the_rate, momentum=0.9)
    assert len(explanation.traces) == 1


def _step_of(model, optimizer):
    def train(x):
        optimizer.zero_grad()
        loss = model[0](x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach() * getattr(optimizer, "_scale", 1)

    return train


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_failure_at_the_start_of_a_recording_leaves_nothing_behind(monkeypatch):
    def fail(*args):
        raise RuntimeError("no such optimiser")

    monkeypatch.setattr(recording, "HeldOptimizer", fail)
    _compare(_step_of)
    assert recording.current() is None


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_state_that_is_no_dictionary_is_let_be():
    def between(call, model, optimizer):
        optimizer.state[model[0].weight] = None

    _compare(_step_of, between)


def test_an_attribute_of_the_users_own_may_change():
    def between(call, model, optimizer):
        optimizer._scale = 1 + call // 2

    _compare(_step_of, between)


@pytest.mark.filterwarnings("ignore:staticrt")
def test_gradients_that_a_scaler_scaled_are_divided():
    def between(call, model, optimizer):
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0 + call), torch.tensor(0.0)

    _compare(_step_of, between, fused=True)


@pytest.mark.filterwarnings("ignore:staticrt")
@pytest.mark.parametrize("optim", [torch.optim, staticrt.training.optim], ids=["torch", "own"])
def test_capturable_on_the_cpu_raises_as_in_eager(optim):
    model = nn.Linear(4, 2)
    step = staticrt.compile_step(_step_of([model], optim.Adam(model.parameters(), capturable=True)))
    for _ in range(3):
        with pytest.raises(AssertionError, match="capturable"):
            step(torch.randn(3, 4))


def test_a_step_that_a_library_replaced_runs(monkeypatch):
    upstream = torch.optim.SGD.step

    @functools.wraps(upstream)
    def doubled(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad.mul_(2)
        return upstream(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", doubled)
    _compare(_step_of, _lower_the_rate)
