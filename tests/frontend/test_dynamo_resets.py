"""What was compiled of a function that Dynamo splits goes when the compiled function does, and with `torch._dynamo.reset()`.

The functions are of this module: Dynamo leaves what it resumes after a graph break in its globals.
"""

import gc
import sys
import weakref

import pytest
import torch

import staticrt
from staticrt import locks
from staticrt.api.options import checked_options
from staticrt.executor.executor import Executor
from staticrt.executor.partial_graph import PartialGraph
from staticrt.frontend.dynamo import resets as dynamo_resets
from staticrt.training.aot_region import Region
from staticrt.training.plans import CompiledGraph
from tests.support.threads import beside


def seen_by_python(x):
    return float(x.detach().numpy().mean())


def resets(x):
    torch._dynamo.reset()
    return seen_by_python(x)


between = seen_by_python


def function(x):
    y = (x @ x).relu()
    scale = between(y)
    return ((y @ y).tanh() * scale) @ y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)

    def forward(self, x):
        y = self.first(x)
        return self.second(y.tanh() * between(y)).sigmoid()


ROUTES = {
    "staticrt": staticrt.compile,
    "torch": lambda model: torch.compile(model, backend="staticrt"),
}


def compiled_parts():
    """Executors and differentiated graphs that are alive, and bytes of arenas."""
    for _ in range(3):
        gc.collect()
    staticrt.memory.empty_cache(device="cpu")
    alive = [type(x).__name__ for x in gc.get_objects() if type(x) in (Executor, CompiledGraph)]
    return sorted(alive), staticrt.memory.stats("cpu")["allocated_bytes.all.current"]


@pytest.fixture(autouse=True)
def before(collects_own_garbage_only):
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield compiled_parts()
    torch._dynamo.reset()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("gradients", [False, True])
def test_nothing_compiled_is_left_after_a_reset(route, gradients, before):
    x = torch.randn(64, 64, requires_grad=gradients)
    compiled = ROUTES[route](function)
    for _ in range(2):  # and after a second one
        with torch.set_grad_enabled(gradients):
            for size in (64, 32, 64):
                torch.testing.assert_close(compiled(x[:size, :size]), function(x[:size, :size]))
        assert len(compiled_parts()[0]) > len(before[0])
        torch._dynamo.reset()
        # The function has an executor of its own.
        assert len(compiled_parts()[0]) <= len(before[0]) + (route == "staticrt")
    del compiled
    assert compiled_parts() == before


@pytest.mark.parametrize("gradients", [False, True])
def test_nothing_compiled_is_left_when_the_compiled_model_is_gone(gradients, before):
    for made in (lambda: function, lambda: Model().requires_grad_(gradients)):
        compiled = staticrt.compile(made())
        x = torch.randn(64, 64, requires_grad=gradients)
        with torch.set_grad_enabled(gradients):
            for _ in range(3):
                compiled(x)
        assert "partial" in str(compiled.explain()) or gradients
        assert len(compiled_parts()[0]) > len(before[0]) + 1
        del compiled
        assert compiled_parts() == before


def test_a_backward_runs_when_the_compiled_function_is_gone():
    x = torch.randn(16, 16, requires_grad=True)
    for route in ROUTES.values():
        compiled = route(function)
        for _ in range(3):
            loss = compiled(x).sum()
        del compiled
        torch._dynamo.reset()
        gc.collect()
        expected = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(torch.autograd.grad(loss, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("gradients", [False, True])
def test_a_call_that_is_reset_in_the_middle_ends(route, gradients, monkeypatch):
    x = torch.randn(16, 16, requires_grad=gradients)
    compiled = ROUTES[route](function)
    with torch.set_grad_enabled(gradients):
        expected = function(x)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
        monkeypatch.setattr("tests.frontend.test_dynamo_resets.between", resets)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected)


def test_a_released_region_answers_eagerly():
    graph = torch.fx.symbolic_trace(lambda x: (x * 2).exp())
    x = torch.randn(3, requires_grad=True)
    region = Region(graph, [x], checked_options({}))
    region(x)
    region.release()
    assert region.graphs == []
    result = region(x)
    torch.testing.assert_close(result, (x * 2).exp())
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 2 * (x * 2).exp())


def test_a_released_partial_graph_answers_eagerly():
    made = []

    class Fast:
        def __init__(self, function):
            self.call = function

    class OneExecutor:
        def __init__(self, function, known):
            made.append(self)
            self.fast = Fast(function)

    graph = torch.fx.symbolic_trace(lambda x: (x * 2).exp())
    x = torch.randn(3)
    partial = PartialGraph(graph, [x], OneExecutor)
    for _ in range(2):
        torch.testing.assert_close(partial(x), (x * 2).exp())
    partial.release()
    torch.testing.assert_close(partial(x), (x * 2).exp())
    assert len(made) == 1
    assert partial.executors == []


KINDS = (PartialGraph, Region)


def lists_of_graphs():
    return [each for each in gc.get_objects() if type(each) is list and each and type(each[0]) in KINDS]


@pytest.mark.parametrize("gradients", [False, True])
def test_what_was_released_is_not_kept(gradients):
    compiled = staticrt.compile(function)
    x = torch.randn(16, 16, requires_grad=gradients)
    others = lists_of_graphs()
    counts = []
    with torch.set_grad_enabled(gradients):
        for _ in range(4):
            compiled(x)
            counts.append(sum(not each.is_released for each in gc.get_objects() if type(each) in KINDS))
            torch._dynamo.reset()
    assert counts[0] > 0
    lists = [each for each in lists_of_graphs() if not any(each is other for other in others)]
    assert 0 < max(map(len, lists)) <= counts[0]


class Graph:
    def __init__(self, raises):
        self.raises, self.is_released = raises, False

    def release(self):
        self.is_released = True
        if self.raises:
            self.raises = False
            raise ValueError("cannot be released")


def test_one_that_cannot_be_released_leaves_none_behind():
    graphs = [Graph(raises) for raises in (False, True, False, True, False)]
    for graph in graphs:
        dynamo_resets.release_at_reset(graph)
    with pytest.raises(ValueError, match="cannot be released"):
        torch._dynamo.reset()
    assert [graph.is_released for graph in graphs] == [True] * 5
    graphs.clear()


def test_members_of_a_weak_set_to_which_other_threads_add():
    found = weakref.WeakSet()
    kept = [Graph(False) for _ in range(500)]
    found.update(kept)

    def add(_thread):
        more = [Graph(False) for _ in range(100)]
        found.update(more)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with beside(add):
            for _ in range(300):
                assert set(kept) <= set(locks.members(found))
    finally:
        sys.setswitchinterval(interval)
