import pytest
import torch
from torch import nn

from staticrt.passes.fuse_norms import FuseNorms

aten = torch.ops.aten
RMS, LAYER = aten.rms_norm.default, aten.layer_norm.default


def rms(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def rms_divided(x):
    return x / torch.sqrt((x * x).mean(2, keepdim=True) + 1e-6)


def layer(x):
    d = x - x.mean(-1, keepdim=True)
    return d / torch.sqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5)


class Affine(nn.Module):
    def __init__(self, norm, bias):
        super().__init__()
        self.norm = norm
        self.weight = nn.Parameter(torch.rand(16))
        self.bias = nn.Parameter(torch.rand(16)) if bias else None

    def forward(self, x):
        y = self.weight * self.norm(x)
        return y if self.bias is None else y + self.bias


@pytest.mark.parametrize(
    ("function", "target"),
    [(rms, RMS), (rms_divided, RMS), (layer, LAYER), (Affine(rms, False), RMS), (Affine(layer, True), LAYER)],
    ids=["rms", "rms, divided", "layer", "rms, weight", "layer, weight, bias"],
)
def test_a_norm_written_out_becomes_one_call(trace, function, target):
    graph = trace(function, [torch.randn(2, 5, 16)])
    assert graph.run(FuseNorms()).changed
    assert graph.count(target) == 1
    graph.gm.graph.eliminate_dead_code()
    assert len(graph.targets()) == 1


def test_a_bias_after_an_rms_norm_stays_an_addition(trace):
    graph = trace(Affine(rms, True), [torch.randn(2, 5, 16)])
    assert graph.run(FuseNorms()).changed
    graph.gm.graph.eliminate_dead_code()
    assert sorted(graph.targets()) == ["aten.add.Tensor", "aten.rms_norm.default"]


@pytest.mark.parametrize("norm", [rms, layer])
def test_a_norm_of_a_norm(trace, norm):
    """What takes the place of the first is the second one's input."""
    graph = trace(lambda x: norm(norm(norm(x))), [torch.randn(2, 5, 16)])
    assert graph.run(FuseNorms()).count == 3
    graph.gm.graph.eliminate_dead_code()
    assert len(graph.targets()) == 3


def test_large_and_small_rows(trace):
    x = torch.randn(3, 4, 16) * torch.logspace(-8, 8, 12).view(3, 4, 1)
    for function in (rms, layer):
        graph = trace(function, [torch.randn(3, 4, 16)])
        graph.run(FuseNorms(), [x])


def read_elsewhere(x):
    variance = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(variance + 1e-5) + variance


def other_dimension(x):
    return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def all_dimensions(x):
    return x * torch.rsqrt(x.pow(2).mean() + 1e-5)


def cubed(x):
    return x * torch.rsqrt(x.pow(3).abs().mean(-1, keepdim=True) + 1e-5)


def other_input(x):
    return (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def eps_from_data(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + x.mean())


def summed(x):
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize(
    "function", [read_elsewhere, other_dimension, all_dimensions, cubed, other_input, eps_from_data, summed]
)
def test_stays_where_it_must(trace, function):
    graph = trace(function, [torch.randn(2, 5, 16)])
    assert not graph.run(FuseNorms()).changed


def test_float64_stays(trace):
    graph = trace(rms, [torch.randn(2, 5, 16, dtype=torch.float64)])
    assert not graph.run(FuseNorms()).changed


def test_a_difference_read_elsewhere_leaves_an_rms_norm_of_it(trace):
    def both(x):
        d = x - x.mean(-1, keepdim=True)
        return d * torch.rsqrt(d.pow(2).mean(-1, keepdim=True) + 1e-5), d

    graph = trace(both, [torch.randn(2, 5, 16)])
    assert graph.run(FuseNorms()).changed
    assert graph.count(RMS) == 1
