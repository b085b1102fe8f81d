"""Quick fake results of views, broadcasting, reductions and new tensors: eager's sizes and strides, or nothing."""

import itertools
import random

import pytest
import torch

from staticrt.frontend.arguments.fakes import FakeMaker
from staticrt.frontend.graph import KnownInputs
from staticrt.frontend.tracing.fake_mode import TraceFakeMode
from staticrt.frontend.tracing.patches import tracing
from staticrt.frontend.tracing.shape_env import DecidingShapeEnv
from staticrt.frontend.tracing.sizing import Sizing
from staticrt.shapes import fake_memo
from staticrt.shapes.fake_rules import fake_by_rule
from staticrt.shapes.size_env import SizeEnv

aten = torch.ops.aten


def plain(value):
    """A size with the numbers of this call for its symbols."""
    return value.node.hint if isinstance(value, torch.SymInt) else value


def layout(tensor):
    sizes, strides = map(plain, tensor.shape), map(plain, tensor.stride())
    return tuple(sizes), tuple(strides), plain(tensor.storage_offset()), tensor.dtype


def tensors_of(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def expect_eager(op, args, symbolic, kwargs=None):
    """Whether a rule covers the call; its answer is then eager's, and a view where eager's is one.

    Both with torch's symbolic sizes and with ours, which cover more slices.
    """
    covered = _expect_eager(
        op, args, symbolic, kwargs or {}, DecidingShapeEnv(specialize_zero_one=False, duck_shape=False)
    )
    quickly = _expect_eager(op, args, symbolic, kwargs or {}, SizeEnv())
    assert quickly or not covered
    return covered


def _expect_eager(op, args, symbolic, kwargs, env):
    want = tensors_of(op(*args, **kwargs))
    mode = TraceFakeMode(env)
    real = [
        leaf
        for arg in args
        for leaf in (arg if isinstance(arg, list) else [arg])
        if isinstance(leaf, torch.Tensor)
    ]
    with tracing(True):
        made = iter(
            FakeMaker(mode, Sizing.OURS if symbolic else Sizing.OURS_CONSTANT)
            .make(real, KnownInputs())
            .leaves
        )
        fakes = [
            [next(made) if isinstance(leaf, torch.Tensor) else leaf for leaf in arg]
            if isinstance(arg, list)
            else next(made)
            if isinstance(arg, torch.Tensor)
            else arg
            for arg in args
        ]
        got = fake_by_rule(mode, op, fakes, kwargs)
        if got is None:
            return False
        got = tensors_of(got)
        assert len(got) == len(want)
        for mine, eager in zip(got, want, strict=True):
            sizes, strides, offset, dtype = layout(mine)
            assert (sizes, dtype) == (tuple(eager.shape), eager.dtype)
            if eager.numel():
                # Elsewhere a stride means nothing.
                where = [i for i, size in enumerate(eager.shape) if size != 1]
                assert [strides[i] for i in where] == [eager.stride(i) for i in where]
            inputs = {t.untyped_storage()._cdata for t in real}
            if eager.untyped_storage()._cdata in inputs:
                assert any(
                    mine.untyped_storage()._cdata == f.untyped_storage()._cdata
                    for f in fakes
                    if isinstance(f, torch.Tensor)
                )
                assert offset == eager.storage_offset() - real[0].storage_offset()
    return True


SOURCES = {
    "row_major": torch.rand(2, 3, 4, 6),
    "transposed": torch.rand(2, 4, 3, 6).transpose(1, 2),
    "part": torch.rand(2, 3, 4, 12)[..., 3:9],
    "expanded": torch.rand(2, 1, 4, 6).expand(2, 3, 4, 6),
    "channels_last": torch.rand(2, 3, 4, 6).to(memory_format=torch.channels_last),
    "of_one": torch.rand(2, 1, 4, 1),
}

VIEWS = [
    (aten.transpose.int, (1, 2)),
    (aten.transpose.int, (-1, 0)),
    (aten.permute.default, ([0, 2, 1, 3],)),
    (aten.permute.default, ([3, -2, 1, 0],)),
    (aten.select.int, (1, 0)),
    (aten.select.int, (2, -1)),
    (aten.slice.Tensor, (2, 1, 3)),
    (aten.slice.Tensor, (2, -3, 9223372036854775807)),
    (aten.slice.Tensor, (2, 1, None, 2)),
    (aten.slice.Tensor, (0, 0, 9223372036854775807)),
    (aten.slice.Tensor, (2, 3, 1)),
    (aten.unsqueeze.default, (0,)),
    (aten.unsqueeze.default, (2,)),
    (aten.unsqueeze.default, (-1,)),
    (aten.squeeze.dim, (1,)),
    (aten.squeeze.dims, ([1, 3],)),
    (aten.squeeze.default, ()),
    (aten.expand.default, ([5, -1, -1, -1, -1],)),
    (aten.expand.default, ([1, 2, -1, 4, -1],)),
    (aten.split.Tensor, (3, 2)),
    (aten.split_with_sizes.default, ([1, 3], 2)),
    (aten.unbind.int, (2,)),
    (aten.alias.default, ()),
    (aten.detach.default, ()),
    (aten.sum.dim_IntList, ([1], True)),
    (aten.mean.dim, ([2, 3],)),
    (aten.amax.default, ([-1],)),
]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_views(name, symbolic):
    x = SOURCES[name]
    covered = 0
    for op, args in VIEWS:
        try:
            op(x, *args)
        except RuntimeError:
            continue
        covered += expect_eager(op, (x, *args), symbolic)
    assert covered >= (9 if symbolic else 22)


def factorisations(number, count):
    if count == 1:
        return [[number]]
    return [
        [d, *rest]
        for d in range(1, number + 1)
        if number % d == 0
        for rest in factorisations(number // d, count - 1)
    ]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", SOURCES)
def test_views_of_other_shapes(name, symbolic):
    x = SOURCES[name]
    if name == "expanded" and symbolic:
        return  # its sizes come from a call's arguments, whose strides of 0 no view joins
    covered = 0
    for count in (1, 2, 3) if symbolic else (1, 2, 3, 4):
        for sizes in factorisations(x.numel(), count):
            for wanted in (sizes, [-1, *sizes[1:]]):
                try:
                    x.view(wanted)
                except RuntimeError:
                    continue
                covered += expect_eager(aten.view.default, (x, wanted), symbolic)
    if not symbolic:
        assert covered >= (2 if name == "transposed" else 6)


def test_symbolic_sizes_stay_in_a_view():
    mode = TraceFakeMode(DecidingShapeEnv(specialize_zero_one=False, duck_shape=False))
    with tracing(True):
        tensors = [torch.rand(2, 5, 8), torch.rand(2, 3)]
        x, other = FakeMaker(mode, Sizing.OURS).make(tensors, KnownInputs()).leaves
        batch, length, width = x.shape
        y = fake_by_rule(mode, aten.view.default, (x, [batch, length, 1, -1]), {})
        assert y.shape[3].node.expr == width.node.expr
        z = fake_by_rule(mode, aten.view.default, (x, [other.shape[0], -1, width]), {})
        assert mode.shape_env.replace(z.shape[0].node.expr) == mode.shape_env.replace(batch.node.expr)
        flat = fake_by_rule(mode, aten.view.default, (x, [-1, width]), {})
        assert flat.shape[0].node.expr == (batch * length).node.expr
        part = fake_by_rule(mode, aten.slice.Tensor, (flat, 0, 0, batch), {})
        assert part is None or part.shape[0].node.expr == batch.node.expr
        longer = fake_by_rule(mode, aten.cat.default, ([x, x], 1), {})
        back = fake_by_rule(mode, aten.slice.Tensor, (longer, 1, 0, length), {})
        assert back.shape[1].node.expr == length.node.expr


def test_a_view_of_other_size_has_no_quick_result():
    mode = TraceFakeMode(DecidingShapeEnv())
    with tracing(True):
        x = FakeMaker(mode, Sizing.OURS_CONSTANT).make([torch.rand(2, 6)], KnownInputs()).leaves[0]
        for sizes in ([5], [-1, 5], [-1, -1], [2, 7]):
            assert fake_by_rule(mode, aten.view.default, (x, sizes), {}) is None
        assert fake_by_rule(mode, aten.select.int, (x, 1, 6), {}) is None
        assert fake_by_rule(mode, aten.expand.default, (x, [3, 6]), {}) is None
        assert fake_by_rule(mode, aten.split_with_sizes.default, (x, [1, 2], 1), {}) is None


def random_tensor(rng, rank):
    sizes = [rng.choice([1, 2, 3, 5]) for _ in range(rank)]
    order = rng.sample(range(rank), rank)
    made = torch.rand([sizes[d] for d in order]).permute([order.index(d) for d in range(rank)])
    return made[..., ::2] if rank and rng.random() < 0.2 else made


def partner(rng, x):
    """A tensor that fits `x` by broadcasting, in any order of dimensions."""
    sizes = [size if rng.random() < 0.7 else 1 for size in x.shape]
    sizes = sizes[rng.randrange(len(sizes) + 1) :]
    order = rng.sample(range(len(sizes)), len(sizes))
    return torch.rand([sizes[d] for d in order]).permute([order.index(d) for d in range(len(sizes))])


@pytest.mark.parametrize("symbolic", [False, True])
def test_broadcasting_keeps_the_order_of_dimensions(symbolic):
    rng = random.Random(7)
    covered = 0
    for _ in range(80):
        a = random_tensor(rng, rng.randrange(5))
        b = partner(rng, a)
        pair = (a, b) if rng.random() < 0.5 else (b, a)
        covered += expect_eager(aten.mul.Tensor, pair, symbolic)
        expect_eager(aten.lt.Tensor, pair, symbolic)
        expect_eager(aten.where.self, (a > 0.5, *pair), symbolic)
        expect_eager(aten.tanh.default, (a,), symbolic)
        expect_eager(aten.neg.default, ((a * 9).int(),), symbolic)
        expect_eager(aten.fill.Scalar, (a, 2.0), symbolic)
        expect_eager(aten.min.other, pair, symbolic)
        expect_eager(aten.where.ScalarOther, (a > 0.5, b, 0.0), symbolic)
    assert covered >= 30


SLICES = [(None, -1), (-1, None), (1, None), (-3, -1), (0, 100), (-100, 2), (2, 3), (1, 1), (3, 1), (None, 2)]


@pytest.mark.parametrize("bounds", SLICES, ids=str)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_slices_are_guarded(bounds, step):
    """With our sizes, bounds are compared with the size; where the guards hold, other sizes are cut alike."""
    env = SizeEnv()
    mode = TraceFakeMode(env)
    with tracing(True):
        (fake,) = FakeMaker(mode, Sizing.OURS).make([torch.rand(5, 3)], KnownInputs()).leaves
        got = fake_by_rule(mode, aten.slice.Tensor, (fake, 0, *bounds, step), {})
    if got is None:
        assert bounds in [(3, 1), (-100, 2)]
        return
    checked = 0
    for size in range(1, 9):
        sizes = {"s0_0": size, "s0_1": 3}
        if not all(eval(guard, dict(sizes)) for guard in env.guards):
            assert size != 5
            continue
        checked += 1
        want = torch.rand(size, 3)[slice(*bounds, step)]
        assert value_at(got.shape[0], sizes) == want.shape[0]
        if want.shape[0]:
            assert value_at(got.storage_offset(), sizes) == want.storage_offset()
            assert value_at(got.stride(0), sizes) == want.stride(0)
    assert checked


def value_at(number, sizes):
    return number.node.expr.value(sizes) if isinstance(number, torch.SymInt) else number


@pytest.mark.parametrize("symbolic", [False, True])
def test_lookups(symbolic):
    x, index = torch.rand(4, 5, 6), torch.tensor([2, 0, 1])
    for source in (x, x.permute(2, 0, 1), x[:, ::2]):
        for dim in (0, 1, -1):
            assert expect_eager(aten.index_select.default, (source, dim, index), symbolic)
    rows = torch.tensor(
        [[[0, 1, 2, 3, 0]], [[1, 0, 2, 3, 1]], [[2, 1, 2, 3, 2]], [[3, 1, 2, 3, 3]]]
    ).transpose(1, 2)
    assert expect_eager(aten.gather.default, (x, -1, rows), symbolic)
    assert not expect_eager(aten.gather.default, (x, -1, rows[:2]), symbolic)
    for source in (x, torch.arange(6).view(2, 3), torch.rand(3, 3) > 0.5):
        assert expect_eager(aten.cumsum.default, (source, 0), symbolic)
        assert expect_eager(aten.cumprod.default, (source, -1), symbolic)
    for source in (x, torch.rand(3, 3) > 0.5):
        assert expect_eager(aten.tril.default, (source, -1), symbolic)
        assert expect_eager(aten.triu.default, (source, 1), symbolic)
    for value, options in ((1, {}), (0.5, {}), (True, {}), (-1, {"dtype": torch.float64})):
        assert expect_eager(aten.full.default, ([2, 3], value), False, options)
        assert expect_eager(aten.full_like.default, (x, value), symbolic, options)
        assert expect_eager(aten.new_full.default, (x, [4], value), symbolic, options)
    weight, ids, offsets = torch.rand(10, 4), torch.tensor([1, 2, 3, 9, 0]), torch.tensor([0, 2])
    for sparse in (False, True):
        call = (weight, ids, offsets, False, 0, sparse, None, False, None)
        assert expect_eager(aten.embedding_bag.padding_idx, call, symbolic)
    for mode, weights, last, padding in (
        (1, None, False, None),
        (2, None, False, None),
        (0, ids.float(), False, None),
        (0, None, True, None),
        (0, None, False, 3),
    ):
        call = (weight, ids, offsets, False, mode, False, weights, last, padding)
        assert not expect_eager(aten.embedding_bag.padding_idx, call, symbolic)
    for signal in (torch.rand(2, 3, 9), torch.rand(2, 9, 3).transpose(1, 2)):
        call = (signal, torch.rand(4, 3, 2), None, [1], [1], [1], 1)
        assert expect_eager(aten.conv1d.default, call, symbolic)


@pytest.mark.parametrize("symbolic", [False, True])
def test_cat_and_stack(symbolic):
    heads = torch.rand(2, 5, 3, 8).transpose(1, 2)
    assert expect_eager(aten.cat.default, ([heads, heads.contiguous()], 2), symbolic)
    assert expect_eager(aten.cat.default, ([heads[..., :4], heads[..., 4:]], -1), False)
    images = SOURCES["channels_last"]
    for tensors, dim in itertools.product(([images, images.contiguous()], [images, images]), (0, 1, 2, 3)):
        expect_eager(aten.cat.default, (tensors, dim), symbolic)
    for dim in (0, 1, -1):
        assert expect_eager(aten.stack.default, ([torch.rand(2, 3)] * 3, dim), symbolic)
        assert expect_eager(aten.stack.default, ([torch.rand(3, 4, 5).permute(2, 0, 1)] * 2, 0), symbolic)
    for dim in (0, 1, 2, 3, -1, -2):
        for permuted in (torch.rand(4, 5).t(), torch.rand(3, 4, 5).permute(2, 0, 1), heads, images):
            if dim <= permuted.dim():
                expect_eager(aten.stack.default, ([permuted] * 2, dim), symbolic)
        assert expect_eager(aten.stack.default, ([heads, heads.contiguous()], 0), False)
    assert not expect_eager(aten.stack.default, ([images] * 2, 1), symbolic)


def test_new_tensors():
    x = torch.rand(2, 3)
    for op in (aten.zeros.default, aten.ones.default):
        assert expect_eager(op, ([2, 3],), False)
        assert expect_eager(op, ([2, 3],), False, {"dtype": torch.int32})
    assert expect_eager(aten.zeros_like.default, (x,), True)
    assert expect_eager(aten.ones_like.default, (x,), True, {"dtype": torch.bool})
    assert expect_eager(aten.new_zeros.default, (x, [4]), True)
    assert expect_eager(aten.arange.default, (5,), False)
    assert expect_eager(aten.arange.start, (2, 5), False, {"dtype": torch.float32})
    assert not expect_eager(aten.arange.default, (5.0,), False)
    assert expect_eager(aten._to_copy.default, (x,), True, {"dtype": torch.float64})
    with pytest.raises(RuntimeError):
        expect_eager(aten.arange.default, (-5,), False)


def test_equal_calls_are_asked_once():
    """The answer of torch's own rule serves later calls: a new tensor each time, views of the call's own tensors."""
    mode = TraceFakeMode(DecidingShapeEnv(specialize_zero_one=False, duck_shape=False))
    with tracing(True):
        first, other = (
            FakeMaker(mode, Sizing.OURS).make([torch.rand(3, 4), torch.rand(3, 4)], KnownInputs()).leaves
        )
        with mode:
            second = first * 1
            key, tensors = fake_memo.key_of(aten.cumsum.default, (first, 1), {})
            fake_memo.remember(mode, key, tensors, aten.cumsum.default(first, 1))
            row_key, row_tensors = fake_memo.key_of(aten.diagonal.default, (first,), {})
            fake_memo.remember(mode, row_key, row_tensors, aten.diagonal.default(first))
        same_key, same_tensors = fake_memo.key_of(aten.cumsum.default, (second, 1), {})
        assert same_key == key
        again = fake_memo.recall(mode, same_key, same_tensors)
        assert again.shape == first.shape
        assert again.untyped_storage()._cdata != first.untyped_storage()._cdata
        view = fake_memo.recall(mode, *fake_memo.key_of(aten.diagonal.default, (second,), {}))
        assert view.untyped_storage()._cdata == second.untyped_storage()._cdata
        # Other symbols.
        assert fake_memo.recall(mode, *fake_memo.key_of(aten.cumsum.default, (other, 1), {})) is None
        assert fake_memo.recall(mode, *fake_memo.key_of(aten.cumsum.default, (second, 0), {})) is None
        assert fake_memo.recall(mode, *fake_memo.key_of(aten.cumsum.default, (second, True), {})) is None
        # A write has no answer to keep.
        assert fake_memo.key_of(aten.add_.Tensor, (first, second), {}) is None
