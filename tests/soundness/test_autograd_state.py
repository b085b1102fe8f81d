"""What a call does to autograd besides computing: tensors that begin to require gradients, the grad mode, leaves."""

from __future__ import annotations

import contextlib
import weakref

import pytest
import torch
from torch import nn

import staticrt
from tests.support.against_eager import equal_eager
from tests.support.compilers import each_compiler


def _factory(x):
    return x * torch.ones(2, requires_grad=True)


def _factory_among_results(x):
    return torch.zeros(2, requires_grad=True), x + 1


def _factory_like(x):
    return torch.zeros_like(x, requires_grad=True)


def _parameter(x):
    return nn.Parameter(x)


def _parameter_without_gradient(x):
    return nn.Parameter(x * 2, requires_grad=False)


def _argument_requires(x):
    x.requires_grad_(True)
    return x * 2


def _argument_attribute(x):
    if x.is_leaf:
        x.requires_grad = True
    return x * 2


def _intermediate_requires(x):
    y = x.detach() * 2
    y.requires_grad_()
    return y * 3


def _view_requires(x):
    return x.view(1, 2).detach().requires_grad_()


def _layer_made_inside(x):
    layer = nn.Linear(2, 2)
    layer.weight.data.fill_(1)
    layer.bias.data.zero_()
    return layer(x)


def _turned_off(x):
    y = x * 2
    torch.set_grad_enabled(False)
    return y, y * 3


def _turned_on(x):
    torch.set_grad_enabled(True)
    return x + 1


def _turned_and_back(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(not before)
    y = x * 2
    torch.set_grad_enabled(before)
    return y


class _GradOn:
    def __enter__(self):
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)

    def __exit__(self, *_exc):
        torch._C._set_grad_enabled(self.before)


def _manager_across_a_break(x):
    with _GradOn():
        if torch.is_grad_enabled():
            x = x * 2
        print(end="")
    return x


@torch.no_grad()
def _decorated(x):
    return x * 2


def _detached_in_place(x):
    y = x * 2
    y.detach_()
    return y


def _argument_detached(x):
    x.detach_()
    return x * 2


def _retains(x):
    y = x * 2
    if y.requires_grad:
        y.retain_grad()
    return y, (y * 3).sum()


def _hooked(x):
    y = x * 2
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 10)
    return (y * 3).sum()


def _gradient_inside(x):
    with torch.enable_grad():
        z = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad((z * z).sum(), z)
    return found + x


def _backward_inside(x):
    z = torch.ones(2, requires_grad=True)
    with torch.enable_grad():
        (z * x.detach()).sum().backward()
    return z.grad, z


def _leaf_written(x):
    x.add_(1)
    return x * 2


def _packed(x):
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return (x * x).sum()


def _asks(x):
    y = x * 2
    return y, y.is_leaf, y.requires_grad


BODIES = [
    _factory,
    _factory_among_results,
    _factory_like,
    _parameter,
    _parameter_without_gradient,
    _argument_requires,
    _argument_attribute,
    _intermediate_requires,
    _view_requires,
    _layer_made_inside,
    _turned_off,
    _turned_on,
    _turned_and_back,
    _manager_across_a_break,
    _decorated,
    _detached_in_place,
    _argument_detached,
    _retains,
    _hooked,
    _gradient_inside,
    _backward_inside,
    _leaf_written,
    _packed,
    _asks,
]
MODES = {"grad": contextlib.nullcontext, "no_grad": torch.no_grad}
ARGUMENTS = {
    "plain": lambda: torch.ones(2),
    "leaf": lambda: torch.full((2,), 2.0, requires_grad=True),
    "result": lambda: torch.full((2,), 2.0, requires_grad=True) * 1,
}


def _describe(value):
    if isinstance(value, torch.Tensor):
        history = value.grad_fn is not None
        return type(value).__name__, value.requires_grad, value.is_leaf, history, value.tolist()
    return [_describe(item) for item in value] if isinstance(value, tuple) else value


def _observe(function, argument, mode):
    """What two calls return, leave behind and give as gradients, or that they raise."""
    seen = []
    for _ in range(2):
        x = argument()
        with mode():
            try:
                result = function(x)
            except RuntimeError:
                seen.append("it raises")
                continue
            seen += [_describe(result), _describe(x), torch.is_grad_enabled()]
        torch.set_grad_enabled(True)
        flat = result if isinstance(result, tuple) else (result,)
        tensors = [item for item in flat if isinstance(item, torch.Tensor)]
        roots = [tensor.sum() for tensor in tensors if tensor.grad_fn is not None]
        if roots:
            sum(roots).backward()
            # A tensor that keeps its gradient, or is a leaf.
            kept = [item for item in (x, *tensors) if item.is_leaf or item.retains_grad]
            seen.append([None if item.grad is None else item.grad.tolist() for item in kept])
    return seen


@pytest.fixture(autouse=True)
def _grad_mode(fresh_dynamo):
    yield
    torch.set_grad_enabled(True)


@pytest.mark.filterwarnings("ignore")
@each_compiler
@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__.strip("_"))
def test_autograd_state_is_as_after_eager(body, mode, argument, compiler):
    expected = _observe(body, argument, mode)
    torch.set_grad_enabled(True)

    assert _observe(compiler(body), argument, mode) == expected


def _detached_in_product(b, e):
    return (b @ e.detach()).mean()


def _compared_only(b, e):
    return torch.where(e > 0, b, 0.0).sum()


@pytest.mark.filterwarnings("ignore")
@each_compiler
@pytest.mark.parametrize("body", [_detached_in_product, _compared_only])
def test_a_backward_does_not_walk_into_the_graph_of_a_detached_input(body, compiler):
    def gradients(function):
        found = []
        for times in range(3):
            a, b = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
            e = a @ torch.full((2, 2), 2.0)
            e.sum().backward(retain_graph=times == 2)
            function(b, e).backward(create_graph=times == 1)
            found += [a.grad.tolist(), b.grad.tolist(), e.tolist()]
        return found

    assert gradients(compiler(body)) == gradients(body)


@each_compiler
def test_the_graph_of_a_detached_input_is_not_kept(compiler):
    b, a = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    saved = torch.ones(2, 2)
    result = compiler(_detached_in_product)(b, a @ saved)
    gone = weakref.ref(saved)
    del saved

    assert gone() is None
    result.backward()


@pytest.mark.filterwarnings("ignore")
@each_compiler
@pytest.mark.parametrize("vectorize", [False, True])
def test_jacobians_of_a_module_that_trains(compiler, vectorize):
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    compiled = compiler(model)
    x = torch.randn(3)
    compiled(x.requires_grad_()).sum().backward()
    for kind in (torch.autograd.functional.jacobian, lambda f, x, vectorize: torch.func.jacrev(f)(x)):
        torch.testing.assert_close(
            kind(compiled, x, vectorize=vectorize), kind(model, x, vectorize=vectorize)
        )
    basis = torch.eye(2)
    batched = torch.autograd.grad(compiled(x), x, basis, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.autograd.grad(model(x), x, basis, is_grads_batched=True))


@pytest.mark.filterwarnings("ignore")
def test_dynamo_compiles_nothing_of_this_package_in_a_backward_inside():
    def function(a):
        e = a @ torch.ones(2, 2)
        e.sum().backward()
        return e.detach() * 2

    torch._dynamo.reset()
    torch._dynamo.utils.clear_compilation_metrics()
    torch.compile(function, backend="staticrt")(torch.ones(2, 2, requires_grad=True))
    frames = [metrics.co_filename or "" for metrics in torch._dynamo.utils.get_compilation_metrics()]

    assert frames
    assert not [name for name in frames if "/staticrt/" in name]


@each_compiler
def test_a_default_dtype_that_is_set_inside(compiler):
    def function(x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        y = torch.ones(2) * 1.5
        torch.set_default_dtype(before)
        return y, torch.ones(2), x * 2

    results = compiler(function)(torch.ones(2, requires_grad=True))
    assert [result.dtype for result in results] == [torch.float64, torch.float32, torch.float32]


@pytest.mark.parametrize("freed", ["before", "after", "module", "zeros", "never"])
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_frozen_parameter_keeps_and_loses_its_gradient_in_steps_as_in_eager(make, freed):
    """An optimiser updates by the gradient that a parameter had when it was frozen, until it is cleared."""

    def train(compile):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        optimizer = make(model.parameters(), lr=0.1)

        @compile
        def step(x):
            if freed == "before":
                optimizer.zero_grad()
            elif freed == "module":
                model.zero_grad()
            elif freed == "zeros":
                optimizer.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            if freed == "after":
                optimizer.zero_grad()
            return loss.detach()

        seen = []
        for number in range(9):
            if number in (3, 6):
                for p in model[0].parameters():
                    p.requires_grad_(number == 6)
                    p.grad = torch.ones_like(p)
            step(torch.ones(4, 2) * number)
            seen += [(p.detach().clone(), p.grad) for p in model.parameters()]
        return seen

    equal_eager(train)


class Switches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.held = torch.ones(3)


def _switch_by_method(model, x):
    y = x * 2 if model.layer.weight.requires_grad else x * 3
    model.layer.weight.requires_grad_(not model.layer.weight.requires_grad)
    return model.layer(y)


def _switch_by_attribute(model, x):
    model.held.requires_grad = not model.held.requires_grad
    return model.layer(x)


def _freeze(model, x):
    model.layer.requires_grad_(False)
    return model.layer(x)


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("forward", [_switch_by_method, _switch_by_attribute, _freeze])
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_which_tensors_require_gradients_is_state(forward, with_gradients):
    def run(compile):
        torch.manual_seed(0)
        model = Switches()
        function = compile(lambda x: forward(model, x))
        seen = []
        for number in range(7):
            if number == 4:
                model.requires_grad_(True)
            with torch.set_grad_enabled(with_gradients):
                result = function(torch.ones(2, 3))
            states = [each.requires_grad for each in (result, model.held, *model.parameters())]
            seen.append((result.detach(), states))
        return seen

    equal_eager(run, staticrt.compile)


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("calls_with_hooks", [1, 4])
@pytest.mark.filterwarnings("ignore:.*runs eagerly")
def test_hooks_that_a_model_registers_on_its_weights(calls_with_hooks, with_gradients):
    def run(compile):
        torch.manual_seed(0)
        layer = nn.Linear(2, 2)
        calls = []

        def function(x):
            if len(calls) < calls_with_hooks:
                calls.append(1)
                layer.weight.register_hook(lambda gradient: gradient * 2)
            return layer(x)

        compiled, seen = compile(function), []
        for _call in range(4):
            with torch.set_grad_enabled(with_gradients):
                result = compiled(torch.ones(1, 2))
            layer.zero_grad()
            (result if with_gradients else layer(torch.ones(1, 2))).sum().backward()
            seen.append(layer.weight.grad.clone())
        return seen

    equal_eager(run, staticrt.compile)
