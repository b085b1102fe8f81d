"""Operators on "sim" beside the CPU's, on torch's own samples: values, dtypes, sizes and strides."""

import warnings

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map

import staticrt
from tests.support.operator_database import op_db

ORDERS_OF_THEIR_OWN = True  # one stream: conftest.py
SAMPLES = 4
# What differs by nature, and why.
LEFT_OUT = {
    "to": "asks for pinned memory",
    "to_sparse": "tensors on sim are strided",
    "tensor_split": "takes sizes from a tensor that must be on the CPU, as on CUDA",
}
OPERATORS = [
    op
    for op in op_db
    if op.name not in LEFT_OUT and not op.name.startswith(("sparse", "masked.", "jiterator"))
]
UNDEFINED_VALUES = (
    "empty",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "empty_strided",
    "empty_permuted",
)
RANDOM_VALUES = (
    *(
        "rand",
        "dropout",
        "bernoulli",
        "multinomial",
        "normal",
        "uniform",
        "exponential",
        "geometric",
        "cauchy",
    ),
    *("rrelu", "fractional", "lowrank", "attention"),
)


def on_sim(value):
    return value.to("sim") if isinstance(value, torch.Tensor) else value


def detached(value):
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone(memory_format=torch.preserve_format)


def compare(ours, theirs, values=True, strides=True):
    ours, theirs = tree_flatten(ours)[0], tree_flatten(theirs)[0]
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        if not isinstance(other, torch.Tensor):
            assert mine == other or other != other
            continue
        assert mine.device.type == "sim"
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert not strides or mine.stride() == other.stride()
        if values:
            torch.testing.assert_close(mine.cpu(), other, equal_nan=True)


def finished(op, input, args, kwargs):
    op(input, *args, **kwargs)
    torch.accelerator.synchronize()


def samples(op):
    for dtype in (torch.float32, torch.int64, torch.complex64, torch.bool):
        if dtype not in op.dtypes:
            continue
        for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]:
            call = tree_map(detached, (sample.input, sample.args, sample.kwargs))
            leaves = [leaf for leaf in tree_flatten(call)[0] if isinstance(leaf, torch.Tensor)]
            if "device" not in sample.kwargs and all(leaf.layout == torch.strided for leaf in leaves):
                yield call


@pytest.mark.parametrize(
    "op",
    OPERATORS,
    ids=lambda op: f"{op.name}-{op.variant_test_name}".strip("-"),
)
def test_operator_equals_the_cpus(op):
    staticrt.memory.simulated.order("random", seed=3)
    has_values = op.name not in UNDEFINED_VALUES and not any(name in op.name for name in RANDOM_VALUES)
    for input, args, kwargs in samples(op):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine = tree_map(on_sim, (input, args, kwargs))
            theirs = tree_map(detached, (input, args, kwargs))
            try:
                expected = op(theirs[0], *theirs[1], **theirs[2])
            except (RuntimeError, ValueError, TypeError) as error:
                with pytest.raises(type(error)):
                    finished(op, *mine)
                continue
            compare(op(mine[0], *mine[1], **mine[2]), expected, has_values)
            compare(mine, theirs, has_values)  # also what was written


PERMUTED = {
    "abs": torch.abs,
    "angle": lambda x: torch.angle(torch.complex(x, x)),
    "complex": lambda x: torch.complex(x, x + 1),
    "floor_divide": lambda x: torch.floor_divide(x, 2),
    "isinf": torch.isinf,
    "logical_and": lambda x: torch.logical_and(x, x),
    "an out that it sizes": lambda x: torch.mul(x, x[:, :, :1, :1], out=torch.empty(0, device=x.device)),
    "an out that a mask sizes": lambda x: torch.ops.aten.index.Tensor_out(
        x, [x > 0], out=torch.empty(0, device=x.device)
    ),
    "an out that masked_select sizes": lambda x: torch.masked_select(
        x, x > 0, out=torch.empty(0, device=x.device)
    ),
    "an out that nonzero sizes": lambda x: torch.nonzero(
        x > 0, out=torch.empty(0, dtype=torch.long, device=x.device)
    ),
    "polar": lambda x: torch.polar(x, x),
    "convolution": lambda x: F.conv2d(x, torch.ones(6, 4, 3, 3, device=x.device)),
    "transposed convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 6, 3, 3, device=x.device)),
    "weight in channels last": lambda x: F.conv2d(x.contiguous(), x[:, :, :3, :3]),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "roll": lambda x: x.roll(1, 1),
    "unfold": lambda x: F.unfold(x.permute(3, 2, 1, 0), 1),
    "reflection padding": lambda x: F.pad(x, (1, -1, 0, 2), mode="reflect"),
    "replication padding": lambda x: F.pad(x, (-1, 2, -1, 0), mode="replicate"),
}


@pytest.mark.parametrize("function", PERMUTED.values(), ids=PERMUTED)
def test_results_of_permuted_arguments_lie_as_the_cpus(function):
    x = torch.randn(2, 4, 6, 8).to(memory_format=torch.channels_last)
    compare(function(x.to("sim")), function(x))


OTHER_OUTS = {
    "_batch_norm_with_update": "an argument for each result",
    "mode": "torch refuses other devices than its own",
    "nonzero": "a result as a tuple has no form with out",
}


@pytest.mark.parametrize(
    "op",
    [op for op in OPERATORS if op.supports_out and not op.variant_test_name],
    ids=lambda op: op.name,
)
def test_out_arguments_are_resized_and_written(op):
    if any(name in op.name for name in RANDOM_VALUES) or op.name in OTHER_OUTS:
        return
    staticrt.memory.simulated.order("others_first")
    for input, args, kwargs in list(samples(op))[:2]:
        kwargs.pop("out", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                plain = op(input, *args, **kwargs)
            except (RuntimeError, ValueError, TypeError):
                continue
            results = [plain] if isinstance(plain, torch.Tensor) else plain
            if isinstance(plain, bool) or not all(isinstance(result, torch.Tensor) for result in results):
                continue
            mine = tree_map(on_sim, (input, args, kwargs))
            for is_empty in (True, False):
                outs = [
                    tuple(
                        torch.empty((0,) if is_empty else r.shape, dtype=r.dtype, device=d) for r in results
                    )
                    for d in ("sim", "cpu")
                ]
                given = [out[0] if isinstance(plain, torch.Tensor) else out for out in outs]
                op(input, *args, **kwargs, out=given[1])
                op(mine[0], *mine[1], **mine[2], out=given[0])
                compare(*outs)


@pytest.mark.parametrize(
    "op",
    [op for op in OPERATORS if op.inplace_variant is not None],
    ids=lambda op: f"{op.name}-{op.variant_test_name}".strip("-"),
)
def test_updates_in_place_write_views(op):
    """The target is every other column of a larger tensor, whose rest must stay."""
    # addbmm_ makes a self larger that it has to broadcast; the others change sizes of a view.
    if any(
        name in op.name for name in (*RANDOM_VALUES, "addbmm", "resize", "transpose", "squeeze", "t_", "swap")
    ):
        return
    for input, args, kwargs in list(samples(op))[:2]:
        if not isinstance(input, torch.Tensor) or input.dim() == 0:
            continue
        base = torch.zeros(*input.shape[:-1], 2 * input.shape[-1], dtype=input.dtype)
        base[..., ::2] = input
        mine = tree_map(on_sim, (base, args, kwargs))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                op.inplace_variant(base[..., ::2], *args, **kwargs)
        except (RuntimeError, ValueError, TypeError):
            continue
        op.inplace_variant(mine[0][..., ::2], *mine[1], **mine[2])
        compare(mine[0], base)


def test_mistakes_in_arguments_raise_as_on_the_cpu():
    x, y = torch.ones(2, 3), torch.ones(4, 5)
    for call in (
        lambda a, b: a @ b,
        lambda a, b: a + b,
        lambda a, b: torch.cat([a, b]),
        lambda a, b: a.view(7),
    ):
        with pytest.raises(RuntimeError) as expected:
            call(x, y)
        with pytest.raises(RuntimeError) as found:
            call(x.to("sim"), y.to("sim"))
        assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]


OVERLAPPING = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "sigmoid": lambda x, out: torch.sigmoid(x, out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
    "cat": lambda x, out: torch.cat([x[:2], x[2:]], out=out),
    "matmul": lambda x, out: torch.matmul(x, x, out=out),
    "sort": lambda x, out: torch.sort(x, 0, out=(out, torch.empty(4, 4, dtype=torch.long, device=x.device))),
    "qr": lambda x, out: torch.linalg.qr(x, out=(out, torch.empty_like(x))),
    "mse_loss": lambda x, out: torch.ops.aten.mse_loss.out(x, x, 0, out=out),
    "silu_backward": lambda x, out: torch.ops.aten.silu_backward.grad_input(x, x, grad_input=out),
    "pad": lambda x, out: torch.ops.aten.reflection_pad1d.out(x[:, 1:3], [1, 1], out=out),
}
OUTS = {
    "a row later": lambda base: base[1:5],
    "a column later": lambda base: base.view(-1)[1:17].view(4, 4),
    "turned": lambda base: base[:4].t(),
    "expanded": lambda base: base[4:5].expand(4, 4),
    "the argument itself": lambda base: base[:4],
    "beside it": lambda base: base[4:],
}


@pytest.mark.parametrize("function", OVERLAPPING.values(), ids=OVERLAPPING)
@pytest.mark.parametrize("out_of", OUTS.values(), ids=OUTS)
def test_outs_that_share_bytes_with_arguments(function, out_of):
    """Refused with the CPU's words, or written as there."""
    base = torch.randn(8, 4, dtype=torch.float64)
    mine = base.to("sim")
    errors = []
    for whole in (mine, base):
        try:
            function(whole[:4], out_of(whole))
        except RuntimeError as error:
            errors.append(str(error).splitlines()[0])
    assert errors[:1] == errors[1:]
    compare(mine, base)


def test_tensors_of_different_devices_are_refused():
    x = torch.ones(3, device="sim:0")
    for other in (torch.ones(3), torch.ones(3, device="sim:1")):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            x.addcmul(x, other)
    # A number of the host is a value.
    assert torch.equal((x + torch.tensor(2.0)).cpu(), torch.full((3,), 3.0))


def test_what_makes_the_host_wait_is_counted():
    x = torch.ones(3, device="sim")
    (x + x).exp()
    assert staticrt.memory.simulated.waits() == {}
    assert torch.nonzero(x).shape == (3, 1)
    assert x.sum().item() == 3
    assert staticrt.memory.simulated.waits() == {"aten::nonzero": 1, "aten::_local_scalar_dense": 1}


DIFFERENTIATED = {
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (2, 4, 3, 3), (4,), (4,)),
    "batch_norm_with_statistics": (
        lambda x, w, b: F.batch_norm(x, torch.zeros_like(w), torch.ones_like(w), w, b),
        *((2, 4, 3, 3), (4,), (4,)),
    ),
    "instance_norm": (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), (2, 4, 3, 3), (4,), (4,)),
    "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3, 3), (4,), (4,)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (3,), w, b), (2, 4, 3), (3,), (3,)),
    "conv2d": (F.conv2d, (2, 4, 5, 5), (3, 4, 3, 3), (3,)),
    "conv_transpose1d": (F.conv_transpose1d, (2, 4, 5), (4, 3, 2), (3,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (2, 1, 4, 4), (2, 3, 3, 2)),
    "prelu": (F.prelu, (2, 4, 3), (4,)),
    "bilinear": (F.bilinear, (3, 2), (3, 4), (5, 2, 4), (5,)),
}


@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradients_of_any_arguments(name):
    """A backward leaves out the gradients that nobody asks for."""
    function, *shapes = DIFFERENTIATED[name]
    values = [torch.randn(shape) for shape in shapes]
    for asked in range(1, 2 ** len(values)):
        gradients = []
        for device in ("sim", "cpu"):
            given = [
                value.to(device).detach().requires_grad_(bool(asked >> i & 1))
                for i, value in enumerate(values)
            ]
            function(*given).square().sum().backward()
            gradients.append([value.grad.cpu() for value in given if value.requires_grad])
        torch.testing.assert_close(*gradients)
