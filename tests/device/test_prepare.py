"""`prepare` for tensors on the simulated accelerator: a plan before the first call, which then runs it."""

import copy

import pytest
import torch
from torch import nn

import staticrt

SIM = torch.device("sim:0")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.project, self.norm = nn.Embedding(20, 16), nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, ids):
        x = self.table(ids)
        q, k, v = self.project(self.norm(x)).chunk(3, -1)
        mask = torch.arange(x.size(1), device=x.device) >= 1
        weights = torch.softmax((q @ k.transpose(-1, -2) / 4).masked_fill(mask, -1), -1)
        return x + weights @ v + ids.div(3, rounding_mode="floor").unsqueeze(-1), torch.zeros_like(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)
        )

    def forward(self, x):
        return self.layers(x).mean((2, 3)).exp()


MODELS = {
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)),
        lambda n: torch.randn(n, 8),
    ),
    "attention": (Attention, lambda n: torch.arange(2 * n).view(2, n) % 20),
    "convolutions": (Convolutions, lambda n: torch.randn(n, 3, 8, 8)),
}


def check_prepared(call, native, ready, expected):
    assert ready, ready.reason
    assert ready.arena_bytes > 0
    counters = native.cache_counters
    assert counters["prepared"] == 1
    for got, wanted in zip(flat(call()), flat(expected), strict=True):
        assert got.device == SIM
        torch.testing.assert_close(got.cpu(), wanted)
    after = native.cache_counters
    assert after["diverged"] == 0
    assert after["hits"] == counters["hits"] + 1, (counters, after)


def flat(result):
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("name", MODELS)
def test_the_first_call_runs_the_plan(name, order):
    make, inputs = MODELS[name]
    model = make().eval()
    compiled = staticrt.compile(copy.deepcopy(model).to(SIM))
    x = inputs(3)
    with torch.no_grad():
        ready = compiled.prepare(x.to(SIM))
        (native,) = compiled._executor.natives()
        check_prepared(lambda: compiled(x.to(SIM)), native, ready, model(x))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("saved_on", ["cpu", "sim"])
def test_loaded_models(name, saved_on, tmp_path):
    make, inputs = MODELS[name]
    model = make().eval()
    x = inputs(3)
    with torch.no_grad():
        compiled = staticrt.compile(copy.deepcopy(model).to(saved_on))
        compiled(x.to(saved_on))
        compiled(inputs(4).to(saved_on))
        staticrt.save(compiled, tmp_path / "model.pt2")
        loaded = staticrt.load(tmp_path / "model.pt2", device="sim:0")
        x = inputs(5)
        ready = loaded.prepare(x.to(SIM))
        if name == "convolutions" and saved_on == "cpu":
            # The trace has channels last, which the CPU likes; what sim makes of it only a run shows.
            assert "rule may differ from what the device makes" in ready.reason
            torch.testing.assert_close(loaded(x.to(SIM)).cpu(), model(x))
            return
        (native,) = [trace.native.executable for trace in loaded._now.traces]
        check_prepared(lambda: loaded(x.to(SIM)), native, ready, model(x))


def test_what_only_a_run_shows():
    def forward(x):
        return x[x > 0].sum() + x

    compiled = staticrt.compile(forward)
    with torch.no_grad():
        ready = compiled.prepare(torch.ones(3, device=SIM))
        assert not ready
        assert "data" in ready.reason
        assert compiled(torch.ones(3, device=SIM)).tolist() == [4] * 3


def test_two_devices():
    def forward(x, y):
        return (x.sin() + 1).to("sim:1") * y.cos()

    compiled = staticrt.compile(forward)
    x, y = torch.randn(5), torch.randn(5)
    with torch.no_grad():
        assert compiled.prepare(x.to(SIM), y.to("sim:1"))
        got = compiled(x.to(SIM), y.to("sim:1"))
    assert got.device == torch.device("sim:1")
    torch.testing.assert_close(got.cpu(), (x.sin() + 1) * y.cos())
