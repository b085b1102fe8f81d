"""Version counters: a trace adds nothing to those of the model's tensors."""

from __future__ import annotations

import torch
from torch import nn

import staticrt


class _Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x)
        return self.total * 2


def test_a_trace_adds_no_versions():
    model = _Counter()
    before = model.total._version
    with torch.no_grad():
        compiled = staticrt.compile(model, example_inputs=(torch.ones(4),))
    assert compiled.explain().traces
    assert model.total._version == before
