"""Quick fake results say what eager gives, or nothing."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from staticrt.shapes.fake_rules import fake_by_rule, rule_of
from staticrt.shapes.rules.pointwise import _OF_ONE

aten = torch.ops.aten

LAYOUTS = {
    "row_major": torch.rand(2, 3, 4, 5),
    "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.rand(2, 3, 4, 5, 2).to(memory_format=torch.channels_last_3d),
    "one_channel": torch.rand(2, 4, 5, 1).permute(0, 3, 1, 2),
    "one_pixel": torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
    "transposed": torch.rand(3, 4).t(),
    "with_gaps": torch.rand(4, 6)[:, :3],
    "expanded": torch.rand(3, 1).expand(3, 4),
    "empty": torch.rand(2, 0, 3),
    "number": torch.rand(()),
    "double": torch.rand(2, 3, dtype=torch.float64),
    "half": torch.rand(2, 3).to(torch.bfloat16),
    "ints": torch.arange(6).reshape(2, 3),
}


def fake_of(mode, tensor):
    """With constant sizes, as weights have them."""
    return mode.from_tensor(tensor, static_shapes=True)


def expect_eager(op, args, kwargs=None):
    """Whether a rule covers the call; its answer is then eager's."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = [fake_of(mode, arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    got = fake_by_rule(mode, op, fakes, kwargs or {})
    if got is None:
        return False
    copies = [
        arg.clone(memory_format=torch.preserve_format) if isinstance(arg, torch.Tensor) else arg
        for arg in args
    ]
    want = op(*copies, **(kwargs or {}))
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want is copies[0]:
        assert got is fakes[0]
    else:
        assert got.stride() == want.stride()
    return True


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("suffix", ["", "_"])
def test_one_argument(layout, suffix):
    x = LAYOUTS[layout]
    covered = 0
    for name in _OF_ONE.split():
        op = getattr(getattr(aten, name + suffix, None), "default", None)
        if op is None or rule_of(op) is None:
            continue
        try:
            op(x.clone())
        except RuntimeError:
            assert fake_by_rule(None, op, (fake_of(FakeTensorMode(), x),), {}) is None  # torch says why
        else:
            covered += expect_eager(op, (x,))
    if layout in ("row_major", "channels_last", "channels_last_3d", "empty", "number", "double", "half"):
        assert covered >= 20  # the rules serve what models mostly have


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32])
@pytest.mark.parametrize("layout", ["row_major", "half", "ints", "empty", "number", "channels_last"])
def test_sums_and_means_of_another_dtype(layout, dtype):
    x = LAYOUTS[layout]
    assert expect_eager(aten.sum.dim_IntList, (x, []), {"dtype": dtype})
    assert expect_eager(aten.sum.default, (x,), {"dtype": dtype})
    if dtype.is_floating_point:
        assert expect_eager(aten.mean.dim, (x, [], True), {"dtype": dtype})


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "add_", "sub_", "mul_", "div_"])
def test_two_arguments(name):
    op = getattr(aten, name).Tensor
    covered = {}
    for left, a in LAYOUTS.items():
        for right, b in LAYOUTS.items():
            try:
                op(a.clone(), b.clone())
            except RuntimeError:
                continue  # sizes that do not fit: torch's own rule says so
            covered[left, right] = expect_eager(op, (a, b))
        if a.is_floating_point():
            covered[left, 2] = expect_eager(op, (a, 2))
            covered[left, 0.5] = expect_eager(op, (a, 0.5))
    for layout in ("row_major", "channels_last"):
        assert covered[layout, layout]
        assert covered[layout, "number"]
        assert covered[layout, 0.5]
    assert covered.get(("ints", "ints"), False) is (name != "div_")
    assert covered["row_major", "channels_last"]
    assert covered["half", "double"]


def test_of_sizes_that_do_not_fit_there_is_no_quick_result():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    a, b = fake_of(mode, torch.rand(2, 3)), fake_of(mode, torch.rand(4, 3))
    assert fake_by_rule(mode, aten.add.Tensor, (a, b), {}) is None
    assert fake_by_rule(mode, aten.add_.Tensor, (b, fake_of(mode, torch.rand(5, 4, 3))), {}) is None


@pytest.mark.parametrize("format", [torch.contiguous_format, torch.channels_last])
def test_images(format):
    x = torch.rand(2, 8, 9, 10).to(memory_format=format)
    weight, bias = torch.rand(4, 8, 3, 3), torch.rand(4)
    assert expect_eager(aten.conv2d.default, (x, weight, bias, [2, 2], [1, 1]))
    assert expect_eager(aten.conv2d.default, (x, torch.rand(8, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 8))
    stats = [torch.rand(8) for _ in range(4)]
    assert expect_eager(aten.batch_norm.default, (x, *stats, False, 0.1, 1e-5, True))
    assert expect_eager(aten.constant_pad_nd.default, (x, [1, 2, 3, 4]))


def test_an_operator_without_a_rule_has_no_quick_result():
    mode = FakeTensorMode(shape_env=ShapeEnv())
    assert rule_of(aten.logcumsumexp.default) is None
    assert fake_by_rule(mode, aten.logcumsumexp.default, (fake_of(mode, torch.rand(3)), 0), {}) is None
