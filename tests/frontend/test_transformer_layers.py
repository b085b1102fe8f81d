"""torch.nn's transformer layers, whose eager form has a fast path of its own."""

import pytest
import torch

import staticrt

MASK = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])


def layer():
    return torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("make", "masked", "captures"),
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
def test_equals_eager(make, masked, captures):
    model = make().eval()
    fast = staticrt.compile(model)
    for _ in range(3):
        x = torch.randn(2, 5, 32)
        torch.testing.assert_close(fast(x, **masked), model(x, **masked))
    assert len(fast.explain().captures) == captures
    if not captures:
        assert "nested tensor" in str(fast.explain())
    assert torch.backends.mha.get_fastpath_enabled()
