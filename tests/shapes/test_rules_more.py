"""Rules for transforms, windows, products and factories: what eager gives, at the sizes asked about and at others."""

import pytest
import torch

from tests.support.fake_rules import Asked

aten = torch.ops.aten


def rows(*sizes, dtype=torch.float32):
    return torch.rand(*sizes, dtype=torch.float64).to(dtype)


def images(*sizes):
    return rows(*sizes).to(memory_format=torch.channels_last)


def complexes(*sizes):
    return torch.randn(*sizes, dtype=torch.complex64)


# name -> operator, arguments of two calls[, keyword arguments of both]
CALLS = {
    "fft of a dimension": (
        aten._fft_c2c.default,
        [(complexes(2, 5, 6), [2], 0, True), (complexes(3, 4, 7), [2], 0, True)],
    ),
    "fft of two": (
        aten._fft_c2c.default,
        [(complexes(2, 5, 6), [1, 2], 0, True), (complexes(3, 4, 7), [1, 2], 0, True)],
    ),
    "real fft": (aten._fft_r2c.default, [(rows(2, 5, 6), [2], 0, True), (rows(3, 4, 7), [2], 0, True)]),
    "real fft of two": (
        aten._fft_r2c.default,
        [(rows(2, 5, 6), [1, 2], 0, True), (rows(3, 4, 7), [1, 2], 0, True)],
    ),
    "whole real fft": (
        aten._fft_r2c.default,
        [(rows(2, 5, 6), [2], 0, False), (rows(3, 4, 7), [2], 0, False)],
    ),
    "inverse real fft": (
        aten._fft_c2r.default,
        [(complexes(2, 5, 6), [2], 0, 10), (complexes(3, 4, 6), [2], 0, 10)],
    ),
    "polar": (aten.polar.default, [(rows(2, 3), rows(2, 3)), (rows(4, 5), rows(4, 5))]),
    "numbers of complex": (aten.view_as_real.default, [(complexes(2, 3),), (complexes(5, 4),)]),
    "complex of numbers": (aten.view_as_complex.default, [(rows(2, 3, 2),), (rows(5, 4, 2),)]),
    "addmm": (aten.addmm.default, [(rows(4), rows(2, 3), rows(3, 4)), (rows(5), rows(6, 7), rows(7, 5))]),
    "baddbmm": (
        aten.baddbmm.default,
        [(rows(2, 3, 5), rows(2, 3, 4), rows(2, 4, 5)), (rows(3, 4, 2), rows(3, 4, 6), rows(3, 6, 2))],
    ),
    "repeat": (aten.repeat.default, [(rows(2, 3), [2, 1, 3]), (rows(4, 5), [2, 1, 3])]),
    "unfold": (aten.unfold.default, [(rows(2, 9), 1, 3, 2), (rows(3, 14), 1, 3, 2)]),
    "unfold transposed": (aten.unfold.default, [(rows(9, 2).t(), -1, 3, 4), (rows(15, 3).t(), -1, 3, 4)]),
    "broadcast": (aten.broadcast_tensors.default, [([rows(2, 3), rows(3)],), ([rows(4, 5), rows(5)],)]),
    "glu": (aten.glu.default, [(rows(2, 6), -1), (rows(3, 8), -1)]),
    "im2col": (
        aten.im2col.default,
        [
            (rows(2, 3, 8, 9), [3, 2], [1, 2], [1, 0], [2, 1]),
            (rows(4, 5, 12, 7), [3, 2], [1, 2], [1, 0], [2, 1]),
        ],
    ),
    "im2col of one image": (
        aten.im2col.default,
        [
            (rows(8, 9, 3).permute(2, 0, 1), [3, 3], [1, 1], [1, 1], [2, 2]),
            (rows(7, 7, 5).permute(2, 0, 1), [3, 3], [1, 1], [1, 1], [2, 2]),
        ],
    ),
    "col2im": (
        aten.col2im.default,
        [
            (rows(2, 12, 28), [5, 6], [2, 2], [1, 1], [0, 1], [1, 1]),
            (rows(3, 8, 28), [5, 6], [2, 2], [1, 1], [0, 1], [1, 1]),
        ],
    ),
    "roll": (aten.roll.default, [(rows(2, 6), [1, -2], [0, -1]), (rows(3, 8), [1, -2], [0, -1])]),
    "roll of all": (aten.roll.default, [(rows(2, 6), [5]), (rows(3, 8), [5])]),
    "roll of images": (aten.roll.default, [(images(6, 2, 7, 4), [1], [0]), (images(5, 3, 8, 2), [1], [0])]),
    "roll of images twice": (
        aten.roll.default,
        [(images(6, 2, 7, 4), [1, -1], [0, -1]), (images(5, 3, 8, 5), [1, -1], [0, -1])],
    ),
    "roll of images by nothing": (
        aten.roll.default,
        [(images(6, 2, 7, 4), [0], [2]), (images(5, 3, 8, 2), [0], [2])],
    ),
    "roll transposed": (aten.roll.default, [(rows(6, 2).t(), [1], [0]), (rows(8, 3).t(), [1], [0])]),
    "chances": (aten.bernoulli.p, [(rows(6, 2).t(), 0.3), (rows(8, 3).t(), 0.3)]),
    "chances of a tensor": (aten.bernoulli.default, [(rows(6, 2).t(),), (rows(8, 3).t(),)]),
    "chances in place": (aten.bernoulli_.float, [(rows(2, 1, 1), 0.3), (rows(3, 1, 1), 0.3)]),
    "noise in place": (aten.normal_.default, [(rows(6, 2).t(), 0.0, 2), (rows(8, 3).t(), 0.0, 2)]),
    "flip": (aten.flip.default, [(rows(2, 6), [0, -1]), (rows(3, 8), [0, -1])]),
    "flipped windows": (
        aten.flip.default,
        [(rows(2, 3, 9).unfold(-1, 4, 1), [-1]), (rows(3, 2, 7).unfold(-1, 4, 1), [-1])],
    ),
    "flip transposed": (
        aten.flip.default,
        [(rows(2, 5, 4).transpose(1, 2), [0]), (rows(3, 7, 6).transpose(1, 2), [0])],
    ),
    "buckets": (aten.bucketize.Tensor, [(rows(6, 2).t(), rows(4)), (rows(3, 5).t(), rows(7))]),
    "cross products": (
        aten.linalg_cross.default,
        [(rows(4, 3), rows(4, 3)), (rows(3, 5).t(), rows(5, 3))],
    ),
    "cross products of other dimensions": (
        aten.linalg_cross.default,
        [
            (rows(3, 4, 2), rows(3, 4, 2).transpose(1, 2).contiguous().transpose(1, 2)),
            (rows(3, 5, 7), rows(3, 5, 1)),
        ],
        {"dim": 0},
    ),
    "triangular systems": (
        aten.linalg_solve_triangular.default,
        [
            (rows(2, 3, 4, 4).tril(), rows(3, 4, 5)),
            (rows(5, 2, 3, 3).tril(), rows(2, 3, 7)),
        ],
        {"upper": False},
    ),
    "triangular systems from the right": (
        aten.linalg_solve_triangular.default,
        [
            (rows(4, 4).triu(), rows(2, 5, 4)),
            (rows(3, 3).triu(), rows(4, 7, 3)),
        ],
        {"upper": True, "left": False},
    ),
    "mirrored": (aten.reflection_pad1d.default, [(rows(2, 3, 6), [2, 1]), (rows(3, 4, 5), [2, 1])]),
    "mirrored image": (
        aten.reflection_pad2d.default,
        [(rows(2, 3, 6, 5), [2, 1, 0, 3]), (rows(1, 4, 5, 9), [2, 1, 0, 3])],
    ),
    "mirrored channels last": (
        aten.reflection_pad2d.default,
        [
            (rows(2, 3, 6, 5).to(memory_format=torch.channels_last), [2, 1, 0, 3]),
            (rows(3, 4, 5, 9).to(memory_format=torch.channels_last), [2, 1, 0, 3]),
        ],
    ),
    "edges": (
        aten.replication_pad2d.default,
        [(rows(2, 3, 6, 5), [7, 1, 0, 3]), (rows(1, 4, 5, 9), [7, 1, 0, 3])],
    ),
    "unbind": (aten.unbind.int, [(rows(2, 3, 4), 1), (rows(5, 3, 6), 1)]),
    "histogram": (aten.histc.default, [(rows(7), 4, 0, 3), (rows(9), 4, 0, 3)]),
    "k-th": (aten.kthvalue.default, [(rows(2, 7), 3), (rows(4, 5), 3)]),
    "safe softmax": (aten._safe_softmax.default, [(rows(2, 7).t(), -1), (rows(4, 5).t(), -1)]),
    "one head": (
        aten.scaled_dot_product_attention.default,
        [tuple(rows(b, n, 1, 8).transpose(1, 2) for _ in range(3)) for b, n in ((2, 5), (3, 4))],
    ),
    "a mask of whole numbers": (
        aten.masked_fill_.Scalar,
        [
            (torch.arange(6).view(2, 3), rows(2, 3) > 0.5, 1),
            (torch.arange(20).view(4, 5), rows(4, 5) > 0.5, 1),
        ],
    ),
    "a number where a mask tells": (
        aten.index_put_.default,
        [
            (rows(2, 3), [rows(2, 3) > 0.5], torch.tensor(2.0)),
            (rows(4, 5), [rows(4, 5) > 0.5], torch.tensor(2.0)),
        ],
    ),
    "a copy with a number where a mask tells": (
        aten.index_put.default,
        [
            (rows(3, 2).t(), [rows(2, 3) > 0.5], torch.tensor(2.0)),
            (rows(5, 4).t(), [rows(4, 5) > 0.5], torch.tensor(2.0)),
        ],
    ),
    "mean square": (aten.mse_loss.default, [(rows(2, 3), rows(2, 3)), (rows(4, 5), rows(4, 5))]),
    "copy": (aten.copy.default, [(rows(2, 3), rows(2, 3)), (rows(4, 5), rows(4, 5))]),
    "number": (aten.scalar_tensor.default, [(7,), (7,)]),
    "slices of a part": (
        aten.slice_scatter.default,
        [
            (rows(2, 9, 4)[:, :-2], rows(2, 7, 2), 2, 0, -2),
            (rows(3, 8, 5)[:, :-2], rows(3, 6, 3), 2, 0, -2),
        ],
    ),
    "a row of a part": (
        aten.select_scatter.default,
        [(rows(2, 9, 4)[:, :-2], rows(2, 4), 1, 3), (rows(3, 8, 5)[:, :-2], rows(3, 5), 1, 3)],
    ),
    "copy into a part": (
        aten.copy.default,
        [(rows(2, 4, 3)[:, 1:], rows(2, 3, 3)), (rows(4, 6, 5)[:, 2:], rows(4, 4, 5))],
    ),
    "transposed operand": (
        aten.add.Tensor,
        [(rows(2, 3, 4), rows(2, 4, 3).transpose(1, 2)), (rows(3, 5, 4), rows(3, 4, 5).transpose(1, 2))],
    ),
    "from the end": (aten.slice.Tensor, [(rows(5, 2), 0, -8, 2**63 - 1), (rows(20, 2), 0, -8, 2**63 - 1)]),
}


# Where the layout depends on whether there is one channel, or one head.
CONSTANT = ("mirrored channels last", "one head")


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", CALLS)
def test_a_rule_answers_as_eager(name, symbolic):
    op, (first, second), *keywords = CALLS[name]
    asked = Asked(op, first, *keywords, symbolic=symbolic)
    assert asked.covered or (symbolic and name in CONSTANT), asked.error
    if not asked.covered:
        return
    assert asked.differs(first, *keywords, exact=False) is None
    if symbolic:
        assert asked.differs(second, *keywords, exact=False) is None


REFUSED = {
    "too much mirrored": (aten.reflection_pad1d.default, (rows(2, 3, 6), [6, 1])),
    "windows beyond the image": (aten.im2col.default, (rows(2, 3, 2, 2), [3, 3], [1, 1], [0, 0], [1, 1])),
    "too few windows": (aten.col2im.default, (rows(2, 12, 12), [4, 5], [2, 2], [1, 1], [0, 0], [1, 2])),
    "a roll along two of one": (aten.roll.default, (rows(2, 3), [1], [0, 1])),
    "chances of whole numbers": (aten.bernoulli.default, (torch.ones(3, dtype=torch.int64),)),
    "an odd glu": (aten.glu.default, (rows(2, 7), -1)),
    "k beyond": (aten.kthvalue.default, (rows(2, 7), 8)),
    "a window beyond": (aten.unfold.default, (rows(2, 3), 1, 4, 1)),
    "addmm of others": (aten.addmm.default, (rows(3), rows(2, 3), rows(3, 4))),
}


@pytest.mark.parametrize("symbolic", [False, True], ids=["constant", "symbolic"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_has_no_answer(name, symbolic):
    op, args = REFUSED[name]
    with pytest.raises((RuntimeError, IndexError)):
        op(*args)
    assert not Asked(op, args, symbolic=symbolic).covered


@pytest.mark.parametrize("sizes", [(2, 8, 1, 1), (2, 1, 2, 3), (2, 8, 1, 3)])
def test_a_batch_norm_of_one_pixel_or_channel_is_row_major(sizes):
    x = rows(*sizes).to(memory_format=torch.channels_last)
    numbers = rows(sizes[1])
    args = (x, numbers, numbers, numbers, numbers, False, 0.1, 1e-5, False)
    asked = Asked(aten.batch_norm.default, args, symbolic=False)
    assert asked.covered
    assert asked.differs(args, exact=True) is None
