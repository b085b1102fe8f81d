"""Many threads, many calls, many shapes: right answers and bounded memory."""

import gc
import random

import psutil
import torch
from torch import nn

import staticrt
from tests.support.threads import in_threads


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8), nn.Softmax(-1)
    ).eval()


def resident_bytes():
    gc.collect()
    return psutil.Process().memory_info().rss


def test_eight_threads_a_thousand_calls_each():
    eager = model()
    compiled = staticrt.compile(eager)
    torch.set_num_threads(1)
    inputs = [torch.randn(batch, 32) for batch in (1, 2, 3, 5, 8, 13)]
    with torch.no_grad():
        wanted = [eager(x) for x in inputs]
    wrong = []

    def work(seed):
        choose = random.Random(seed)
        with torch.no_grad():
            for _ in range(1000):
                i = choose.randrange(len(inputs))
                got = compiled(inputs[i])
                if not torch.allclose(got, wanted[i], atol=1e-6):
                    wrong.append((seed, i))

    in_threads(work, range(8))
    before = resident_bytes()
    in_threads(work, range(8))
    assert not wrong
    assert resident_bytes() - before < 16 * 2**20
    assert compiled._executor.fast.calls > 8000  # served without Python, so without its lock


def test_ten_thousand_calls_with_random_shapes():
    def function(x, y):
        return torch.relu(x @ y).sum(1) * 2

    compiled = staticrt.compile(function)
    choose = random.Random(1)
    before = None
    for call in range(10_000):
        rows, inner, columns = (choose.randint(2, 64) for _ in range(3))
        x, y = torch.randn(rows, inner), torch.randn(inner, columns)
        got = compiled(x, y)
        if call % 500 == 0:
            torch.testing.assert_close(got, function(x, y))
        if call == 2000:
            before = resident_bytes()
    assert resident_bytes() - before < 32 * 2**20
    explanation = compiled.explain()
    assert len(explanation.traces) == 1
    assert not explanation.eager
