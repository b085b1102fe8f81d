"""Compiled callables among torch's and Python's own tools: swapped tensors, transforms, tracers, the garbage collector."""

import copy
import gc
import weakref

import pytest
import torch
import torch._dynamo
from torch import nn

import staticrt
from tests.support.compilers import each_compiler

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.layer = nn.Linear(4, 4)
        self.register_buffer("offset", torch.randn(4))

    def forward(self, x, times: int = 2):
        return self.layer(x) * self.factor * times + self.offset


# -- tensors that are swapped ----------------------------------------------------------------------------------------


@pytest.fixture
def _swaps():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@each_compiler
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.usefixtures("_swaps")
def test_parameters_are_swapped_by_conversions_and_loads(compiler, training):
    model = Scale(3.0)
    compiled = compiler(model)
    parameters = list(model.parameters())
    for dtype in (torch.float32, torch.float64, torch.float32):
        model.to(dtype)
        for _ in range(3):
            x = torch.randn(2, 4, dtype=dtype)
            with torch.set_grad_enabled(training):
                result = compiled(x)
            torch.testing.assert_close(result, model(x))
            if training:
                result.sum().backward()
                model.zero_grad()
        del result
        gc.collect()
        model.load_state_dict({name: value * 2 for name, value in model.state_dict().items()})
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))


@each_compiler
def test_a_swap_is_seen_by_the_next_call_and_by_other_models_too(compiler):
    model = nn.Linear(4, 4)
    other = nn.Sequential(model, nn.Linear(4, 4))
    models = {model: compiler(model), other: compiler(other)}
    x = torch.randn(2, 4)
    with torch.no_grad():
        for each, compiled in models.items():
            for _ in range(3):
                torch.testing.assert_close(compiled(x), each(x))
        torch.utils.swap_tensors(model.weight, nn.Parameter(torch.randn(4, 4)))
        for each, compiled in models.items():
            torch.testing.assert_close(compiled(x), each(x))


# -- tracers and transforms ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.ReLU()), Scale(2.0)],
    ids=lambda m: type(m).__name__,
)
def test_fx_traces_a_compiled_module_as_the_module(model):
    compiled = staticrt.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x)
    eager = torch.fx.symbolic_trace(model)
    traced = torch.fx.symbolic_trace(compiled)

    assert traced.code == eager.code
    torch.testing.assert_close(traced(x), model(x))


def test_fx_traces_a_model_that_holds_a_compiled_module():
    def make(layer):
        model = nn.Sequential(layer, nn.ReLU())
        return torch.fx.symbolic_trace(model)

    layer = Scale(2.0)
    assert make(staticrt.compile(layer)).code == make(layer).code


@each_compiler
def test_transforms_of_a_compiled_module(compiler):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    compiled = compiler(model)
    x = torch.randn(5, 4)
    with torch.no_grad():
        compiled(x)
    for transform in (torch.vmap, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        torch.testing.assert_close(transform(compiled)(x), transform(model)(x))


@each_compiler
def test_numbers_of_more_than_64_bits(compiler):
    def function(x, n):
        return x * (n % 1000), n + 1

    compiled = compiler(function)
    for requires_grad in (False, True):
        for n in (3, 4, 2**70 + 1, 5, 2**80 + 2, -(2**63) - 1, 2**63 - 1, -(2**63)):
            x = torch.ones(2, requires_grad=requires_grad)
            (got, more), (want, _) = compiled(x, n), function(x, n)
            assert (got.tolist(), got.requires_grad, more) == (want.tolist(), requires_grad, n + 1)


@each_compiler
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_number_of_more_than_64_bits_beside_a_tensor(requires_grad, compiler):
    compiled = compiler(lambda x, n: x + n)
    for n in (2**63, 2**63 - 1, -(2**63)):
        x = torch.ones(2, requires_grad=requires_grad)
        assert compiled(x, n).tolist() == (x + n).tolist()


# -- what is kept alive ----------------------------------------------------------------------------------------------


def _alive(references):
    gc.collect()
    gc.collect()
    return sum(each() is not None for each in references)


def _assign_forward(model):
    model.forward = staticrt.compile(model.forward)


def _attribute(model):
    model.compiled = staticrt.compile(model)


def _closure(model):
    model.step = staticrt.compile(lambda x: model(x))


def _parameter_attribute(model):
    model.layer.weight.owner = model
    model.step = staticrt.compile(model)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("assign", [_assign_forward, _attribute, _closure, _parameter_attribute])
def test_a_model_that_holds_what_is_compiled_of_it_is_collected(assign, training):
    references = []
    for _ in range(3):
        model = Scale(2.0)
        assign(model)
        run = next((vars(model)[name] for name in ("compiled", "step") if name in vars(model)), model)
        with torch.set_grad_enabled(training):
            for _ in range(3):
                result = run(torch.randn(2, 4))
        if training:
            result.sum().backward()
        references += [weakref.ref(model), weakref.ref(model.layer.weight)]
        del model, result, run

    assert _alive(references) == 0


class Holds:
    def __init__(self, factor):
        self.factor = factor


@each_compiler
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("make", [lambda: Scale(2.0), lambda: Holds(2.0)], ids=["module", "object"])
def test_arguments_are_not_kept_alive(compiler, make, training):
    def function(held, x):
        return held(x) if isinstance(held, nn.Module) else x * held.factor

    compiled = compiler(function)
    references = []
    for _ in range(3):
        held, x = make(), torch.ones(2, 4, requires_grad=training)
        with torch.set_grad_enabled(training):
            for _ in range(3):
                torch.testing.assert_close(compiled(held, x), function(held, x))
        references.append(weakref.ref(held))
        if isinstance(held, nn.Module):
            references.append(weakref.ref(held.layer.weight))
        del held, x

    assert _alive(references) == 0


def test_calls_are_served_fast_while_an_argument_lives():
    compiled = staticrt.compile(lambda held, x: x * held.factor)
    first, second = Holds(2.0), Holds(3.0)
    for held in (first, second, first, second) * 2:
        assert compiled(held, torch.ones(2)).tolist() == [held.factor] * 2
    fast = compiled._executor.fast_calls
    assert compiled(second, torch.ones(2)).tolist() == [3, 3]
    assert compiled._executor.fast_calls == fast + 1
    del second, held
    assert len(compiled.explain().traces) == 1
    assert compiled(first, torch.ones(2)).tolist() == [2, 2]
    first.factor = 5.0
    assert compiled(first, torch.ones(2)).tolist() == [5, 5]


@each_compiler
def test_a_step_keeps_no_optimisers_state_alive(compiler):
    """`staticrt.compile` cannot trace it; Dynamo hands over the state as attributes of its graph."""
    model = nn.Linear(4, 4, bias=False)
    theirs = copy.deepcopy(model)
    optimizer, eager = (torch.optim.Adadelta(m.parameters()) for m in (model, theirs))
    holder = [optimizer]

    def run():
        holder[0].step()

    step = compiler(run)
    for m in (model, theirs):
        m(torch.ones(4)).sum().backward()
    eager.step()
    gc.collect()
    gc.disable()
    try:
        step()
        torch.testing.assert_close(model.weight, theirs.weight)
        state = weakref.ref(optimizer.state[model.weight]["square_avg"])
        gradient = weakref.ref(model.weight.grad)
        optimizer.zero_grad(True)
        holder.clear()
        del optimizer
        assert state() is None
        assert gradient() is None
    finally:
        gc.enable()


def test_distributions_check_their_arguments_after_a_model_was_split():
    def normal(x, scale):
        return torch.distributions.Normal(x, scale).log_prob(x)

    torch._dynamo.eval_frame.TorchPatcher.patch.cache_clear()  # what Dynamo does once in a process
    torch.distributions.Distribution.set_default_validate_args(True)
    compiled, ones = staticrt.compile(normal), torch.ones(2)
    compiled(ones, ones)
    for call in (compiled, compiled, normal):
        with pytest.raises(ValueError, match="to satisfy the constraint GreaterThan"):
            call(ones, -ones)


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(4, 4), nn.GRUCell(4, 4)
        self.rnn = nn.RNNCell(4, 4)

    def forward(self, x):
        hidden, cell = self.lstm(x)
        return self.gru(hidden, cell), self.rnn(hidden), torch.cosine_similarity(hidden, cell)


@pytest.mark.parametrize("table", [{}, None], ids=["kept", "decomposed"])
def test_torch_export_takes_operators_apart_as_before_after_training(table):
    model, x = Cells(), torch.randn(2, 4)
    sum(y.sum() for y in staticrt.compile(model)(x)).backward()
    program = torch.export.export(model, (x,)).run_decompositions(table)
    targets = {str(node.target) for node in program.graph.nodes}
    assert ("aten.lstm_cell.default" in targets) == (table is not None)
    torch.testing.assert_close(program.module()(x), model(x))
