"""Random graphs through both entry points, at several activation budgets, cut into subregions or not: all as eager.

The default run takes a few dozen; `STATICRT_RANDOM_REGIONS=2000` takes as many as it says. A failure names its seed.
"""

import os

import numpy as np
import pytest
import torch

from staticrt.api.backend import staticrt_backend
from tests.support import random_regions

COUNT = int(os.environ.get("STATICRT_RANDOM_REGIONS", "24"))


class Halved(torch.autograd.Function):
    """Nothing that a graph of tensors could hold."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return torch.from_numpy(np.asarray(x.detach().contiguous().numpy() / 2))

    @staticmethod
    def backward(ctx, grad):
        return None if grad is None else grad / 2


def halve(x):
    return Halved.apply(x)


KINDS = {
    "functional": {},
    "writes": {"writes": True},
    "draws": {"draws": True},
    "writes and draws": {"writes": True, "draws": True},
    "subregions": {"eager": halve},
    "subregions, writes and draws": {"eager": halve, "writes": True, "draws": True},
}
OPTIONS = (
    {"backward_node": "auto"},
    {"backward_node": "aot"},
    {"backward_node": "aot", "activation_memory_budget": 0.0},
    {"backward_node": "auto", "activation_memory_budget": 0.5},
    {"backward_node": "auto", "prepared": False},
)


def _compare(got, want):
    assert got.keys() == want.keys()
    for name in ("facts", "shared"):
        assert got[name] == want[name], name
    assert torch.equal(got["random"], want["random"]), "random numbers were drawn otherwise"
    for name in ("results", "arguments", "gradients", "again"):
        if name in want:
            torch.testing.assert_close(
                got[name], want[name], rtol=1e-4, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
            )


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_eager(kind):
    refused = 0
    for seed in range(COUNT // len(KINDS)):
        gm, leaves, moved = random_regions.region(seed, **KINDS[kind])
        try:
            want = random_regions.run(gm.forward, leaves, moved, seed)
        except RuntimeError:
            refused += 1  # eager refuses its backward: something saved was written
            continue
        options = OPTIONS[seed % len(OPTIONS)]
        examples = random_regions.arguments_of(leaves, moved)
        compiled = staticrt_backend(gm, examples, options={"min_region_nodes": 1, **options})
        for call in range(2):
            try:
                _compare(random_regions.run(compiled, leaves, moved, seed), want)
            except BaseException as error:
                raise AssertionError(f"{kind}, seed {seed}, {options}, call {call}:\n{gm.graph}") from error
    assert refused <= COUNT // len(KINDS) // 2
