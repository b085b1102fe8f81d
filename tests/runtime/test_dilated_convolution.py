"""Convolutions whose taps lie so far apart that some meet only padding: those cost nothing and change nothing."""

import itertools

import pytest
import torch
from torch import nn

import staticrt


def net(dilation, padding, stride, groups, kernel):
    """Convolutions enough to run channels last."""
    wide = nn.Conv2d(16, 8, kernel, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return nn.Sequential(nn.Conv2d(8, 16, 1), wide, nn.ReLU(), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)).eval()


@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_equals_eager(groups):
    torch.manual_seed(0)
    routes = set()
    for dilation, stride, kernel in itertools.product([(1, 1), (7, 1), (1, 7), (6, 12)], [1, 2], [2, 3]):
        padding = tuple(d * (kernel - 1) // 2 + 1 for d in dilation)
        model = net(dilation, padding, stride, groups, kernel)
        compiled = staticrt.compile(model)
        for height, width in ((5, 6), (9, 14), (5, 6)):
            x = torch.randn(2, 8, height, width)
            for _ in range(2):
                torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5, check_stride=True)
        for signature in compiled.explain().traces[0].signatures:
            routes |= {name for name, _count in signature.kernels}
    assert any("runs of pixels" in route for route in routes), routes


@torch.no_grad()
def test_a_changed_weight_is_packed_again_for_every_size():
    torch.manual_seed(0)
    model = net((8, 8), (8, 8), 1, 1, 3)
    compiled = staticrt.compile(model)
    images = [torch.randn(1, 8, 6, 6), torch.randn(1, 8, 12, 6), torch.randn(1, 8, 12, 12)]
    for _ in range(3):
        for x in images:
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        model[1].weight.mul_(1.5).add_(0.1)


@torch.no_grad()
@pytest.mark.parametrize(("dilation", "route"), [(24, "runs of pixels"), (12, "generic")])
def test_what_meets_mostly_padding_is_left_to_whoever_skips_it(dilation, route):
    """On 16x16 pixels one tap of dilation 24 meets the image; of dilation 12 all do, a quarter of the time."""
    torch.manual_seed(0)
    model = net((dilation, dilation), (dilation, dilation), 1, 1, 3)
    model[1] = nn.Conv2d(16, 64, 3, padding=dilation, dilation=dilation)
    model[3] = nn.Conv2d(64, 8, 1)
    compiled = staticrt.compile(model.eval())
    x = torch.randn(1, 8, 16, 16)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5, check_stride=True)
    kernels = {name for name, _ in compiled.explain().traces[0].signatures[0].kernels}
    assert any("runs of pixels" in name for name in kernels) == (route == "runs of pixels"), kernels
