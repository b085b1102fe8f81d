"""The work that the benchmark counts for a model, and the floor it implies."""

from types import SimpleNamespace

import pytest
import torch

from staticrt.models import zoo
from staticrt.models.bench.counts import count
from staticrt.models.bench.limits import floor_s
from staticrt.models.bench.peers.own import STATICRT


def test_own_facts_add_up_the_kinds_of_all_graphs():
    class Call:
        def explain(self):
            first = SimpleNamespace(
                nodes=9,
                kinds=(("total", 9), ("managed", 5), ("out", 6), ("native", 2), ("fallback", 1)),
                executor="static",
            )
            second = SimpleNamespace(nodes=1, kinds=(("total", 1), ("managed", 1)), executor="static")
            part = SimpleNamespace(what="call", reason="it needs gradients")
            return SimpleNamespace(traces=(first, second), eager=(part,))

    facts = STATICRT.facts(Call())
    assert (facts["nodes"], facts["managed_or_view_nodes"]) == (10, 8)
    assert facts["eager"] == ["call: it needs gradients"]
    assert facts["traces"] == 2


def test_own_facts_of_a_real_model():
    entry = zoo.get("mlp")
    inputs = entry.inputs()
    with torch.no_grad():
        call = STATICRT.prepare(entry.build(), inputs, 1)
        call(*inputs)
    facts = STATICRT.facts(call)
    assert facts["traces"] == 1
    assert facts["nodes"] >= 5, "three linears, two ReLUs"
    assert facts["eager"] == []


def test_counted_work_of_the_mlp_is_its_weights_and_products():
    counts = count(zoo.get("mlp"), seed=0)
    assert counts["flops"] == 3 * 2 * 64 * 64
    weights = 3 * (64 * 64 + 64) * 4
    assert counts["parameter_bytes"] == weights
    assert counts["min_bytes"] == weights + 2 * 64 * 4, "weights, one input row, one output row"
    assert counts["traffic_bytes"] == weights + (3 * 2 + 2 * 2) * 64 * 4, "3 products and 2 ReLUs, in and out"


def test_counted_work_of_embeddings_is_the_rows_read():
    counts = count(zoo.get("dlrm_b1"), seed=0)
    assert counts["parameter_bytes"] > 26 * 1000 * 32 * 4
    assert counts["min_bytes"] < 400_000


def test_counted_work_of_an_lstm_has_its_products():
    """Two layers, two directions, 32 steps: 4 gates of 128 from 64 (then 256) inputs and 128 states; a head."""
    expected = 2 * 32 * 2 * 512 * (64 + 128) + 2 * 32 * 2 * 512 * (256 + 128) + 2 * 32 * 256 * 20
    assert count(zoo.get("lstm_tagger"), seed=0)["flops"] == expected


def test_the_floor_is_the_slower_of_arithmetic_and_memory():
    limits = {"gemm_flops_per_s": 1e9, "copy_bytes_per_s": {"l1": 1e11, "l2": 1e10, "memory": 1e9}}
    assert floor_s({"flops": 2_000_000, "min_bytes": 1000}, limits) == pytest.approx(2e-3)
    assert floor_s({"flops": 0, "min_bytes": 20_000}, limits) == pytest.approx(2e-7)
    assert floor_s({"flops": 0, "min_bytes": 10_000_000}, limits) == pytest.approx(1e-2)
    assert floor_s({"flops": None, "min_bytes": None}, limits) is None
