import pytest
import torch
from torch import nn

import staticrt
from staticrt.passes import PipelineOptions, run_pipeline
from staticrt.passes.fold_batch_norm import FoldBatchNorm

aten = torch.ops.aten
NORMS = (aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default)


def model(conv, norm, training=False):
    torch.manual_seed(0)
    module = nn.Sequential(conv, norm)
    if norm.running_mean is not None:
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
    if norm.weight is not None:
        nn.init.uniform_(norm.weight)
        nn.init.uniform_(norm.bias)
    return module.train(training)


def frozen(graph):
    return {**graph.names("PARAMETER"), **graph.names("BUFFER")}


FOLDED = {
    "2d": (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), (2, 3, 8, 8)),
    "no bias": (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), (2, 3, 8, 8)),
    "grouped, strided": (nn.Conv2d(4, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8, eps=0.1), (2, 4, 8, 8)),
    "1d without affine": (nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, affine=False), (2, 3, 8)),
    "3d": (nn.Conv3d(2, 3, 2), nn.BatchNorm3d(3), (2, 2, 4, 4, 4)),
}


@pytest.mark.parametrize("name", FOLDED)
def test_norm_goes_into_frozen_weights(trace, name):
    conv, norm, sizes = FOLDED[name]
    graph = trace(model(conv, norm), [torch.randn(sizes)])
    options = PipelineOptions(freeze=True, weights=frozen(graph))
    run_pipeline(graph.gm, options=options, compare_with=graph.inputs())
    assert len(graph.targets()) == 1
    assert "conv" in graph.targets()[0]


def test_folded_weights_have_the_metadata_that_operators_give(trace):
    norm = nn.BatchNorm2d(4)
    norm.running_var = torch.rand(8)[::2]  # with gaps, which no result has
    graph = trace(model(nn.Conv2d(3, 4, 3, bias=False), norm), [torch.randn(2, 3, 8, 8)])
    graph.run(FoldBatchNorm(frozenset(frozen(graph))))
    made = {}

    class Interpreter(torch.fx.Interpreter):
        def run_node(self, node):
            made[node] = super().run_node(node)
            return made[node]

    Interpreter(graph.gm).run(*graph.inputs())
    calls = [node for node in made if node.op == "call_function"]
    assert len(calls) == 9
    for node in calls:
        expected, got = made[node], node.meta["val"]
        assert (got.shape, got.stride(), got.dtype) == (expected.shape, expected.stride(), expected.dtype)


class Rows(nn.Module):
    """A norm over the channels of a linear layer's result, whose other dims are flattened for it."""

    def __init__(self, features, channels):
        super().__init__()
        self.linear = nn.Linear(features, channels, bias=False)
        self.norm = nn.BatchNorm1d(channels)

    def forward(self, x):
        y = self.linear(x)
        return self.norm(y.flatten(0, 1)).reshape_as(y)


def rows_model(features, channels):
    module = Rows(features, channels)
    model(module.linear, module.norm)
    return module.eval()


LINEAR = {
    "small weight": (lambda: model(nn.Linear(8, 16), nn.BatchNorm1d(16)), (4, 8), 0),
    "large weight": (lambda: model(nn.Linear(256, 256), nn.BatchNorm1d(256)), (4, 256), 1),
    "rows, small weight": (lambda: rows_model(8, 16), (2, 3, 8), 0),
    "rows, large weight": (lambda: rows_model(256, 256), (2, 3, 256), 1),
}


@pytest.mark.parametrize("name", LINEAR)
def test_norm_goes_into_linear_layers(trace, name):
    make, sizes, scaled = LINEAR[name]
    graph = trace(make(), [torch.randn(sizes)])
    run_pipeline(
        graph.gm, options=PipelineOptions(freeze=True, weights=frozen(graph)), compare_with=graph.inputs()
    )
    assert sum(graph.count(n) for n in NORMS) == 0
    assert graph.count(aten.linear.default) == 1
    assert graph.count(aten.mul.Tensor) == scaled


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", LINEAR)
def test_compiled_linear_layers_and_norms_equal_eager(name, dtype):
    make, sizes, _ = LINEAR[name]
    module = make().to(dtype)
    compiled = staticrt.compile(module)
    for batch in (sizes[0], 7, 1):
        x = torch.randn(batch, *sizes[1:], dtype=dtype)
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(x),
                module(x),
                rtol=2e-2 if dtype.itemsize == 2 else 1e-4,
                atol=5e-2 if dtype.itemsize == 2 else 1e-5,
            )


MIXED = {
    "linear": (nn.Linear(8, 16), nn.BatchNorm1d(16), (4, 8)),
    "conv": (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), (2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", MIXED)
def test_norms_that_mix_dtypes_are_not_folded(trace, name):
    layer, norm, sizes = MIXED[name]
    module = model(layer, norm)
    module[0].bfloat16()
    graph = trace(module, [torch.randn(sizes, dtype=torch.bfloat16)])
    run_pipeline(
        graph.gm, options=PipelineOptions(freeze=True, weights=frozen(graph)), compare_with=graph.inputs()
    )
    assert sum(graph.count(n) for n in NORMS) == 1


def test_a_result_that_is_read_twice_keeps_its_norm(trace):
    class Twice(Rows):
        def forward(self, x):
            y = self.linear(x)
            return self.norm(y.flatten(0, 1)), y

    graph = trace(Twice(8, 16).eval(), [torch.randn(2, 3, 8)])
    run_pipeline(
        graph.gm, options=PipelineOptions(freeze=True, weights=frozen(graph)), compare_with=graph.inputs()
    )
    assert sum(graph.count(n) for n in NORMS) == 1


@pytest.mark.parametrize("features", [6, 5])
def test_a_weight_that_is_a_vector_keeps_its_norm(trace, features):
    class Vector(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(features))
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x):
            return self.norm(nn.functional.linear(x, self.weight))

    module = Vector()
    model(nn.Identity(), module.norm)
    module.eval()
    graph = trace(module, [torch.randn(2, 6, features)])
    run_pipeline(
        graph.gm, options=PipelineOptions(freeze=True, weights=frozen(graph)), compare_with=graph.inputs()
    )
    assert sum(graph.count(n) for n in NORMS) == 1
    compiled, x = staticrt.compile(module), torch.randn(3, 6, features)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert not compiled.explain().eager


def test_channels_elsewhere_keep_their_norm(trace):
    module = model(nn.Linear(8, 16), nn.BatchNorm1d(3))  # channels are dim 1 of [batch, 3, 16]
    graph = trace(module, [torch.randn(4, 3, 8)])
    run_pipeline(
        graph.gm, options=PipelineOptions(freeze=True, weights=frozen(graph)), compare_with=graph.inputs()
    )
    assert sum(graph.count(n) for n in NORMS) == 1


def test_live_weights_keep_their_norm(trace):
    conv, norm, sizes = FOLDED["2d"]
    graph = trace(model(conv, norm), [torch.randn(sizes)])
    report = run_pipeline(graph.gm, options=PipelineOptions(weights=frozen(graph)))
    assert not next(p for p in report.passes if p.name == "fold-batch-norm").changed
    assert sum(graph.count(n) for n in NORMS) == 1


def test_norm_goes_into_weights_that_the_runtime_tracks(trace):
    conv, norm, sizes = FOLDED["2d"]
    graph = trace(model(conv, norm), [torch.randn(sizes)])
    options = PipelineOptions(tracked=frozenset(frozen(graph)))
    run_pipeline(graph.gm, options=options, compare_with=graph.inputs())
    assert sum(graph.count(n) for n in NORMS) == 0
    assert graph.count(aten.rsqrt.default) == 1  # computed by the graph, from the weights as they are


class TwoReaders(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


STAYS = {
    "batch statistics": lambda: model(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), training=True),
    "no running statistics": lambda: model(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)),
    "transposed": lambda: model(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)),
    "conv read twice": lambda: TwoReaders().eval(),
}


@pytest.mark.parametrize("name", STAYS)
def test_stays_where_it_must(trace, name):
    graph = trace(STAYS[name](), [torch.randn(2, 3, 8, 8)])
    assert not graph.run(FoldBatchNorm(frozenset(frozen(graph)))).changed
