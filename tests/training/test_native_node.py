"""The autograd node of our own: which regions take it, and what only a node can get wrong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.training import debug_state
from tests.support.compilers import each_compiler
from tests.support.threads import in_threads

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def compiled(function, **options):
    return torch.compile(function, backend="staticrt", options={"backward_node": "native", **options})


def test_the_node_is_ours_and_shows_its_name():
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    fast = compiled(net)
    x = torch.randn(3, 8)
    out = fast(x)
    assert out.grad_fn.name() == "StaticGraphBackward"
    assert out.is_leaf is False
    assert not out.is_inference()
    out.square().sum().backward()
    grads = [p.grad for p in net.parameters()]
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    torch.testing.assert_close(grads, list(expected))
    assert [region["node"] for region in debug_state()][-1] == "native"


def test_regions_that_do_not_fit_take_the_aot_node_or_say_why():
    def aliased(x, w):
        y = x @ w
        return y.t(), y.view(-1)  # two views of one result

    def writes(x, w):
        x.mul_(2)
        return x @ w

    for function in (aliased, writes):
        torch._dynamo.reset()
        x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
        fast = torch.compile(function, backend="staticrt", options={"backward_node": "auto"})
        theirs, v = x.clone(), w.detach().clone().requires_grad_()
        torch.testing.assert_close(fast(x, w), function(theirs, v))
        torch.testing.assert_close(x, theirs)

    torch._dynamo.reset()
    run = torch.compile(writes, backend="staticrt", options={"backward_node": "auto"})
    run(torch.randn(3, 3, requires_grad=True) * 1, w).sum().backward()
    last = [region["why not native"] for region in debug_state()][-1]
    assert last == "it writes an input that autograd sees"
    torch._dynamo.reset()
    with pytest.raises(Exception, match="does not fit backward_node='native': a result is an alias"):
        compiled(aliased)(torch.randn(3, 3), w)


@pytest.mark.parametrize(
    "function",
    [
        lambda w: (w**3).sum(),
        lambda w: torch.sin(w).prod(),
        lambda w: F.gelu(w @ w.t()).mean(),
        lambda w: torch.logsumexp(w, 1).sum() * w.exp().sum(),
        lambda w: F.softmax(w, 0).square().sum(),
        lambda w: (torch.tanh(w) @ w.sigmoid().t()).square().sum(),
    ],
)
def test_orders_one_to_three(function):
    w = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    fast = compiled(function)
    results = []
    for run in (fast, function):
        first = torch.autograd.grad(run(w), w, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), w, create_graph=True)[0]
        third = torch.autograd.grad(second.square().sum(), w)[0]
        results.append((first, second, third))
    torch.testing.assert_close(results[0], results[1])


def test_gradcheck_and_gradgradcheck():
    fast = compiled(lambda x, w: torch.tanh(x @ w) * w.sum())
    x = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fast, (x, w))
    assert torch.autograd.gradgradcheck(fast, (x, w))


def test_a_graph_is_freed_and_kept():
    w = torch.randn(3, requires_grad=True)
    fast = compiled(lambda w: w.exp().sum())
    out = fast(w)
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(w.grad, 2 * w.detach().exp())
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_undefined_and_unneeded_gradients():
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    fast = compiled(lambda x, w: (x.sin() * 2, w.cos() * 3))
    a, _b = fast(x, w)
    a.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())
    assert w.grad is None
    _a, b = fast(x, w)
    (only,) = torch.autograd.grad(b.sum(), w)
    torch.testing.assert_close(only, -3 * w.detach().sin())
    product = compiled(lambda x, w: x @ w)
    (gx,) = torch.autograd.grad(product(x, w).sum(), x)
    torch.testing.assert_close(gx, torch.ones(4, 4) @ w.detach().t())


def test_results_without_gradients():
    x = torch.randn(4, requires_grad=True)
    fast = compiled(lambda x: (x * 2, x.argmax() + 1, (x * 3).detach()))
    a, index, c = fast(x)
    assert [t.requires_grad for t in (a, index, c)] == [True, False, False]
    assert index.dtype == torch.int64
    a.sum().backward()
    assert torch.equal(x.grad, torch.full((4,), 2.0))


@pytest.mark.parametrize("edited", ["argument", "result"])
def test_saved_tensors_edited_in_place_are_caught(edited):
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    fast = compiled(lambda x, w: (x @ w).exp())
    out = fast(x, w)
    with torch.no_grad():
        (x if edited == "argument" else out).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_saved_tensors_hooks_pack_everything():
    x, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    fast = compiled(lambda x, w: torch.tanh(x @ w).square())
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: packed.append(t) or len(packed) - 1, lambda i: packed[i]
    ):
        out = fast(x, w)
    assert packed
    out.sum().backward()
    (expected,) = torch.autograd.grad(torch.tanh(x @ w).square().sum(), w)
    torch.testing.assert_close(w.grad, expected)


def test_gradients_that_are_not_contiguous_and_channels_last():
    conv = nn.Conv2d(3, 4, 3, padding=1)
    fast = compiled(conv)
    x = torch.randn(2, 3, 6, 6)
    for layout in (torch.contiguous_format, torch.channels_last):
        grad = torch.randn(2, 4, 6, 6).contiguous(memory_format=layout)
        expanded = torch.randn(()).expand(2, 4, 6, 6)
        for g in (grad, expanded):
            found = torch.autograd.grad(fast(x), list(conv.parameters()), g)
            torch.testing.assert_close(
                found, torch.autograd.grad(conv(x), list(conv.parameters()), g), rtol=1e-4, atol=1e-4
            )


def test_batch_norm_buffers_are_written_once_and_differentiate_twice():
    norm, theirs = nn.BatchNorm1d(4).double(), nn.BatchNorm1d(4).double()
    fast = compiled(norm)
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    for run in (fast, theirs):
        (g,) = torch.autograd.grad(run(x).pow(3).sum(), x, create_graph=True)
        g.square().sum().backward()
    torch.testing.assert_close(norm.state_dict(), theirs.state_dict())
    torch.testing.assert_close(norm.weight.grad, theirs.weight.grad)


def test_other_sizes():
    net = nn.Linear(4, 4)
    fast = compiled(net)
    for size in (3, 5, 7, 3):
        net.zero_grad()
        x = torch.randn(size, 4)
        fast(x).square().sum().backward()
        expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
        torch.testing.assert_close([p.grad for p in net.parameters()], list(expected))


def test_backward_in_another_thread_and_many_at_once():
    w = torch.randn(8, 8, requires_grad=True)
    fast = compiled(lambda x, w: torch.tanh(x @ w).sum())
    x = torch.randn(4, 8)
    fast(x, w).backward()
    expected, w.grad = w.grad, None
    found = []

    def work(_thread):
        for _ in range(20):
            (g,) = torch.autograd.grad(fast(x, w), w)
            found.append(g)

    in_threads(work, range(4))
    assert len(found) == 80
    for g in found:
        torch.testing.assert_close(g, expected)


def test_hooks_of_tensors_and_of_the_node():
    w = torch.randn(3, requires_grad=True)
    fast = compiled(lambda w: w.exp())
    out = fast(w)
    seen = []
    out.register_hook(lambda g: g * 2)
    out.grad_fn.register_hook(lambda gi, go: seen.append(len(gi)))
    out.sum().backward()
    torch.testing.assert_close(w.grad, 2 * w.detach().exp())
    assert seen == [1]


def test_nothing_is_left_of_a_graph_that_is_dropped():
    import gc
    import weakref

    w = torch.randn(64, 64, requires_grad=True)
    fast = compiled(lambda w: w.exp().tanh())
    out = fast(w)
    node = weakref.ref(out)
    del out
    gc.collect()
    assert node() is None
    fast(w).sum().backward()


def test_double_backward_can_be_switched_off():
    w = torch.randn(3, requires_grad=True)
    fast = compiled(lambda w: (w**3).sum(), double_backward=False)
    fast(w).backward()
    with pytest.raises(RuntimeError, match="compiled with double_backward=False"):
        torch.autograd.grad(fast(w), w, create_graph=True)


@each_compiler
def test_a_result_that_is_an_argument_leaves_the_argument_a_leaf(compiler):
    """torch's dropout returns an empty tensor itself."""
    torch._dynamo.reset()
    scaled = compiler(lambda x: F.dropout(x, 0.5) * 1)
    returned = compiler(lambda x: F.dropout(x, 0.5))
    for rows in (3, 5, 0):
        for f in (scaled, returned):
            x = torch.randn(rows, 4, requires_grad=True)
            f(x).sum().backward()
            assert x.is_leaf
            assert x.grad.shape == (rows, 4)


@pytest.mark.parametrize("options", [{}, {"joint_trace": True}])
def test_gradients_of_two_leaves_share_no_memory(options):
    """Autograd takes a gradient for a leaf's own and adds the next one in place."""

    def f(a, b):
        return (a + b.view(3)).sin()

    fast = staticrt.compile(f, **options)
    leaves = [torch.randn(3, requires_grad=True), torch.randn(3, 1, requires_grad=True)]
    expected = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    for _ in range(3):
        fast(*leaves).sum().backward()
        f(*expected).sum().backward()
    torch.testing.assert_close([x.grad for x in leaves], [x.grad for x in expected])


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.scale, self.norm = nn.Parameter(torch.tensor(2.0)), nn.LayerNorm(8)

    def forward(self, x):
        hidden = self.first(x)
        return hidden * self.scale + self.norm(self.second(hidden).tanh()) + x


@each_compiler
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        Residual,
    ],
)
def test_gradients_of_parameters_are_accumulated_in_eagers_order(compiler, make):
    model = make()
    order = []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _p, name=name: order.append(name))
    x = torch.randn(2, 3, 8)
    model(x).square().sum().backward()
    expected = list(order)
    fast = compiler(model)
    for _call in range(2):
        order.clear()
        fast(x).square().sum().backward()
        assert order == expected


@each_compiler
def test_a_hook_that_raises_leaves_the_gradients_that_eager_leaves(compiler):
    def stop(_grad):
        raise ValueError("stop")

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model[2].weight.register_hook(stop)
    left = []
    for run in (model, compiler(model)):
        model.zero_grad()
        with pytest.raises(ValueError, match="stop"):
            run(torch.ones(2, 8)).sum().backward()
        left.append([name for name, parameter in model.named_parameters() if parameter.grad is not None])
    assert left == [["2.bias"]] * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda w: torch.linalg.solve(w @ w.t() + 4 * torch.eye(4), w).square().sum(),
        lambda w: torch.cholesky_solve(w, torch.linalg.cholesky(w @ w.t() + 4 * torch.eye(4))).square().sum(),
        lambda w: torch.linalg.inv(w @ w.t() + torch.eye(4)).cos().sum() + torch.linalg.inv(w + w.t()).sum(),
        lambda w: torch.linalg.eig(w)[1].abs().sum(),  # its backward checks, too
    ],
)
def test_checks_of_matrices_run_in_the_program(function):
    """AOTAutograd keeps the order of the checks by tokens, which are inputs and results of its graphs."""
    torch.manual_seed(0)
    w = torch.randn(4, 4, requires_grad=True)
    fast = compiled(function)
    for _ in range(3):
        found = torch.autograd.grad(fast(w), w)
        torch.testing.assert_close(found, torch.autograd.grad(function(w), w), rtol=1e-4, atol=1e-4)
    graphs = debug_state()[-1]["graphs"]
    assert [plan["fallback"] for graph in graphs for plan in graph["plans"].values()] == [""] * 2


@pytest.mark.parametrize("node", ["aot", "native"])
def test_a_matrix_that_cannot_be_inverted_raises_as_in_eager(node):
    def function(a, w):
        return torch.linalg.solve(a, w * 2), w.sin()

    fast = compiled(function, backward_node=node)
    w = torch.randn(3, 3, requires_grad=True)
    for a in (torch.eye(3), torch.zeros(3, 3), 2 * torch.eye(3)):
        if a.any():
            torch.testing.assert_close(fast(a, w), function(a, w))
            continue
        for run in (fast, function):
            with pytest.raises(torch.linalg.LinAlgError, match="solve: The solver failed because"):
                run(a, w)
