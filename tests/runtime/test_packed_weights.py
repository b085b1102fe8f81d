"""Quantised layers whose weights are packed objects: captured whole, for all sizes, equal to eager bit by bit."""

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
def test_dynamic_layers_equal_eager_with_one_capture(dtype):
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
    assert len(report.captures) == 1, report
    assert not report.eager, report
    assert report.captures[0].executor == "StaticExecutable"
    kernels = dict(report.captures[0].signatures[0].kernels)
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
