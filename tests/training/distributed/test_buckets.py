"""A compiled model under `DistributedDataParallel` has its gradients reduced while its backward runs, on 2 gloo ranks."""

import types

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import staticrt
from tests.support.bucket_workers import MODELS, nodes_of_backwards, reduced

OPTIONS = {
    "plain": {},
    "static graph": {"static_graph": True},
    "find unused": {"find_unused_parameters": True},
    "views": {"gradient_as_bucket_view": True},
}


def check_order(events: list[str], buckets: int) -> None:
    """Between the beginnings of two reductions, more of the backward ran."""
    assert events.count("bucket") == buckets
    runs = "".join("B" if event == "bucket" else "r" for event in events).split("B")
    assert all(runs[:-2]), runs  # the last segment may complete two buckets
    assert len(runs[0]) < sum(map(len, runs)) / 2


@pytest.mark.parametrize("way", ["around", "inside"])
@pytest.mark.parametrize("options", OPTIONS)
def test_buckets_are_reduced_while_the_backward_runs(ranks, way, options):
    eager = ranks.run(reduced, "layers", "eager", OPTIONS[options])
    compiled = ranks.run(reduced, "layers", way, OPTIONS[options])
    for (state, sizes, events, text), (expected, eager_sizes, _none, _empty) in zip(
        compiled, eager, strict=True
    ):
        assert "joint trace" in text
        assert len(sizes) >= 3
        check_order(events, len(sizes))
        assert sizes == eager_sizes
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", ["around", "inside"])
@pytest.mark.parametrize("model", [name for name in MODELS if name != "layers"])
def test_models_train_as_in_eager(ranks, way, model):
    eager = ranks.run(reduced, model, "eager", {})
    compiled = ranks.run(reduced, model, way, {})
    for (state, sizes, events, text), (expected, _sizes, _none, _empty) in zip(compiled, eager, strict=True):
        assert "joint trace" in text
        assert "run" in events[events.index("bucket") :], events
        assert len(sizes) > 1
        torch.testing.assert_close(state, expected, rtol=1e-4, atol=1e-5)


def test_a_backward_is_cut_for_the_wrapper_at_hand(ranks):
    for alone, small_buckets, one_bucket, alone_again in ranks.run(nodes_of_backwards):
        assert alone == one_bucket == alone_again == 1
        assert small_buckets >= 3


def test_a_wrapper_in_whose_forward_another_thread_is_cuts_nothing(monkeypatch):
    compiled = staticrt.compile(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    for cap in (None, 1, 2):
        active = cap and types.SimpleNamespace(bucket_bytes_cap_list=[cap, cap])
        monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", active)
        compiled(torch.ones(2, 4)).sum().backward()
    (trace,) = compiled.explain().traces
    assert trace.calls == 3
    assert "segments" not in dict(trace.kinds)
