"""Dimensions that happen to have one element, or none: what `squeeze` leaves out, and where empty results begin."""

import pytest
import torch

import staticrt
from tests.support.compilers import backend, each_compiler

SHAPES = [(3, 4, 8), (3, 1, 8), (1, 4, 1), (1, 1, 1), (1, 1, 5)]

SQUEEZES = {
    "all": lambda x: (x * 2).squeeze(),
    "one": lambda x: (x * 2).squeeze(1),
    "last": lambda x: (x * 2).squeeze(-1),
    "some": lambda x: (x * 2).squeeze((0, 1)),
    "input": lambda x: x.squeeze(1) + 1,
    "then cat": lambda x: torch.cat([x.abs().squeeze(0), x.squeeze(0)], -1),
    "in place": lambda x: (x * 2).squeeze_(1),
    "mean": lambda x: x.mean(-1, keepdim=True).squeeze(),
    "of found": lambda x: (x > 0).nonzero().squeeze(),
    "tile": lambda x: x.tile(2).squeeze(0),
}


@each_compiler
@pytest.mark.parametrize("name", SQUEEZES)
def test_squeeze_drops_what_eager_drops_whatever_shape_came_first(name, compiler):
    function = SQUEEZES[name]
    torch.manual_seed(0)
    for first in SHAPES[:3]:
        torch._dynamo.reset()
        fast = compiler(function)
        for shape in (first, first, *SHAPES, first):
            x = torch.randn(shape)
            torch.testing.assert_close(fast(x), function(x))
        if compiler is backend:
            break


LAYOUTS = {
    "row-major": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "columns first": lambda x: x.mT.contiguous().mT,
    "batch inside": lambda x: x.permute(2, 0, 3, 1).contiguous().permute(1, 3, 0, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_are_those_of_eager_where_a_pool_leaves_one_element(layout):
    def function(x):
        y = torch.nn.functional.avg_pool2d(x, 3, 2)
        return y * 2, torch.sigmoid(y) + y.relu(), y.mT * 3

    fast = staticrt.compile(function)
    with torch.no_grad():
        for shape in ((2, 4, 21, 25), (2, 4, 3, 25), (2, 4, 25, 3), (2, 4, 4, 4), (1, 4, 9, 3), (3, 1, 9, 7)):
            x = LAYOUTS[layout](torch.randn(shape))
            torch.testing.assert_close(fast(x), function(x), check_stride=True)
    assert not fast.explain().eager


def test_found_places_are_squeezed_by_their_number():
    def places(x):
        return (x > 0).nonzero().squeeze()

    fast = staticrt.compile(places)
    for values in (
        [1.0, -1.0, 2.0],
        [1.0, -1.0, -2.0],
        [-1.0, -1.0, -2.0],
        [1.0, 1.0, 1.0],
        [-1.0, 3.0, -1.0],
    ):
        x = torch.tensor(values)
        torch.testing.assert_close(fast(x), places(x))


def test_empty_results_begin_where_eager_has_them():
    def parts(x):
        made = x * 2
        return made[:-1], made[1:], made[:, :0], torch.nn.functional.pad(x, (1, 1))[1:], x[1:], made[:, 5:]

    fast = staticrt.compile(parts)
    for _ in range(3):
        x = torch.randn(1, 5)
        for expected, got in zip(parts(x), fast(x), strict=True):
            assert got.shape == expected.shape
            assert got.stride() == expected.stride()
            assert got.storage_offset() == expected.storage_offset()
            torch.testing.assert_close(got.new_zeros(()) + got.sum(), expected.sum())
