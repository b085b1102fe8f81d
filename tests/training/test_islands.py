"""Islands: supported parts compiled, unsupported ones eager between them; as TorchScript's graph executor split."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from staticrt import training
from staticrt.training.islands import split


@torch.compiler.allow_in_graph
def by_numpy(x):
    return HalfByNumpy.apply(x)


class HalfByNumpy(torch.autograd.Function):
    """Nothing that a graph of tensors could hold."""

    @staticmethod
    def forward(ctx, x):
        if isinstance(x, FakeTensor):  # Dynamo asks for the result's kind
            return torch.empty_like(x)
        return torch.from_numpy(np.asarray(x.detach().contiguous().numpy()) / 2)

    @staticmethod
    def backward(ctx, grad):
        return torch.from_numpy(grad.contiguous().numpy() / 2)


@pytest.fixture
def islands(door):
    """Compile with every island kept; gives results and the region's state after three calls equal to eager."""

    def check(function, *shapes, writes=False, **options):
        options = {"min_island_nodes": 1, **options}
        compiled = door(function, **options)
        for call in range(3):
            results = []
            for run in (compiled, function):
                torch.manual_seed(call)
                leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
                arguments = [leaf * 1 for leaf in leaves] if writes else leaves
                torch.manual_seed(call)
                outs = run(*arguments)
                outs = outs if isinstance(outs, tuple) else (outs,)
                sum((out * out).sum() for out in outs).backward()
                results.append(([o.detach() for o in outs], [leaf.grad for leaf in leaves]))
            torch.testing.assert_close(*results)
        return [state for state in training.debug_state() if state["eager"]][-1]

    return check


def _chain(x, n):
    for _ in range(n):
        x = x.sin()
    return x


def test_before_and_after(islands):
    state = islands(lambda x: _chain(by_numpy(_chain(x, 3)), 2), (4,))
    assert len(state["islands"]) == 2
    assert [item["reason"] for item in state["eager"]] == ["the Python function by_numpy"]
    assert sum(graph["role"] == "backward" for graph in state["graphs"]) == 2


def test_threshold(islands):
    def function(x):
        return _chain(by_numpy(_chain(x, 6)), 2)

    state = islands(function, (4,), min_island_nodes=5)
    assert len(state["islands"]) == 1
    assert sum("under 5" in item["reason"] for item in state["eager"]) == 2


def test_no_cycles(islands):
    """
    x ── a ─────────────── c     a and c may not be one island: b is between them.
          └─ b (eager) ───┘
    """
    state = islands(lambda x: (a := x.cos()) * by_numpy(a), (5,))
    assert len(state["islands"]) == 2


def test_branches_beside_an_eager_node_join(islands):
    def function(x):
        left = by_numpy(x.sin())
        right = x.cos().exp()
        return left + right.tanh()

    state = islands(function, (5,))
    assert len(state["islands"]) == 2


def test_results_that_share_memory_leave_an_island(islands):
    def function(x):
        y = x.sin()
        rows = y[1:]
        z = by_numpy(y)
        rows.mul_(2)
        return y.cos() + z, rows

    islands(function, (4, 3))


def test_writes_keep_their_order(islands):
    def function(x):
        before = by_numpy(x)
        x.mul_(3)
        after = by_numpy(x)
        return before + after * x

    islands(function, (6,), writes=True)


def test_random_numbers_keep_their_order(islands):
    def function(x):
        first = torch.nn.functional.dropout(x, 0.5)
        second = by_numpy(torch.rand_like(x) * x)
        return first + second * torch.rand_like(x)

    islands(function, (40,))


def test_state_of_the_thread(door):
    def function(x):
        with torch.no_grad():
            scale = by_numpy(x).norm()
        return x.sin() / scale

    compiled = door(function, min_island_nodes=1)
    results = []
    for run in (compiled, function):
        x = torch.linspace(1, 2, 4).requires_grad_()
        run(x).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)
    assert all("changes how" in item["reason"] for item in training.debug_state()[-1]["eager"])


def test_several_results_and_unused_ones(islands):
    def function(x):
        a, b, c = x.chunk(3)
        value, index = by_numpy(a * b).topk(2)
        return value.sum() * c, (b * 2)[index]

    islands(function, (9,))


def test_other_sizes(door):
    compiled = door(lambda x: by_numpy(x.sin()) * x.shape[0], min_island_nodes=1)
    for size in (3, 5, 8):
        x = torch.randn(size, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() / 2 * size)


def test_second_derivative_through_islands(door):
    compiled = door(lambda x: by_numpy(x**3).sum(), min_island_nodes=1)
    x = torch.randn(4, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x), x)
    torch.testing.assert_close(slope, 1.5 * x.detach() ** 2)


def test_a_graph_is_left_as_it_is():
    graph = torch.fx.symbolic_trace(lambda x: (x.sin().cos() + 1).exp())
    for node in graph.graph.nodes:
        node.meta["example_value"] = torch.ones(2)
    before = graph.code
    pieces = split(graph, 1)
    assert graph.code == before
    assert len(pieces.islands) == 1
