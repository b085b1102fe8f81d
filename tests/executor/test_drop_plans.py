"""`drop_plans`: execution plans and captured graphs go, traces and results stay; counters of calls per plan."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import CaptureError
from staticrt.graphs import GraphContext
from tests.support.threads import beside, in_threads


def model():
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).eval()


def plans(compiled):
    """Calls by signature."""
    return {s.inputs: s.calls for trace in compiled.explain().traces for s in trace.signatures}


def call(compiled, rows, times=1):
    x = torch.randn(rows, 16)
    with torch.no_grad():
        for _ in range(times):
            result = compiled(x)
            torch.testing.assert_close(result, compiled._module(x))
    return result


def test_calls_are_counted_per_plan():
    compiled = staticrt.compile(model())
    call(compiled, 3, times=5)
    call(compiled, 7, times=4)  # is prepared when it comes again
    call(compiled, 3, times=2)
    assert plans(compiled) == {("input: float32[3, 16]",): 6, ("input: float32[7, 16]",): 2}
    assert "calls:   6" in str(compiled.explain())


def test_frames_that_are_gone_and_other_threads_count():
    compiled = staticrt.compile(model())
    call(compiled, 3)
    in_threads(lambda rows: call(compiled, rows, 10), [3] * 4)
    compiled.trim()
    call(compiled, 3, times=2)
    assert plans(compiled) == {("input: float32[3, 16]",): 42}


def test_plans_go_and_are_made_again():
    compiled = staticrt.compile(model())
    kept = call(compiled, 3, times=4)
    expected = kept.clone()
    call(compiled, 5, times=4)
    (native,) = compiled._executor.natives()
    prepared = native.cache_counters["prepared"]
    compiled.drop_plans()
    assert plans(compiled) == {}
    assert native.num_frames == 0
    assert torch.equal(kept, expected)
    call(compiled, 3, times=4)
    assert plans(compiled) == {("input: float32[3, 16]",): 3}
    assert native.cache_counters["prepared"] == prepared + 1
    assert len(compiled.explain().traces) == 1
    compiled.drop_plans()
    compiled.drop_plans()
    call(compiled, 5)


def test_calls_that_have_begun_finish():
    """Threads call while plans are dropped again and again."""
    compiled = staticrt.compile(model())
    with beside(lambda rows: call(compiled, rows), (2, 3, 4)):
        for _ in range(50):
            compiled.drop_plans()
    compiled.drop_plans()
    (native,) = compiled._executor.natives()
    assert native.num_frames == 0


def test_training_plans():
    compiled, twin = staticrt.compile(model().train()), None
    twin = compiled._module
    for _ in range(2):
        for _ in range(3):
            x = torch.randn(3, 16)
            loss = compiled(x).square().sum()
            gradients = torch.autograd.grad(loss, list(compiled.parameters()))
            wanted = torch.autograd.grad(twin(x).square().sum(), list(twin.parameters()))
            torch.testing.assert_close(gradients, wanted)
        pending = compiled(x).square().sum()
        compiled.drop_plans()
        torch.testing.assert_close(torch.autograd.grad(pending, list(compiled.parameters())), wanted)


def test_captured_graphs_go_with_their_memory():
    with GraphContext("cpu") as context:
        compiled, other = staticrt.compile(model(), graphs=context), context.wrap(lambda x: x + 1)
        kept = call(compiled, 3, times=3)
        expected = kept.clone()
        other(torch.ones(2))
        report = context.explain()
        assert (report.captures, len(report.nodes)) == (2, 2)
        assert [node.replays for node in report.nodes] == [2, 0]
        compiled.drop_plans()
        assert len(context.explain().nodes) == 1  # of the other function
        assert plans(compiled) == {}
        assert torch.equal(kept, expected)
        call(compiled, 3, times=3)
        assert context.explain().captures == 3
        with torch.no_grad():
            alone = staticrt.compile(model(), graphs=GraphContext("cpu"))
            alone(torch.ones(2, 16))
            alone.drop_plans()


def test_not_while_a_capture_is_made():
    with GraphContext("cpu") as context:
        compiled = staticrt.compile(model(), graphs=context)
        call(compiled, 3)

        def forward(x):
            compiled.drop_plans()
            return x

        with pytest.raises(CaptureError, match="dropped while one of them is being made"):
            context.wrap(forward)(torch.ones(3))
        call(compiled, 3)
