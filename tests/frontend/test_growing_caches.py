"""A cache of keys that a model fills, one per prompt: empty at first, then longer call by call."""

import torch
from torch import nn

import staticrt


class Layer:
    def __init__(self):
        self.filled = False


class Cache:
    """Empty, it holds no tensor."""

    def __init__(self, layers):
        self.layers = [Layer() for _ in range(layers)]

    def extend(self, index, keys):
        layer = self.layers[index]
        layer.keys = torch.cat([layer.keys, keys], 1) if layer.filled else keys
        layer.filled = True
        return layer.keys


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x, cache):
        for index, layer in enumerate(self.layers):
            keys = cache.extend(index, layer(x))
            x = x + torch.softmax(x @ keys.mT, -1) @ keys
        return x


@torch.no_grad()
def test_a_new_cache_for_each_prompt_needs_no_new_trace():
    torch.manual_seed(0)
    model = Model().eval()
    compiled = staticrt.compile(model)
    for prompt in range(6):
        mine, theirs = Cache(2), Cache(2)
        for length in (5, 1, 1, 1):
            x = torch.randn(2, length, 8)
            torch.testing.assert_close(compiled(x, mine), model(x, theirs))
        for ours, eagers in zip(mine.layers, theirs.layers, strict=True):
            assert ours.filled
            torch.testing.assert_close(ours.keys, eagers.keys)
        if prompt == 1:
            traces = len(compiled.explain().traces)
    assert len(compiled.explain().traces) == traces <= 4
    assert not compiled.explain().eager


@torch.no_grad()
def test_lengths_that_come_again_stay_prepared():
    torch.manual_seed(0)
    model = Model().eval()
    compiled = staticrt.compile(model)
    for _ in range(4):
        cache = Cache(2)
        for _ in range(24):
            compiled(torch.randn(2, 1, 8), cache)
    assert max(len(trace.signatures) for trace in compiled.explain().traces) >= 20
