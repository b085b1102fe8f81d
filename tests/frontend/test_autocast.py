"""Traces made under autocast compute what eager computes there: values and dtypes."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt


class Einsum(nn.Module):
    def forward(self, x):
        return torch.einsum("bij,bkj->bik", x, x)


class Switching(nn.Module):
    """Autocast is turned off, on and to another dtype inside."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        x = self.first(x)
        with torch.autocast("cpu", enabled=False):
            x = self.second(x.float())
            y = torch.einsum("bij,bkj->bik", x, x)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = torch.einsum("bij,bkj->bik", self.third(x), x)
        return x, y, z, torch.einsum("bij,bkj->bik", x, x)


def images(*layers):
    return nn.Sequential(nn.Conv2d(3, 8, 3), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


class Cell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(8, 8)

    def forward(self, x):
        state = self.cell(x[:, 0])
        state = self.cell(x[:, 1], state)
        return state[0] if isinstance(state, tuple) else state


class Attention(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x), torch.baddbmm(x[..., :6] @ x[:, :6], x, x.mT)[..., :2]


MODELS = {
    "batch_norm": (images(nn.BatchNorm2d(8), nn.ReLU()), (2, 3, 9, 9)),
    "group_norm": (images(nn.GroupNorm(2, 8), nn.GELU()), (2, 3, 9, 9)),
    "einsum": (Einsum(), (2, 3, 8)),
    "switching": (Switching(), (2, 3, 8)),
    "attention": (Attention(), (2, 6, 6)),
    "lstm": (nn.LSTM(8, 8, num_layers=2, bidirectional=True), (4, 2, 8)),
    "gru": (nn.GRU(8, 8), (4, 2, 8)),
    "lstm_cell": (Cell(nn.LSTMCell), (2, 2, 8)),
    "gru_cell": (Cell(nn.GRUCell), (2, 2, 8)),
    "encoder_layer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 4, 8)),
    "linear": (nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.LayerNorm(8), nn.Softmax(-1)), (2, 3, 8)),
}


def leaves(value):
    return [value] if isinstance(value, torch.Tensor) else [x for item in value for x in leaves(item)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_values_and_dtypes_are_eagers(name, dtype):
    torch.manual_seed(0)
    model, shape = MODELS[name]
    model.eval()
    fast = staticrt.compile(model)
    for _ in range(3):
        x = torch.randn(shape)
        with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
            try:
                expected = leaves(model(x))
            except RuntimeError as error:  # oneDNN's LSTM has no float16 on this processor
                with pytest.raises(RuntimeError, match=str(error)[:40]):
                    fast(x)
                continue
            got = leaves(fast(x))
        assert [y.dtype for y in got] == [y.dtype for y in expected]
        for y, z in zip(got, expected, strict=True):
            torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)
    # Without it the same callable computes in float32.
    with torch.no_grad():
        for y, z in zip(leaves(fast(x)), leaves(model(x)), strict=True):
            assert y.dtype == z.dtype
            torch.testing.assert_close(y, z, rtol=2e-2, atol=2e-2)


def test_autocast_is_as_before_after_a_trace():
    set_enabled = torch.set_autocast_enabled
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        staticrt.compile(Einsum())(torch.randn(2, 3, 4))
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.set_autocast_enabled is set_enabled


class TwoDtypes(nn.Module):
    """A block within one of another dtype: eager's cache hands it the outer one's casts of parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(self.second(x))
            with torch.autocast("cpu", dtype=torch.float16):
                z = self.first.weight @ self.second.weight
        return y, z


@pytest.mark.parametrize("compiles", [staticrt.compile, functools.partial(torch.compile, backend="staticrt")])
@pytest.mark.parametrize("trains", [False, True])
def test_blocks_of_two_dtypes_share_casts_of_parameters(trains, compiles):
    model = TwoDtypes()
    fast = compiles(model)
    with torch.set_grad_enabled(trains):
        for size in (2, 2, 3):
            x = torch.randn(size, 8)
            expected, got = model(x), fast(x)
            assert [y.dtype for y in got] == [y.dtype for y in expected] == [torch.bfloat16] * 2
            assert all(map(torch.equal, got, expected))
    if compiles is staticrt.compile:
        assert "within one of another dtype" in str(fast.explain().eager)
