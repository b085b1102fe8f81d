"""`scaled_dot_product_attention` as ONNX: what hidden rows answer, and the forms that torch's own exporter refuses."""

import math

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

import staticrt


class Attention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, q, k, v, mask=None):
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def bool_mask(*shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[..., 0] = True
    mask[..., 2, :] = False  # this row sees nothing
    return mask


def float_mask(*shape):
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    return bias.masked_fill(~bool_mask(*shape), -math.inf)


def check(module, *args, opset=20, **options):
    model = staticrt.to_onnx(module, args, opset=opset, **options)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    want = module(*args)
    assert not want.isnan().any()
    there = session.run(None, dict(zip(names, [arg.numpy() for arg in args], strict=True)))[0]
    np.testing.assert_allclose(there, want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(staticrt.from_onnx(model)(*args), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "opset"), [(bool_mask, 18), (float_mask, 20), (bool_mask, 23), (float_mask, 23)]
)
def test_a_row_that_sees_no_key_is_zero(make, opset):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    mask = make(2, 1, 5, 7)
    assert not Attention()(q, k, v, mask)[..., 2, :].any()
    check(Attention(), q, k, v, mask, opset=opset, dynamic=False)


@pytest.mark.parametrize("opset", [20, 23])
def test_a_row_of_the_lowest_number_is_the_mean_of_all_values(opset):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
    mask = torch.zeros(5, 5).masked_fill(~bool_mask(5, 5), torch.finfo(torch.float32).min)
    torch.testing.assert_close(Attention()(q, k, v, mask)[..., 2, :], v.mean(2))
    check(Attention(), q, k, v, mask, opset=opset, dynamic=False)


@pytest.mark.parametrize(
    ("shape", "mask"), [((6, 8), bool_mask(6, 6)), ((3, 6, 8), float_mask(3, 6, 6)), ((2, 2, 3, 6, 8), None)]
)
def test_tensors_of_other_ranks_are_exported(shape, mask):
    torch.manual_seed(0)
    q, k, v = (torch.randn(shape) for _ in range(3))
    check(Attention(), q, k, v, *(() if mask is None else (mask,)), dynamic=False)


@pytest.mark.parametrize("opset", [20, 23])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_causal_attention_and_shared_heads(scale, opset):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 4, 8), torch.randn(2, 2, 4, 8)
    check(Attention(is_causal=True, enable_gqa=True, scale=scale), q, k, v, opset=opset, dynamic=False)


def test_a_scale_that_has_no_root():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    check(Attention(scale=-0.5), q, k, v, dynamic=False)
    check(Attention(scale=0.0), q, k, v, dynamic=False)


def test_padding_on_the_left_of_a_sliding_window_matches_on_every_row():
    """A window of 3 over keys of which the first 4 are padding: rows 0 to 3 see nothing, the last ones all."""

    class Windowed(nn.Module):
        def forward(self, x, padding):
            at = torch.arange(x.shape[2])
            near = (at[None] <= at[:, None]) & (at[None] > at[:, None] - 3)
            mask = near[None, None] & padding[:, None, None, :].bool()
            x = functional.scaled_dot_product_attention(x, x, x, attn_mask=mask) + x
            return functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    torch.manual_seed(0)
    padding = torch.ones(2, 9, dtype=torch.long)
    padding[1, :4] = 0
    check(Windowed(), torch.randn(2, 2, 9, 8), padding)


class Layouts(nn.Module):
    """torch's fused kernel answers in another layout than what autograd takes for a mask that needs gradients."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x):
        batch, length, _ = x.shape
        heads = x.view(batch, length, 4, 4).transpose(1, 2)
        mask = self.bias.expand(1, 4, length, length)
        found = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
        return found.transpose(1, 2).reshape(batch, length, -1).contiguous()


def test_a_mask_that_needs_gradients_is_exported_with_free_sizes():
    torch.manual_seed(0)
    module = Layouts().eval()
    model = staticrt.to_onnx(module, torch.randn(2, 7, 16))
    back = staticrt.from_onnx(model)
    for shape in ((2, 7, 16), (3, 9, 16)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(back(x), module(x))


def test_sizes_of_1_among_the_examples_become_constants_where_torch_cannot_leave_them_free():
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8)
    model = staticrt.to_onnx(
        Attention(), (q, k, k, bool_mask(2, 1, 5, 7)), input_names=["q", "k", "v", "mask"]
    )
    mask = model.graph.input[3].type.tensor_type.shape.dim
    assert mask[1].dim_value == 1
    assert mask[0].dim_param
    back = staticrt.from_onnx(model)
    q, k, mask = torch.randn(4, 2, 6, 8), torch.randn(4, 2, 9, 8), bool_mask(4, 1, 6, 9)
    torch.testing.assert_close(back(q, k, k, mask), Attention()(q, k, k, mask))
