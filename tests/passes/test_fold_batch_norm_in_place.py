"""Batch norms after convolutions whose large weights kernels read where they lie: no second, folded copy."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.passes import PipelineOptions, run_pipeline

aten = torch.ops.aten

# kernel, in, out channels, image side, stride, padding; whether the weight stays as it is
CASES = {
    "1x1": ((1, 256, 256, 6, 1, 0), True),
    "small 1x1": ((1, 64, 64, 6, 1, 0), False),
    "1x1 to few channels": ((1, 256, 128, 6, 1, 0), False),
    "strided 1x1": ((1, 512, 1024, 8, 2, 0), True),
    "3x3 of a small image": ((3, 256, 256, 5, 1, 1), True),
    "3x3 of a larger image": ((3, 256, 256, 12, 1, 1), False),
    "small 3x3": ((3, 64, 64, 5, 1, 1), False),
}


def block(case, bias=False):
    torch.manual_seed(0)
    kernel, channels, out, _side, stride, padding = case
    norm = nn.BatchNorm2d(out)
    for values, (low, high) in (
        (norm.running_mean, (-1, 1)),
        (norm.running_var, (0.5, 2)),
        (norm.weight, (-1, 1)),
    ):
        nn.init.uniform_(values, low, high)
    conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=bias)
    return nn.Sequential(conv, norm, nn.ReLU()).eval()


def image(case, batch=1):
    return torch.randn(batch, case[1], case[3], case[3], generator=torch.Generator().manual_seed(batch))


@pytest.mark.parametrize("name", CASES)
def test_large_weights_stay_where_they_lie(trace, name):
    case, stays = CASES[name]
    graph = trace(block(case, bias=True), [image(case)])
    names = {**graph.names("PARAMETER"), **graph.names("BUFFER")}
    run_pipeline(graph.gm, options=PipelineOptions(tracked=frozenset(names)), compare_with=graph.inputs())
    convs = [n for n in graph.gm.graph.nodes if "conv" in str(n.target) and n.op == "call_function"]
    assert len(convs) == 1
    assert (convs[0].args[1].op != "call_function") == stays
    assert graph.count(aten.batch_norm.default) == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("freeze", [None, True, False])
def test_results_equal_eager_for_every_batch(name, freeze):
    case, _stays = CASES[name]
    model = block(case)
    model = nn.Sequential(model, nn.Conv2d(case[2], 64, 1)).eval()
    fast = staticrt.compile(model, freeze=freeze)
    with torch.no_grad():
        for batch in (1, 1, 2, 3, 2):
            x = image(case, batch)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
        if freeze is not True:
            model[0][0].weight.mul_(0.5)
            model[0][1].weight.mul_(-2)
            torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)


def test_the_kernel_without_copies_is_taken():
    case, _stays = CASES["3x3 of a small image"]
    model = nn.Sequential(*(block(case) for _ in range(4))).eval()
    fast = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(3):
            fast(image(case))
    assert str(fast.explain()).count("conv: weights where they lie") > 0
