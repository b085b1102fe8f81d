"""Quick fake results of pooling, copies and concatenation say what eager gives, or nothing."""

import functools
import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils import _pytree as pytree

import staticrt
from staticrt.shapes.fake_rules import fake_by_rule

aten = torch.ops.aten

IMAGES = {
    "row_major": torch.rand(2, 3, 9, 12),
    "channels_last": torch.rand(2, 3, 9, 12).to(memory_format=torch.channels_last),
    "one_channel": torch.rand(2, 9, 12, 1).permute(0, 3, 1, 2),
    "one_pixel": torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
    "with_gaps": torch.rand(2, 3, 9, 20)[..., :12],
    "double": torch.rand(2, 3, 9, 12).double(),
    "half": torch.rand(2, 3, 9, 12).half(),
    "one": torch.rand(1, 1, 9, 12),
}


@functools.cache
def mode_of(symbolic):
    return FakeTensorMode(shape_env=ShapeEnv())


@functools.cache
def fake_of(tensor, symbolic):
    if not symbolic:
        return mode_of(symbolic).from_tensor(tensor, static_shapes=True)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode_of(symbolic).from_tensor(tensor, symbolic_context=context)


def numbers(sizes):
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]


def expect_eager(op, tensors, symbolic, *rest, **settings):
    """Whether a rule covers the call; its answer is then eager's."""
    mode, fakes = mode_of(symbolic), pytree.tree_map(lambda t: fake_of(t, symbolic), tensors)
    try:
        want = op(tensors, *rest, **settings)
    except (RuntimeError, IndexError):
        want = None
    try:
        got = fake_by_rule(mode, op, (fakes, *rest), settings)
    except RuntimeError:
        assert want is None
        return False
    if got is None:
        return False
    assert want is not None, "the rule takes what eager refuses"
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        assert numbers(g.shape) == list(w.shape)
        assert g.dtype == w.dtype
        assert numbers(g.stride()) == list(w.stride())
    return True


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", ["max_pool2d", "max_pool2d_with_indices", "avg_pool2d"])
def test_pooling(name, symbolic):
    op = getattr(aten, name).default
    covered = 0
    for x in IMAGES.values():
        for window, stride, padding, ceil_mode in itertools.product(
            ([2, 2], [3]), ([], [4, 3]), ([0], [1, 1]), (False, True)
        ):
            settings = (padding, [1, 1], ceil_mode) if "max" in name else (padding, ceil_mode)
            covered += expect_eager(op, x, symbolic, window, stride, *settings)
    assert covered >= 30


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
def test_adaptive_pooling_and_copies(symbolic):
    covered = 0
    for x in IMAGES.values():
        for size in ([1, 1], [3, 4], [7, 7]):
            covered += expect_eager(aten.adaptive_avg_pool2d.default, x, symbolic, size)
        for layout in (None, torch.preserve_format, torch.contiguous_format, torch.channels_last):
            covered += expect_eager(aten.clone.default, x, symbolic, memory_format=layout)
    assert covered >= 20


RESIZES = [
    *("upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "upsample_nearest3d", "upsample_trilinear3d"),
]


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", RESIZES)
def test_resized_images_and_their_gradients(name, symbolic):
    how = [] if "nearest" in name else [True]
    images = IMAGES.values()
    if "3d" in name:
        volume = torch.rand(2, 3, 4, 5, 6)
        images = [volume, volume.to(memory_format=torch.channels_last_3d), volume.double(), volume[..., ::2]]
    forward, backward = getattr(aten, name).default, getattr(aten, f"{name}_backward").default
    covered = 0
    for x in images:
        covered += expect_eager(forward, x, symbolic, [5, 7, 3][: x.dim() - 2], *how)
        sizes, before = list(x.shape[2:]), [*x.shape[:2], 4, 5, 6][: x.dim()]
        covered += expect_eager(backward, x, symbolic, sizes, before, *how)
        assert not expect_eager(backward, x, symbolic, [n + 1 for n in sizes], before, *how)
    assert covered >= len(images)


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
def test_concatenation(symbolic):
    covered = 0
    others = [
        torch.rand(2, 5, 9, 12),
        torch.rand(2, 5, 9, 12).to(memory_format=torch.channels_last),
        torch.rand(0),
    ]
    for a, b in itertools.product(IMAGES.values(), [*IMAGES.values(), *others]):
        for dim in (1, -1, 4):
            covered += expect_eager(aten.cat.default, [a, b], symbolic, dim)
    for tensors in ([torch.rand(0), torch.rand(3)], [torch.rand(2), torch.rand(3)], [torch.rand(4, 2)] * 3):
        covered += expect_eager(aten.cat.default, tensors, symbolic)
    assert covered >= 10


def test_networks_with_pools_are_traced_by_quick_rules(monkeypatch):
    """torch's strides of sizes that may be 0 hold `Max(1, size)`; they must not turn later rules off."""

    asked = []
    dispatch = FakeTensorMode.dispatch

    def count(self, func, *args, **kwargs):
        asked.append(func)
        return dispatch(self, func, *args, **kwargs)

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.MaxPool2d(2, 2, padding=1, ceil_mode=True),
        torch.nn.Conv2d(4, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(inplace=True),
        torch.nn.AvgPool2d(2),
        torch.nn.Conv2d(4, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
    ).eval()
    compiled = staticrt.compile(net)
    with torch.no_grad():
        for size in (20, 33):
            x = torch.randn(2, 3, size, size + 4)
            want = net(x)
            if size == 20:
                monkeypatch.setattr(FakeTensorMode, "dispatch", count)
            torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    assert asked
    slow = {
        aten.batch_norm.default,
        aten.relu.default,
        aten.conv2d.default,
        aten.cat.default,
        aten.avg_pool2d.default,
    }
    assert not slow & set(asked)


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
def test_grids_of_affine_maps(symbolic):
    covered = 0
    for theta in (
        torch.rand(2, 2, 3),
        torch.rand(2, 3, 4),
        torch.rand(1, 2, 3).double(),
        torch.rand(2, 2, 4),
    ):
        for size in ([2, 3, 9, 12], [2, 3, 4, 9, 12], [1, 3, 5, 7], [2, 3, 1, 1], [2, 3, 9]):
            covered += expect_eager(aten.affine_grid_generator.default, theta, symbolic, size, False)
    assert covered >= 4


def test_sampling_by_affine_maps_keeps_sizes_symbolic():
    def sampled(x, theta):
        grid = torch.nn.functional.affine_grid(theta, x.shape, align_corners=False)
        return torch.nn.functional.grid_sample(x, grid, align_corners=False)

    compiled = staticrt.compile(sampled)
    with torch.no_grad():
        for shape in ((2, 3, 9, 12), (3, 4, 7, 5)):
            x, theta = torch.rand(shape), torch.rand(shape[0], 2, 3)
            torch.testing.assert_close(compiled(x, theta), sampled(x, theta))
    assert len(compiled.explain().traces) == 1, str(compiled.explain())
