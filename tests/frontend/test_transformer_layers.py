"""torch.nn's transformer layers, whose eager form has a fast path of its own."""

import pytest
import torch

import staticrt

MASK = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def layer():
    return torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "masked", "traces"),
    [
        (layer, {}, 1),
        (layer, {"src_key_padding_mask": MASK}, 1),
        (lambda: torch.nn.TransformerEncoder(layer(), 2), {}, 1),
        # Eager returns 0 at padded positions: a nested tensor's padding.
        (lambda: torch.nn.TransformerEncoder(layer(), 2), {"src_key_padding_mask": MASK}, 0),
        (
            lambda: torch.nn.TransformerEncoder(layer(), 2, enable_nested_tensor=False),
            {"src_key_padding_mask": MASK},
            1,
        ),
    ],
)
@torch.no_grad()
def test_equals_eager(make, masked, traces):
    model = make().eval()
    fast = staticrt.compile(model)
    for _ in range(3):
        x = torch.randn(2, 5, 32)
        torch.testing.assert_close(fast(x, **masked), model(x, **masked))
    assert len(fast.explain().traces) == traces
    if not traces:
        assert "nested tensor" in str(fast.explain())
    assert torch.backends.mha.get_fastpath_enabled()


NUMBERS = torch.tensor([[0.0, 1.0, 0.0, 0.0, 2.0]] * 4 + [[0.5] * 5])
ALL_HIDDEN = torch.tensor([[False] * 5, [True] * 5])


def attention(**settings):
    return torch.nn.MultiheadAttention(32, 4, batch_first=True, **settings)


def expect_eager(model, inputs, masks):
    model.eval()
    fast = staticrt.compile(model)
    for _ in range(3):
        want, got = model(*inputs, **masks), fast(*inputs, **masks)
        torch.testing.assert_close(got, want, equal_nan=True, check_stride=True)
    assert not fast.explain().eager, fast.explain()
    return want


@pytest.mark.filterwarnings("ignore:Converting mask")
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize(
    ("masks", "hidden"),
    [
        ({"src_key_padding_mask": ALL_HIDDEN}, True),  # eager: NaN
        ({"src_mask": NUMBERS}, True),  # eager: hides where it is not 0
        ({"src_mask": NUMBERS[:1].expand(5, 5).contiguous(), "src_key_padding_mask": MASK}, False),
        ({"src_mask": torch.nn.Transformer.generate_square_subsequent_mask(5), "is_causal": True}, False),
    ],
)
@torch.no_grad()
def test_masks_mean_what_they_mean_in_eager(masks, hidden, norm_first):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(
        32, 4, 64, batch_first=True, norm_first=norm_first, activation="gelu" if norm_first else "relu"
    )
    assert expect_eager(model, [torch.randn(2, 5, 32)], masks).isnan().any() == hidden


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    "masks",
    [
        {},
        {"key_padding_mask": ALL_HIDDEN},
        {"attn_mask": NUMBERS > 1, "key_padding_mask": MASK},
        {"attn_mask": NUMBERS},
    ],
    ids=["none", "all_hidden", "both", "numbers"],
)
@torch.no_grad()
def test_attention_equals_eager_down_to_strides(masks, need_weights):
    torch.manual_seed(0)
    x, y = torch.randn(2, 5, 32), torch.randn(2, 3, 32)
    expect_eager(attention(), [x, x, x], {**masks, "need_weights": need_weights})
    expect_eager(
        attention(), [x, x, x], {**masks, "need_weights": need_weights, "average_attn_weights": False}
    )
    if "attn_mask" not in masks:
        expect_eager(attention(), [y, x, x], {**masks, "need_weights": need_weights})
        expect_eager(
            attention(kdim=32, vdim=16), [y, x, x[..., :16]], {**masks, "need_weights": need_weights}
        )


@torch.no_grad()
def test_the_layers_own_path_is_taken_where_eager_takes_it():
    model = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 5, 32)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expect_eager(model, [x], {"src_mask": NUMBERS})
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
