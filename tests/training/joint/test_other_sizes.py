"""Calls of another size: one trace with our symbols serves them, and each is as in eager."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staticrt
from staticrt.frontend.tracing import trace


class Attention(nn.Module):
    def __init__(self, fused):
        super().__init__()
        self.fused = fused
        self.embed = nn.Conv2d(3, 16, 4, 4)
        self.norm, self.drop = nn.LayerNorm(16), nn.Dropout(0.0)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        batch, rows, size = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(batch, rows, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        if self.fused:
            seen = F.scaled_dot_product_attention(q, k, v)
        else:
            seen = (q @ k.transpose(-2, -1)).mul(8**-0.5).softmax(-1) @ v
        return self.head(self.drop(x + seen.transpose(1, 2).reshape(batch, rows, size)).mean(1))


class NormOverChannels(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Said(nn.Module):
    """Makes text of a size, for a message that is not needed."""

    def forward(self, x):
        height = x.shape[-1]
        torch._assert(height == 8, f"height {height} is not 8")
        return x


class Rounded(nn.Module):
    """Resizes what is not a whole number of patches, which a fractional number tells."""

    def forward(self, x):
        height = 2 * math.ceil(x.shape[2] / 2)
        return x if height == x.shape[2] else x[:, :, :-1]


class Rolled(nn.Module):
    """Windows that are shifted, as Swin's, and tokens that lie as images, taken for an image of a known size, as LeViT's."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 5)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = x.view(x.shape[0], 4, 4, x.shape[2])[:, ::2].contiguous().roll((-1, 1), (1, 2))
        return self.head(x.roll(1, 1) * torch.bernoulli(x.detach(), 0.5))


class Path(nn.Module):
    """Drops half of the samples: 0.5 is `bernoulli_`'s default."""

    def forward(self, x):
        return x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.5)


def convolutional(*layers):
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), *layers, *head)


MODELS = {
    "fused attention": lambda: Attention(True),
    "attention": lambda: Attention(False),
    "batch norm": lambda: convolutional(nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2)),
    "group norm": lambda: convolutional(nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2)),
    "layer norm over channels": lambda: convolutional(NormOverChannels(8), nn.GELU()),
    "dropout": lambda: convolutional(nn.Dropout(0.4), nn.Conv2d(8, 8, 3, groups=8)),
    "rolled": Rolled,
    "rounded size": lambda: convolutional(Rounded()),
    "text of a size": lambda: convolutional(Said()),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_trace_with_symbols_of_ours_serves_every_size(name, monkeypatch):
    def refused(*_args):
        raise AssertionError("torch's own symbolic sizes")

    monkeypatch.setattr(trace, "_shape_env", refused)
    torch.manual_seed(0)
    eager = MODELS[name]().train()
    model = copy.deepcopy(eager)
    fast = staticrt.compile(model)
    for step, batch in enumerate((2, 3, 5, 2)):
        x = torch.randn(batch, 3, 16, 16)
        for run in (eager, fast):
            torch.manual_seed(step)
            run.zero_grad()
            run(x).square().mean().backward()
        for (_, ours), (key, theirs) in zip(model.named_parameters(), eager.named_parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, msg=lambda text, key=key: f"{key}: {text}")
            assert ours.grad.stride() == theirs.grad.stride(), key
        for ours, theirs in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert str(fast.explain()).count("graph ") == 2


def test_samples_dropped_with_the_default_probability_are_those_of_eager():
    model = nn.Sequential(nn.Conv2d(3, 4, 1), Path())
    fast = staticrt.compile(model)
    for batch in (4, 7):
        x = torch.randn(batch, 3, 2, 2)
        found = []
        for run in (model, fast):
            torch.manual_seed(batch)
            model.zero_grad()
            out = run(x)
            out.square().sum().backward()
            found.append([out, model[0].weight.grad])
        torch.testing.assert_close(*found)
    assert "not traced" not in str(fast.explain())
