"""`weight_memory`: how much memory packed copies of weights may take, and that answers are the same with any of it."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import OptionError
from staticrt.runtime import autotuning


class Convolutions(nn.Module):
    """Convolutions of every kind that packs its weight, norms that may go into them, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
            *(nn.Conv2d(64, 512, 1, bias=False), nn.BatchNorm2d(512), nn.ReLU()),
            *(nn.Conv2d(512, 256, 3, stride=2, padding=1), nn.BatchNorm2d(256), nn.ReLU()),
            *(nn.Conv2d(256, 256, 3, padding=1, groups=256), nn.ConvTranspose2d(256, 64, 2, 2)),
        )
        self.head = nn.Linear(64, 300)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Products(nn.Module):
    """Linear layers that are used once, and one that every step uses."""

    def __init__(self):
        super().__init__()
        self.first, self.step, self.last = nn.Linear(320, 640), nn.Linear(640, 640), nn.Linear(640, 320)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for _ in range(4):
            x = torch.tanh(self.step(x))
        return self.last(x)


CASES = {
    "convolutions": (Convolutions, (1, 32, 14, 14)),
    "products": (Products, (48, 320)),
    "recurrent": (lambda: nn.LSTM(64, 96, num_layers=2), (7, 2, 64)),
}


def weight_bytes(model):
    return sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))


def made(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    return make().eval(), torch.randn(shape)


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("share", [None, 0, 0.25, 0.5, 0.95, 1], ids=str)
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_copies_stay_within_their_share(name, share):
    model, x = made(name)
    compiled = staticrt.compile(model, weight_memory=share)
    ready = compiled.prepare(x)
    assert ready, ready
    if share not in (None, 1):
        assert ready.packed_bytes <= share * weight_bytes(model)
    wanted = first(model(x))
    for _ in range(3):
        torch.testing.assert_close(first(compiled(x)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["convolutions", "products"])
@torch.no_grad()
def test_more_memory_packs_more_weights(name):
    model, x = made(name)
    packed = {
        share: staticrt.compile(model, weight_memory=share, deterministic=True).prepare(x).packed_bytes
        for share in (0, None, 1)
    }
    assert packed[0] == 0
    assert packed[None] < packed[1]


@torch.no_grad()
def test_a_kernel_that_copies_less_is_taken_where_a_copy_does_not_fit():
    torch.manual_seed(0)
    shape = (1, 64, 64, 24, 24, 1, 1, torch.get_num_threads())
    autotuning.pin(autotuning.Route("winograd", (*shape, side), side) for side in (2, 4))
    convolutions = (nn.Conv2d(64, 64, 3, padding=1) for _ in range(3))
    model, x = nn.Sequential(*convolutions).eval(), torch.randn(1, 64, 24, 24)
    compiled = staticrt.compile(model, weight_memory=0.95)  # a transformed weight takes 16/9 or 4 times of it
    assert 0.9 * weight_bytes(model) <= compiled.prepare(x).packed_bytes <= 0.95 * weight_bytes(model)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_weight_that_many_steps_read_is_packed_once():
    model, x = made("products")
    ready = staticrt.compile(model, weight_memory=1, deterministic=True).prepare(x)
    assert 0.9 * weight_bytes(model) <= ready.packed_bytes <= weight_bytes(model)


@torch.no_grad()
def test_changed_weights_are_packed_again():
    model, x = made("convolutions")
    compiled = staticrt.compile(model, weight_memory=1)
    compiled(x), compiled(x)
    for parameter in model.parameters():
        parameter.mul_(1.1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_loaded_model_takes_the_option(tmp_path):
    model, x = made("products")
    staticrt.save(staticrt.compile(model, (x,)), tmp_path / "m.pt2")
    for share in (0, 1):
        loaded = staticrt.load(tmp_path / "m.pt2", weight_memory=share, deterministic=True)
        assert (loaded.prepare(x).packed_bytes > 0) == (share > 0)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("value", [-0.5, 1.5, float("nan"), "all", True], ids=str)
def test_what_is_no_share_is_refused(value):
    with pytest.raises(OptionError, match="weight_memory"):
        staticrt.compile(nn.Linear(2, 2), weight_memory=value)
