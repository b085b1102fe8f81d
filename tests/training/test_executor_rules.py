"""The rules of TorchScript's graph executor that hold here: what is saved, which gradients are computed, what merges."""

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import staticrt
from staticrt.training.aot_region import regions
from staticrt.training.graph_split import split


def _saved_names(run, arguments):
    """What a call saves for its backward: "x" and "w" for arguments, "out" for its result, else sizes of the tensor."""
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        out = run(*arguments)
    named = {arguments[0].data_ptr(): "x", arguments[1].data_ptr(): "w", out.data_ptr(): "out"}
    return sorted({named.get(t.data_ptr(), str(tuple(t.shape))) for t in packed})


CAPTURES = {
    "add": (lambda x, w: x + w, []),
    "sub": (lambda x, w: x - w, []),
    "mul": (lambda x, w: x * w, ["w", "x"]),
    "sigmoid": (lambda x, w: x.sigmoid(), ["out"]),
    "tanh": (lambda x, w: x.tanh(), ["out"]),
    "t": (lambda x, w: x.t() + w, []),
    "view": (lambda x, w: x.view(-1) + 1, []),
    "expand": (lambda x, w: x.expand(2, 4, 4) + w, []),
    "mm": (lambda x, w: x.mm(w), ["w", "x"]),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_what_an_operator_saves(compiler, name):
    function, saved = CAPTURES[name]
    compiled = compiler(function, double_backward=False)
    arguments = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    assert _saved_names(function, arguments) == saved, "eager"
    for _call in range(3):
        assert _saved_names(compiled, arguments) == saved


@pytest.mark.parametrize("name", ["mul", "mm"])
def test_only_what_the_wanted_gradient_needs_is_saved_and_computed(compiler, name):
    function, _by_both = CAPTURES[name]
    compiled = compiler(function, double_backward=False)
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    for _call in range(2):
        assert _saved_names(compiled, [x, w]) == ["x"]
    (got,) = torch.autograd.grad(compiled(x, w).sum(), w)
    torch.testing.assert_close(got, torch.autograd.grad(function(x, w).sum(), w)[0])
    (backward,) = [graph for graph in regions()[-1].graphs if graph.role == "backward"]
    assert backward.operators[f"aten.{name}.{'Tensor' if name == 'mul' else 'default'}"] == 1


class _Biased(nn.Module):
    """A linear layer whose bias is an attribute, made in the call, or absent."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.bias = nn.Parameter(torch.randn(3), requires_grad=kind != "frozen")

    def forward(self, x):
        bias = {"made": torch.ones(3) * 2, "none": None}.get(self.kind, self.bias)
        return F.linear(x, self.weight, bias).tanh()


@pytest.mark.parametrize("kind", ["attribute", "made", "none", "frozen"])
def test_bias(against_eager, kind):
    against_eager(_Biased(kind), lambda call: (torch.randn(2 + call, 4),))


def test_the_gradient_of_a_bias_that_needs_none_is_not_computed(compiler):
    for kind, sums in (("attribute", 1), ("frozen", 0)):
        torch._dynamo.reset()
        compiler(_Biased(kind))(torch.randn(2, 4)).sum().backward()
        (backward,) = [graph for graph in regions()[-1].graphs if graph.role == "backward"]
        assert backward.operators["aten.sum.dim_IntList"] == sums


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y, z: torch.stack([x, y, z, x]).sin(),
        lambda x, y, z: torch.cat((x, z.detach(), y.exp()), 1),
        lambda x, y, z: [t * 2 for t in torch.unbind(x * y)] + list(z.split([1, 3])),
        lambda x, y, z: torch.linalg.multi_dot([x, y, z]),
        lambda x, y, z: torch.broadcast_tensors(x.sum(0), y * z),
    ],
)
@pytest.mark.parametrize("frozen", [(), (1,), (0, 2)])
def test_lists_of_tensors(against_eager, function, frozen):
    against_eager(
        function, lambda call: tuple(torch.randn(4, 4, requires_grad=i not in frozen) for i in range(3))
    )


ALIASED = {
    "only a view": lambda x: x.sin().t(),
    "value and view": lambda x: (y := x.sin(), y.t()),
    "view of a view": lambda x: (y := x.sin().t(), y[0]),
    "two views": lambda x: (y := x.sin()) is not None and (y.t(), y.view(-1)),
    "view of an argument and a value": lambda x: (x.t(), x.sin()),
}


@pytest.mark.parametrize("name", ALIASED)
def test_results_that_share_memory(compiler, name):
    function = ALIASED[name]
    compiled = compiler(function)
    for size in (3, 3, 4):
        seen = []
        for run in (compiled, function):
            leaf = torch.linspace(-1, 1, size * size).reshape(size, size).requires_grad_()
            x = leaf * 1
            outs = run(x)
            outs = outs if isinstance(outs, tuple) else (outs,)
            address = [out.untyped_storage().data_ptr() for out in (x, *outs)]
            shared = [[a == b for b in address] for a in address]
            outs[-1].mul_(3)  # seen through the others
            (slope,) = torch.autograd.grad(sum((out * out).sum() for out in outs), leaf)
            # That a result views what nobody else can reach is nobody's concern.
            views = [out._is_view() for out in outs] if len(outs) > 1 else []
            seen.append((shared, views, [out.detach() for out in outs], slope))
        assert seen[0][:2] == seen[1][:2]
        torch.testing.assert_close(seen[0][2:], seen[1][2:])


def test_branches_stay_in_their_scope(compiler):
    """What a branch computes belongs to the branch: the other one's gradient is undisturbed."""

    def function(x, w):
        y = x.sin() * w
        z = torch.cond(y.sum() > 0, lambda y, w: (y * w).cos(), lambda y, w: y.exp() + w, (y, w))
        return z.tanh() * y

    compiled = compiler(function)
    for sign in (1.0, -1.0, 1.0):
        got, want = [], []
        for run, found in ((compiled, got), (function, want)):
            x = torch.full((4,), sign * 0.5).requires_grad_()
            w = torch.linspace(1, 2, 4).requires_grad_()
            found += torch.autograd.grad(run(x, w).sum(), (x, w))
        torch.testing.assert_close(got, want)


def test_calls_in_the_background_train(compiler):
    """The plan and what a call saved live until the backward, which another thread runs."""
    compiled = compiler(lambda x, w: torch.tanh(x @ w))
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    calls = [staticrt.fork(compiled, x * k, w) for k in range(1, 5)]
    for k, call in enumerate(calls, 1):
        (got,) = torch.autograd.grad(call.result().sum(), w)
        torch.testing.assert_close(got, torch.autograd.grad(torch.tanh(x * k @ w).sum(), w)[0])


# -- what merges into one subregion -----------------------------------------------------------------------------------


def eager_only(x):
    return x * 1


fx.wrap("eager_only")


def _groups(function, min_nodes=2):
    """The subregions of a function as sets of names of their functions; the pieces compute what the function does."""
    gm = fx.symbolic_trace(function)
    for node in gm.graph.nodes:
        node.meta["example_value"] = torch.ones(3)
    pieces = split(gm, min_nodes)
    arguments = [torch.randn(3) for _ in gm.graph.find_nodes(op="placeholder")]
    torch.testing.assert_close(pieces.module(*arguments), function(*arguments))
    subregions = (pieces.module.get_submodule(name) for name in pieces.subregions)
    found = [
        sorted(n.name for n in subregion.graph.nodes if n.op.startswith("call_")) for subregion in subregions
    ]
    return sorted(found)


def test_a_chain_merges():
    assert _groups(lambda x, y: ((x * y).sin() + y).cos()) == [["add", "cos", "mul", "sin"]]


def test_nothing_merges_under_the_threshold():
    """Two operators are a subregion, one is none."""
    assert _groups(lambda x: eager_only(x.sin().cos()).exp()) == [["cos", "sin"]]
    assert _groups(lambda x: eager_only(x.sin()).exp()) == []


def test_unrelated_chains_do_not_merge():
    assert _groups(lambda x, y: (x.sin().cos(), y.exp().tanh())) == [["cos", "sin"], ["exp", "tanh"]]


def test_producers_merge_past_an_unrelated_eager_node():
    """
    x ── sin ──────────── add ──        eager_only stands between sin and add, but neither needs it there
    y ─────── eager_only ──── mul ──
    """

    def function(x, y):
        a = x.sin()
        other = eager_only(y)
        return (a + x) * other

    assert _groups(function) == [["add", "mul", "sin"]]


def test_consumers_merge_past_an_eager_reader():
    """The eager node reads what the subregion makes; nothing of the subregion reads what it makes."""

    def function(x, y):
        a = x * y
        other = eager_only(a)
        return a.sin() + y, other

    assert _groups(function) == [["add", "mul", "sin"]]


def test_a_dense_graph_merges_whole():
    def function(x, y):
        a, b = x * y, x + y
        c, d = a * b, a.sin() + b.cos()
        return (c * d).exp() + a - b

    (subregion,) = _groups(function)
    assert len(subregion) == 10


def test_no_merge_makes_a_cycle():
    """
    x ── sin ─ eager_only ─┐
          └── cos ───────── mul ── exp        sin and mul may not meet: the eager node is between them
    """

    def function(x):
        a = x.sin()
        between = eager_only(a)
        return (a.cos() * between).exp()

    assert _groups(function, 1) == [["cos", "exp", "mul"], ["sin"]]


def test_an_lstm_cell_is_one_subregion():
    def function(x, h, c, w):
        gates = x * w + h * w
        i, f, g, o = gates.sigmoid(), gates.cos().sigmoid(), gates.tanh(), gates.sin().sigmoid()
        c = f * c + i * g
        return eager_only(o * c.tanh()), c

    (subregion,) = _groups(function)
    assert len(subregion) == 14
