"""Quantised layers whose weights are packed objects: traced whole, for all sizes, equal to eager bit by bit."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import staticrt


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.EmbeddingBag(20, 8, mode="sum", include_last_offset=True)
        self.top = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, indices, offsets):
        return torch.sigmoid(self.top(self.bags(indices, offsets)) * 2)


def quantised(module, dtype=torch.qint8):
    quantization = torch.ao.quantization
    linear = (
        quantization.default_dynamic_qconfig if dtype is torch.qint8 else quantization.float16_dynamic_qconfig
    )
    kinds = {nn.Linear: linear, nn.EmbeddingBag: quantization.float_qparams_weight_only_qconfig}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantization.quantize_dynamic(module.eval(), kinds)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16], ids=str)
@torch.no_grad()
def test_dynamic_layers_equal_eager_with_one_trace(dtype):
    torch.manual_seed(0)
    model = quantised(Ranker(), dtype)
    compiled = staticrt.compile(model)
    for bags in (3, 5, 1, 3):
        for _ in range(3):
            indices, offsets = torch.randint(0, 20, (2 * bags,)), torch.arange(0, 2 * bags + 1, 2)
            torch.testing.assert_close(
                compiled(indices, offsets), model(indices, offsets), rtol=1e-6, atol=1e-6
            )
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report
    assert report.traces[0].executor == "StaticExecutable"
    kernels = dict(report.traces[0].signatures[0].kernels)
    assert "unstable" not in kernels, kernels  # what follows a packed layer is prepared


@torch.no_grad()
def test_another_packed_weight_is_noticed():
    torch.manual_seed(0)
    model, other = (quantised(nn.Sequential(nn.Linear(6, 5), nn.ReLU())) for _ in range(2))
    compiled = staticrt.compile(model)
    x = torch.randn(4, 6)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    model[0]._packed_params._packed_params = other[0]._packed_params._packed_params
    for _ in range(3):
        torch.testing.assert_close(compiled(x), other(x))
    model.load_state_dict(copy.deepcopy(quantised(nn.Sequential(nn.Linear(6, 5), nn.ReLU())).state_dict()))
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_wrong_sizes_raise_what_eager_raises():
    model = quantised(nn.Sequential(nn.Linear(6, 5)))
    compiled = staticrt.compile(model)
    compiled(torch.randn(4, 6))
    for x in (torch.randn(4, 7), torch.randn(4, 6).double()):
        with pytest.raises(RuntimeError) as want:
            model(x)
        with pytest.raises(RuntimeError) as got:
            compiled(x)
        assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(compiled(x), model(x))


@torch.no_grad()
def test_saving_says_that_an_archive_holds_no_objects():
    model = quantised(nn.Sequential(nn.Linear(6, 5)))
    compiled = staticrt.compile(model)
    compiled(torch.randn(4, 6))
    with pytest.raises(staticrt.errors.ArchiveError, match="cannot hold a constant"):
        staticrt.save(compiled, io.BytesIO())


def weight_only():
    """Name -> (function, arguments), each over weights packed once."""
    torch.manual_seed(0)
    ops = torch.ops.quantized
    weight, bias, x = torch.randn(16, 32), torch.randn(16), torch.randn(4, 32)
    half = ops.linear_prepack_fp16(weight, bias)
    table = torch.randn(20, 16)
    bags = (torch.randint(0, 20, (10,)), torch.tensor([0, 3, 7]))
    bytewise, four_bits = ops.embedding_bag_byte_prepack(table), ops.embedding_bag_4bit_prepack(table)
    int8, scales = torch.randint(-127, 127, (16, 32), dtype=torch.int8), torch.rand(16)
    int4 = torch._convert_weight_to_int4pack_for_cpu(torch.randint(0, 15, (32, 64), dtype=torch.int32), 1)
    groups = torch.rand(2, 32, 2)
    filters = torch.randint(-127, 127, (4, 3, 3, 3), dtype=torch.int8)
    return {
        "fp16 linear": (lambda x: ops.linear_dynamic_fp16(x, half), (x,)),
        "fp16 linear, relu": (lambda x: ops.linear_relu_dynamic_fp16(x, half), (x,)),
        "byte bags": (lambda i, o: ops.embedding_bag_byte_rowwise_offsets(bytewise, i, o), bags),
        "4-bit bags": (lambda i, o: ops.embedding_bag_4bit_rowwise_offsets(four_bits, i, o), bags),
        "byte unpack": (lambda t: ops.embedding_bag_byte_unpack(t), (bytewise,)),
        "int8 linear": (lambda x: torch._weight_int8pack_mm(x, int8, scales), (x,)),
        "int4 linear": (
            lambda x: torch._weight_int4pack_mm_for_cpu(x, int4, 32, groups),
            (torch.randn(4, 64),),
        ),
        "int8 conv": (
            lambda x: nn.functional.conv2d(x, filters.float() * scales[:4].view(-1, 1, 1, 1)),
            (torch.randn(1, 3, 8, 8),),
        ),
    }


@pytest.mark.parametrize("name", weight_only())
@torch.no_grad()
def test_weights_of_few_bits_equal_eager(name):
    function, args = weight_only()[name]
    compiled = staticrt.compile(function)
    for _ in range(4):
        # Sums of products with whole numbers up to 127, in another order.
        torch.testing.assert_close(compiled(*args), function(*args), rtol=1e-5, atol=1e-4)
    assert not compiled.explain().eager
    assert compiled._executor.fast.calls > 0
