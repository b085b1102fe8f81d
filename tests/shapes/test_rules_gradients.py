"""Quick fake results of backward formulas, and of forwards that return what they save, say what eager gives."""

import pytest
import torch

from tests.support.fake_rules import Asked, tensors_in

aten = torch.ops.aten
X = torch.rand(4, 6) + 0.1
IMAGE = torch.rand(2, 4, 6, 5)
FILTER = torch.rand(6, 2, 3, 3)
LABELS = torch.tensor([0, 5, 2, 1])
CHANNELS = torch.rand(4)
CONV = ([1, 2], [1, 0], [1, 1], False, [0, 0], 2)
MASKS = ([True, True, True], [True, False, True], [False, True, False])
TWO = {
    "gelu_backward": (aten.gelu_backward.default, ()),
    "leaky_relu_backward": (aten.leaky_relu_backward.default, (0.1, False)),
    "sigmoid_backward": (aten.sigmoid_backward.default, ()),
    "silu_backward": (aten.silu_backward.default, ()),
    "tanh_backward": (aten.tanh_backward.default, ()),
    "threshold_backward": (aten.threshold_backward.default, (0,)),
    "hardsigmoid_backward": (aten.hardsigmoid_backward.default, ()),
    "hardswish_backward": (aten.hardswish_backward.default, ()),
    "hardtanh_backward": (aten.hardtanh_backward.default, (-1, 1)),
    "mish_backward": (aten.mish_backward.default, ()),
    "softplus_backward": (aten.softplus_backward.default, (1, 20)),
    "prelu": (aten._prelu_kernel.default, ()),
    "smooth_l1_loss": (aten.smooth_l1_loss.default, (0, 0.5)),
    "huber_loss": (aten.huber_loss.default, (0, 0.5)),
    "mse_loss": (aten.mse_loss.default, (0,)),
    "mm": (aten.mm.default, ()),
    "copy": (aten.copy.default, ()),
}
LAYOUTS = {
    "rows": lambda t: t.clone(),
    "transposed": lambda t: t.t().contiguous().t(),
    "with gaps": lambda t: torch.rand(t.shape[0], 2 * t.shape[1])[:, : t.shape[1]],
    "every other": lambda t: torch.rand(t.shape[0], 2 * t.shape[1])[:, ::2],
    "expanded": lambda t: torch.rand(1, t.shape[1]).expand(t.shape),
    "double": lambda t: t.double(),
}


# oneDNN and torch's own kernel, between which the number of threads decides, differ in strides that mean nothing.
_INEXACT = {aten.convolution_backward.default}


def expect_eager(op, args, symbolic=False):
    """Whether a rule covers a call; its answer is then eager's."""
    asked = Asked(op, args, symbolic=symbolic)
    if asked.covered:
        assert asked.differs(args, exact=not symbolic and op not in _INEXACT) is None
    return asked.covered


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", TWO)
def test_two_tensors_of_any_layout(name, symbolic):
    op, rest = TWO[name]
    square = torch.rand(6, 6)
    for one, first in LAYOUTS.items():
        for other, second in LAYOUTS.items():
            covered = expect_eager(op, (first(square), second(square), *rest), symbolic)
            assert covered or symbolic or (one, other) != ("rows", "rows"), (one, other)


def _norm(shape, layout):
    x = layout(torch.rand(shape))
    _out, mean, rstd = aten.native_layer_norm.default(x, [shape[-1]], None, None, 1e-5)
    return x, mean, rstd


_x, _mean, _rstd = _norm((4, 6), lambda t: t)
_weights = (torch.rand(6), torch.rand(6))
_conv = aten.convolution.default(IMAGE, FILTER, None, *CONV)
_pooled, _places = aten.max_pool2d_with_indices.default(IMAGE, [2, 2])
_grouped = aten.native_group_norm.default(IMAGE, CHANNELS, CHANNELS, 2, 4, 30, 2, 1e-5)
QUERY, KEY = torch.rand(2, 3, 5, 8), torch.rand(2, 3, 7, 8)
_attended = aten._scaled_dot_product_flash_attention_for_cpu.default(QUERY, KEY, KEY + 1)
_loss, _total = aten.nll_loss_forward.default(X, LABELS, None, 1, -100)
CALLS = {
    "dropout": (aten.native_dropout.default, (X, 0.3, True)),
    "dropout_backward": (aten.native_dropout_backward.default, (X, X > 0.5, 1.5)),
    "mse_loss_backward": (aten.mse_loss_backward.default, (torch.rand(()), X, X + 1, 1)),
    "mse_loss_backward, none": (aten.mse_loss_backward.default, (X, X, X + 1, 0)),
    "smooth_l1_loss_backward": (aten.smooth_l1_loss_backward.default, (torch.rand(()), X, X + 1, 1, 0.5)),
    "huber_loss_backward": (aten.huber_loss_backward.default, (X, X, X + 1, 0, 0.5)),
    "huber_loss, mean": (aten.huber_loss.default, (X, X + 1, 1, 0.5)),
    "binary_cross_entropy": (aten.binary_cross_entropy.default, (X / 2, X / 3)),
    "binary_cross_entropy, none": (aten.binary_cross_entropy.default, (X / 2, X / 3, None, 0)),
    "binary_cross_entropy_backward": (
        aten.binary_cross_entropy_backward.default,
        (X, X / 2, X / 3, None, 0),
    ),
    "logits": (aten.binary_cross_entropy_with_logits.default, (X, X / 3, None, torch.rand(6))),
    "logits, none": (aten.binary_cross_entropy_with_logits.default, (X, X / 3, None, None, 0)),
    "margins": (aten.multi_margin_loss.default, (X[0], LABELS[1], 1, 1, None, 0)),
    "margins of labels": (aten.multilabel_margin_loss_forward.default, (X[0], LABELS[[1, 1, 1, 1, 1, 1]], 0)),
    "elu_backward": (aten.elu_backward.default, (X, 1.0, 1, 1, False, X)),
    "prelu_backward": (aten._prelu_kernel_backward.default, (X, X, torch.rand(1, 6))),
    "glu_backward": (aten.glu_backward.default, (X[:, :3].contiguous(), X, -1)),
    "mv": (aten.mv.default, (X, torch.rand(6))),
    "dot": (aten.dot.default, (X[0], X[1])),
    "norm": (aten.norm.ScalarOpt_dim, (X, 2, [1])),
    "diagonal": (aten.diagonal.default, (torch.rand(3, 5, 3), 0, 0, 2)),
    "convolution": (aten.convolution.default, (IMAGE, FILTER, torch.rand(6), *CONV)),
    "layer_norm": (aten.native_layer_norm.default, (X, [6], *_weights, 1e-5)),
    "layer_norm, two": (aten.native_layer_norm.default, (X, [4, 6], None, None, 1e-5)),
    "batch_norm": (
        aten._native_batch_norm_legit.default,
        (IMAGE, CHANNELS, CHANNELS, CHANNELS.clone(), CHANNELS.clone(), True, 0.1, 1e-5),
    ),
    "batch_norm, no statistics": (
        aten._native_batch_norm_legit.no_stats,
        (IMAGE, CHANNELS, CHANNELS, True, 0.1, 1e-5),
    ),
    "group_norm": (aten.native_group_norm.default, (IMAGE, CHANNELS, CHANNELS, 2, 4, 30, 2, 1e-5)),
    "attention": (aten._scaled_dot_product_flash_attention_for_cpu.default, (QUERY, KEY, KEY + 1)),
    "attention_backward": (
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        (QUERY, QUERY, KEY, KEY + 1, *_attended, 0.0, False),
    ),
    "adaptive_avg_pool_backward": (
        aten._adaptive_avg_pool2d_backward.default,
        (torch.rand(2, 4, 3, 2), IMAGE),
    ),
    "avg_pool_backward": (
        aten.avg_pool2d_backward.default,
        (torch.rand(2, 4, 3, 2), IMAGE, [2, 2], [2, 2], [0, 0], False, True, None),
    ),
    "softmax": (aten._softmax.default, (X, 1, False)),
    "log_softmax": (aten._log_softmax.default, (X, 0, False)),
    "softmax_backward": (aten._softmax_backward_data.default, (X, X, 1, torch.float32)),
    "log_softmax_backward": (aten._log_softmax_backward_data.default, (X, X, 1, torch.float32)),
    "nll_loss": (aten.nll_loss_forward.default, (X, LABELS, None, 1, -100)),
    "nll_loss, none": (aten.nll_loss_forward.default, (X, LABELS, torch.rand(6), 0, -100)),
    "nll_loss_backward": (aten.nll_loss_backward.default, (_loss, X, LABELS, None, 1, -100, _total)),
    "select_backward": (aten.select_backward.default, (torch.rand(6), [4, 6], 0, 2)),
    "slice_backward": (aten.slice_backward.default, (torch.rand(2, 6), [4, 6], 0, 1, 3, 1)),
    "embedding_backward": (aten.embedding_dense_backward.default, (X, LABELS, 9, -1, False)),
    "max_pool_backward": (
        aten.max_pool2d_with_indices_backward.default,
        (_pooled, IMAGE, [2, 2], [2, 2], [0, 0], [1, 1], False, _places),
    ),
    "cumsum": (aten.cumsum.default, (X, 1)),
    "as_strided": (aten.as_strided.default, (IMAGE, [2, 4, 6, 5], [120, 1, 20, 4])),
    "as_strided_scatter": (
        aten.as_strided_scatter.default,
        (torch.zeros(240), IMAGE, [2, 4, 6, 5], [120, 1, 20, 4], 0),
    ),
    "unsafe_split": (aten.unsafe_split.Tensor, (X, 4, 1)),
}
for _number, _mask in enumerate(MASKS):
    if _mask[1]:  # oneDNN's kernel also returns a weight's gradient that is not asked for
        CALLS[f"convolution_backward {_number}"] = (
            aten.convolution_backward.default,
            (_conv, IMAGE, FILTER, [6], *CONV, _mask),
        )
    # torch's kernel writes the gradient of an image in channels-last also where nobody asks for it
    if _mask[0]:
        CALLS[f"group_norm_backward {_number}"] = (
            aten.native_group_norm_backward.default,
            (IMAGE, IMAGE, *_grouped[1:], CHANNELS, 2, 4, 30, 2, _mask),
        )
    CALLS |= {
        f"layer_norm_backward {_number}": (
            aten.native_layer_norm_backward.default,
            (X, X, [6], _mean, _rstd, *_weights, _mask),
        ),
        f"batch_norm_backward {_number}": (
            aten.native_batch_norm_backward.default,
            (IMAGE, IMAGE, CHANNELS, CHANNELS, CHANNELS, CHANNELS, CHANNELS, True, 1e-5, [True, *_mask[1:]]),
        ),
    }


@pytest.mark.parametrize("name", CALLS)
def test_row_major_calls(name):
    op, args = CALLS[name]
    assert expect_eager(op, args)
    if "split" not in name:  # its sizes are constants
        expect_eager(op, args, symbolic=True)


@pytest.mark.parametrize("name", CALLS)
def test_other_layouts_are_eagers_or_torchs_to_answer(name):
    op, args = CALLS[name]
    for layout in (torch.channels_last, "gaps", "transposed"):
        changed = []
        for arg in args:
            if isinstance(arg, torch.Tensor) and arg.dim() == 4 and layout is torch.channels_last:
                arg = arg.to(memory_format=layout)
            elif isinstance(arg, torch.Tensor) and arg.dim() >= 2 and layout == "gaps":
                arg = torch.stack([arg, arg], -1)[..., 0]
            elif isinstance(arg, torch.Tensor) and arg.dim() >= 2 and layout == "transposed":
                arg = arg.transpose(0, 1).contiguous().transpose(0, 1)
            changed.append(arg)
        if all(a is b for a, b in zip(args, changed, strict=True)):
            continue
        assert tensors_in(changed)
        expect_eager(op, tuple(changed))


def _arrangements(shape):
    """Tensors of one shape that lie differently."""
    x = torch.rand(shape)
    yield x
    if x.dim() == 4:
        yield x.to(memory_format=torch.channels_last)
        yield torch.cat([x, x], 1).to(memory_format=torch.channels_last)[:, : shape[1]]
        yield x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    yield x.transpose(-1, -2).contiguous().transpose(-1, -2)
    yield torch.cat([x, x], 1)[:, : shape[1]]
    yield torch.rand(1, *shape[1:]).expand(shape)
    yield torch.rand(shape[:2] + (1,) * (len(shape) - 2)).expand(shape)


# Operators that say how their results lie for most layouts: from a gradient and an input, the call.
PAIRS = {
    "batch_norm": lambda g, x: (
        aten._native_batch_norm_legit.default,
        (x, CHANNELS, CHANNELS, CHANNELS.clone(), CHANNELS.clone(), True, 0.1, 1e-5),
    ),
    "batch_norm, no statistics": lambda g, x: (
        aten._native_batch_norm_legit.no_stats,
        (x, None, None, True, 0.1, 1e-5),
    ),
    "batch_norm_backward": lambda g, x: (
        aten.native_batch_norm_backward.default,
        (g, x, CHANNELS, CHANNELS, CHANNELS, CHANNELS, CHANNELS, True, 1e-5, MASKS[0]),
    ),
    "convolution_backward": lambda g, x: (
        aten.convolution_backward.default,
        (g, x, torch.rand(4, 4, 1, 1), [4], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, MASKS[0]),
    ),
    "depthwise_backward": lambda g, x: (
        aten.convolution_backward.default,
        (g, x, torch.rand(4, 1, 3, 3), [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 4, MASKS[0]),
    ),
    "dropout": lambda g, x: (aten.native_dropout.default, (x, 0.3, True)),
    "dropout_backward": lambda g, x: (aten.native_dropout_backward.default, (g, x > 0.5, 1.5)),
    "group_norm_backward": lambda g, x: (
        aten.native_group_norm_backward.default,
        (g, x, *_grouped[1:], CHANNELS, 2, 4, 30, 2, MASKS[0]),
    ),
    "layer_norm": lambda g, x: (aten.native_layer_norm.default, (x, [5], None, torch.rand(5), 1e-5)),
    "layer_norm_backward": lambda g, x: (
        aten.native_layer_norm_backward.default,
        (g, x, [5], *[torch.rand(2, 4, 6, 1)] * 2, torch.rand(5), torch.rand(5), MASKS[0]),
    ),
    "softmax": lambda g, x: (aten._softmax.default, (x, 1, False)),
    "softmax_backward": lambda g, x: (aten._softmax_backward_data.default, (g, x, 1, torch.float32)),
}


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_gradients_of_any_layout(name, symbolic):
    covered = [
        expect_eager(*PAIRS[name](gradient, x), symbolic)
        for x in _arrangements((2, 4, 6, 5))
        for gradient in _arrangements((2, 4, 6, 5))
    ]
    assert sum(covered) > len(covered) / 3, covered


@pytest.mark.parametrize("symbolic", [False, True])
def test_gradients_of_rows_convolved(symbolic):
    windows = ([1], [1], [1], False, [0], 1, MASKS[0])
    for width in (1, 3):
        weight = torch.rand(4, 4, width)
        for x in _arrangements((2, 4, 7)):
            for gradient in _arrangements((2, 4, 7 if width == 3 else 9)):
                args = (gradient, x, weight, [4], *windows)
                assert expect_eager(aten.convolution_backward.default, args, symbolic)


def test_what_no_rule_covers():
    half = X.to(torch.bfloat16)
    layer_norm = aten.native_layer_norm.default
    assert not expect_eager(layer_norm, (half, [6], None, None, 1e-5))  # its statistics are of another dtype
    assert not expect_eager(aten.native_dropout.default, (X, 0.5, False))
    assert not expect_eager(aten.softshrink_backward.default, (X, X, 0.5))
