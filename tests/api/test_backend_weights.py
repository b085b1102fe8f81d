"""`torch.compile(model, backend="staticrt")` without gradients: what is made of weights is kept, sizes that Dynamo
has fixed are constants."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import staticrt
from staticrt import tuning
from staticrt.executor.executor import Executor

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def executors(monkeypatch):
    """Engines of graphs, in the order they were made."""
    made = []
    start = Executor.__init__

    def noted(self, *args, **kwargs):
        start(self, *args, **kwargs)
        if kwargs.get("is_partial"):
            made.append(weakref.ref(self))

    monkeypatch.setattr(Executor, "__init__", noted)
    return made


def _image_model():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 256)
    )
    model[1].running_mean.uniform_(-1, 1)
    model[1].running_var.uniform_(0.5, 2)
    return model.eval()


def _report(executor):
    (trace,) = executor().explain().traces
    return trace


def _kernels(executor):
    return _report(executor).signatures[-1].kernels


def _whole(model, x, **options):
    """Kernels of the model traced whole, chosen by rule."""
    compiled = staticrt.compile(model, deterministic=True, **options)
    with torch.no_grad():
        compiled(x), compiled(x)
    (trace,) = compiled.explain().traces
    return trace.signatures[-1].kernels


# Measuring may find the same kernel best for packed and other weights.
_BY_RULE = {"deterministic": True}


def test_matrices_are_packed_and_batch_norms_folded(executors):
    model = _image_model()
    compiled = torch.compile(model, backend="staticrt", options=_BY_RULE)
    x = torch.randn(16, 3, 6, 6)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
    (executor,) = executors
    assert _kernels(executor) == _whole(model, x)
    assert _kernels(executor) != _whole(model, x, freeze=False)


def test_parts_between_graph_breaks_keep_what_is_made_of_weights(executors):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = _image_model()

        def forward(self, x):
            print("", end="")
            return self.model(x)

    model = Broken().eval()
    compiled = staticrt.compile(model, deterministic=True)
    with torch.no_grad():
        for size in (16, 16, 12, 17):
            x = torch.randn(size, 3, 6, 6)
            torch.testing.assert_close(compiled(x), model(x))
    found = [
        signature.kernels
        for executor in executors
        for trace in executor().explain().traces
        for signature in trace.signatures
    ]
    assert _whole(model.model, torch.randn(17, 3, 6, 6)) in found
    assert _whole(model.model, torch.randn(17, 3, 6, 6), freeze=False) not in found


def test_floats_that_dynamo_hands_over_as_tensors(executors):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = _image_model()

        def forward(self, x, scale):
            return self.model(x) * scale + torch.arange(256) * scale

    model = Scaled().eval()
    compiled = torch.compile(model, backend="staticrt", dynamic=True)
    with torch.no_grad():
        for scale in (0.5, 0.5, 2.5, -0.0, 0.0, float("inf")):
            got, want = compiled(x := torch.randn(16, 3, 6, 6), scale), model(x, scale)
            torch.testing.assert_close(got, want, equal_nan=True)
            assert torch.equal(torch.signbit(got), torch.signbit(want))
    assert all(not executor().explain().eager for executor in executors)


def test_weights_that_change_are_seen():
    model = _image_model()
    compiled = torch.compile(model, backend="staticrt")
    x = torch.randn(16, 3, 6, 6)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: model[0].weight.mul_(2),
            lambda: model[1].running_mean.add_(1),
            lambda: setattr(model[4].weight, "data", torch.randn(256, 128)),
            lambda: setattr(model[4], "weight", nn.Parameter(torch.randn(256, 128))),
            lambda: setattr(model[1], "running_var", torch.full((8,), 3.0)),
            lambda: model.load_state_dict(_image_model().state_dict()),
        ):
            change()
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("kept", [64, 2])
def test_modules_of_one_graph_have_what_is_made_of_their_own_weights(monkeypatch, executors, kept):
    """As layers that are compiled one by one do. Those beyond the sets that are kept keep nothing."""
    monkeypatch.setattr(tuning, "MAX_WEIGHT_SETS", kept)
    models = [_image_model() for _ in range(4)]
    compiled = [torch.compile(model, backend="staticrt", options=_BY_RULE) for model in models]
    x = torch.randn(16, 3, 6, 6)
    with torch.no_grad():
        for _ in range(3):
            for run, model in zip(compiled, models, strict=True):
                torch.testing.assert_close(run(x), model(x))
    assert len(executors) == min(4, kept + 1)
    for executor in executors[: min(4, kept)]:
        assert _kernels(executor) == _whole(models[0], x)
    for executor in executors[kept:]:
        assert _kernels(executor) == _whole(models[0], x, freeze=False)


def test_what_is_made_of_weights_goes_with_them(executors):
    model = nn.Linear(64, 64)
    x = torch.randn(8, 64)
    with torch.no_grad():
        torch.compile(model, backend="staticrt")(x)
    weight = weakref.ref(model.weight)
    del model
    gc.collect()
    assert weight() is None
    assert executors[0]() is None


def test_a_parameter_that_every_call_makes_anew():
    def scale(x, weight):
        return (x @ weight).relu()

    compiled = torch.compile(scale, backend="staticrt")
    x = torch.randn(8, 16)
    with torch.no_grad():
        for _ in range(5):
            weight = nn.Parameter(torch.randn(16, 16))
            torch.testing.assert_close(compiled(x, weight), scale(x, weight))


def test_buffers_that_the_model_writes():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))
            self.inner = nn.Linear(6, 6)

        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.1)
            return self.inner(x - self.mean)

    model = Mean()
    theirs = copy.deepcopy(model)
    compiled = torch.compile(model, backend="staticrt")
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5, 6)
            torch.testing.assert_close(compiled(x), theirs(x))
            torch.testing.assert_close(model.mean, theirs.mean)


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_only_sizes_that_are_dynamos_symbols_become_symbols(executors, dynamic):
    """Weights come to a graph as arguments: with symbolic sizes, sums of strides of each would go to sympy."""
    model = _image_model()
    compiled = torch.compile(model, backend="staticrt", dynamic=dynamic)
    with torch.no_grad():
        for batch in (4, 4, 3, 5):
            x = torch.randn(batch, 3, 6, 6)
            torch.testing.assert_close(compiled(x), model(x))
    symbols = set()
    for executor in executors:
        (entry,) = executor().snapshot().traces
        constant = {guard.expression.split(" == ")[0] for guard in entry.traced.guards.guards}
        symbols |= {
            s.leaf for s in entry.traced.guards.symbols if s.prop != "value" and s.name not in constant
        }
        weights = executor().known.weights
        assert len(weights) == 8
        assert not symbols & weights
    assert len(executors) == {None: 2, True: 1, False: 3}[dynamic]
