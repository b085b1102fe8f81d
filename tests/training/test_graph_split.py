"""Subregions: supported parts compiled, unsupported ones eager between them; as TorchScript's graph executor split."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import staticrt
from staticrt import torch_private, training
from staticrt.errors import TraceError
from staticrt.training.graph_split import split


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
def subregions(compiler):
    """Compile with every subregion kept; gives results and the region's state after three calls equal to eager."""

    def check(function, *shapes, writes=False, **options):
        options = {"min_region_nodes": 1, **options}
        compiled = compiler(function, **options)
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


def test_before_and_after(subregions):
    state = subregions(lambda x: _chain(by_numpy(_chain(x, 3)), 2), (4,))
    assert len(state["subregions"]) == 2
    assert [item["reason"] for item in state["eager"]] == ["the Python function by_numpy"]
    assert sum(graph["role"] == "backward" for graph in state["graphs"]) == 2


def test_threshold(subregions):
    def function(x):
        return _chain(by_numpy(_chain(x, 6)), 2)

    state = subregions(function, (4,), min_region_nodes=5)
    assert len(state["subregions"]) == 1
    assert sum("under 5" in item["reason"] for item in state["eager"]) == 2


def test_no_cycles(subregions):
    """
    x ── a ─────────────── c     a and c may not be one subregion: b is between them.
          └─ b (eager) ───┘
    """
    state = subregions(lambda x: (a := x.cos()) * by_numpy(a), (5,))
    assert len(state["subregions"]) == 2


def test_branches_beside_an_eager_node_join(subregions):
    def function(x):
        left = by_numpy(x.sin())
        right = x.cos().exp()
        return left + right.tanh()

    state = subregions(function, (5,))
    assert len(state["subregions"]) == 2


def test_results_that_share_memory_leave_a_subregion(subregions):
    def function(x):
        y = x.sin()
        rows = y[1:]
        z = by_numpy(y)
        rows.mul_(2)
        return y.cos() + z, rows

    subregions(function, (4, 3))


def test_writes_keep_their_order(subregions):
    def function(x):
        before = by_numpy(x)
        x.mul_(3)
        after = by_numpy(x)
        return before + after * x

    subregions(function, (6,), writes=True)


def test_random_numbers_keep_their_order(subregions):
    def function(x):
        first = torch.nn.functional.dropout(x, 0.5)
        second = by_numpy(torch.rand_like(x) * x)
        return first + second * torch.rand_like(x)

    subregions(function, (40,))


def test_state_of_the_thread(compiler):
    def function(x):
        with torch.no_grad():
            scale = by_numpy(x).norm()
        return x.sin() / scale

    compiled = compiler(function, min_region_nodes=1)
    results = []
    for run in (compiled, function):
        x = torch.linspace(1, 2, 4).requires_grad_()
        run(x).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)
    assert all("changes how" in item["reason"] for item in training.debug_state()[-1]["eager"])


def test_several_results_and_unused_ones(subregions):
    def function(x):
        a, b, c = x.chunk(3)
        value, index = by_numpy(a * b).topk(2)
        return value.sum() * c, (b * 2)[index]

    subregions(function, (9,))


def test_other_sizes(compiler):
    compiled = compiler(lambda x: by_numpy(x.sin()) * x.shape[0], min_region_nodes=1)
    for size in (3, 5, 8):
        x = torch.randn(size, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() / 2 * size)


def test_second_derivative_through_subregions(compiler):
    compiled = compiler(lambda x: by_numpy(x**3).sum(), min_region_nodes=1)
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
    assert len(pieces.subregions) == 1


def test_parts_without_a_common_value_are_subregions_of_their_own(compiler):
    """Else the gradient of one would wake the function before the other, which answers with zeros."""

    def f(x, y):
        return by_numpy(x).sin().cos(), (y * 2).sin()

    compiled = compiler(f, min_region_nodes=1)
    for run in (f, compiled):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        run(x, y)[1].sum().backward()
        assert x.grad is None
        torch.testing.assert_close(y.grad, 2 * (y * 2).cos())


@torch.library.custom_op("staticrt_tests::halved_by_value", mutates_args=())
def halved_by_value(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@halved_by_value.register_fake
def _(x):
    return torch.empty_like(x)


def _by_value(ctx, grad):
    return grad / (2.0 if float(grad.sum()) < 1e9 else 3.0)  # reads a value: no graph holds that


halved_by_value.register_autograd(_by_value)


def test_what_upstream_cannot_differentiate_runs_eagerly_and_says_why(compiler):
    def f(x):
        return halved_by_value(x.sin().cos().tanh()).exp().sin()

    compiled = compiler(f, min_region_nodes=1)
    for size in (3, 3, 4, 5):
        _equal_gradients(compiled, f, torch.randn(size))
    assert "cannot be differentiated ahead of time" in training.debug_state()[-1]["failed"]


@pytest.mark.parametrize(
    "compiler_of_all", [staticrt.compile, lambda f: torch.compile(f, backend="staticrt")]
)
def test_views_of_what_changes_its_shape_in_place(compiler_of_all):
    """Beyond the graph break, AOTAutograd makes the columns again from `y` as it was before `t_`."""

    def f(x):
        y = x * 1
        y.t_()
        columns = y[:, ::2]
        return columns * columns.sum().item() + y.sum()

    torch._dynamo.reset()
    compiled = compiler_of_all(f)
    for shape in ((6, 7), (3, 5), (2, 2)):
        _equal_gradients(compiled, f, torch.randn(shape))


def _equal_gradients(compiled, f, x):
    got, want = x.clone().requires_grad_(), x.clone().requires_grad_()
    compiled(got).sum().backward()
    f(want).sum().backward()
    torch.testing.assert_close(got.grad, want.grad)


def test_a_node_that_upstream_fails_on_runs_eagerly_between_subregions(compiler, monkeypatch):
    real = torch_private.aot_compile

    def failing(gm, *args, **keywords):
        for node in gm.graph.nodes:
            if node.name == "exp":
                raise ValueError(f"no formula\n\nWhile executing %{node.name} : [num_users=1] = …")
        return real(gm, *args, **keywords)

    monkeypatch.setattr(torch_private, "aot_compile", failing)
    f = lambda x: x.sin().cos().tanh().exp().sin().cos()  # noqa: E731
    compiled = compiler(f, min_region_nodes=1)
    for size in (3, 3, 4):
        _equal_gradients(compiled, f, torch.randn(size))
    state = [state for state in training.debug_state() if state["eager"]][-1]
    assert [item["node"] for item in state["eager"]] == ["exp = exp"]
    assert "ValueError: no formula" in state["eager"][0]["reason"]
    assert len(state["subregions"]) == 2


def test_a_whole_call_that_upstream_cannot_differentiate_is_explained():
    torch._dynamo.reset()
    compiled = staticrt.compile(lambda x: halved_by_value(x.sin()).cos(), joint_trace=False)
    x = torch.randn(4, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, -(x.sin() / 2).sin() / 2 * x.cos())
    (item,) = compiled.explain().eager
    assert "cannot be differentiated ahead of time" in item.reason
    assert item.calls == 1
    with pytest.raises(TraceError, match=r"(?s)cannot be differentiated.*fix: leave out fullgraph=True"):
        staticrt.compile(lambda x: halved_by_value(x.sin()).cos(), fullgraph=True)(x)


def test_a_graph_that_does_not_lower_runs_operator_by_operator(compiler, monkeypatch):
    """A pass that fails in the backward: first for all gradients, then for a plan that comes later."""
    from staticrt.training import plans

    real, failing = plans.run_pipeline, []

    def run_pipeline(graph):
        if failing:
            next(iter(graph.graph.nodes)).prepend(
                graph.graph.create_node("call_function", torch.sin, (None,))
            )
            raise KeyError("a pass that fails halfway")
        return real(graph)

    monkeypatch.setattr(plans, "run_pipeline", run_pipeline)
    f = lambda x, y: (x.sin() * y.cos()).tanh() * (y * 3)  # noqa: E731
    for late in (False, True):
        torch._dynamo.reset()
        failing[:] = [] if late else [1]
        compiled = compiler(f)
        for call in range(3):
            leaves = [torch.randn(3, requires_grad=True) for _ in range(2)]
            wanted = leaves if call == 0 else leaves[:1]
            out = compiled(*leaves)
            failing[:] = [1]
            got = torch.autograd.grad(out.sum(), wanted)
            torch.testing.assert_close(got, torch.autograd.grad(f(*leaves).sum(), wanted))
        torch.testing.assert_close(compiled(*leaves), f(*leaves))
