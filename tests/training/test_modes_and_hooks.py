"""What surrounds a compiled region works as with eager: hooks, autocast, checkpoints, gradient modes, threads, errors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staticrt
from staticrt.api.backend import staticrt_backend
from staticrt.training.double_backward import Replay
from tests.support.compilers import each_compiler_for_gradients
from tests.support.threads import in_threads
from tests.support.training_cases import rows, small_net


def test_tensor_hooks_that_edit(compiler):
    net, results = small_net(), []
    for run, owner in ((compiler(net), net), (theirs := copy.deepcopy(net), theirs)):
        owner[0].weight.register_hook(lambda grad: grad * 3)
        x = torch.ones(2, 16, requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: grad + 1)
        out = run(y)
        out.register_hook(lambda grad: grad.sign())
        out.square().sum().backward()
        results.append([x.grad, *(p.grad for p in owner.parameters())])
    torch.testing.assert_close(*results)


def test_full_backward_hooks_that_edit(compiler):
    net, results = small_net(), []
    theirs = copy.deepcopy(net)
    for owner in (net, theirs):
        owner.register_full_backward_hook(lambda _m, grads, _outs: tuple(g * 2 for g in grads))
    for run, owner in ((compiler(net), net), (theirs, theirs)):
        x = torch.ones(2, 16, requires_grad=True)
        run(x * 1).square().sum().backward()
        results.append([x.grad, *(p.grad for p in owner.parameters())])
    torch.testing.assert_close(*results)


def test_saved_tensors_hooks_see_what_is_saved(compiler):
    compiled, net = compiler(f := (lambda x, w: (x @ w).tanh())), f
    for _call in range(2):
        grads, packed = [], []
        for run in (compiled, net):
            torch.manual_seed(1)
            x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)

            def pack(tensor, packed=packed):
                packed.append(tensor.shape)
                return tensor.clone()

            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                out = run(x, w)
            out.sum().backward()
            grads.append(w.grad)
        assert packed
        torch.testing.assert_close(*grads)


def test_save_on_cpu_hooks_that_replace(compiler):
    compiled = compiler(lambda w: w.exp())
    w = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 0 + 5):
        out = compiled(w)
    out.sum().backward()
    assert torch.equal(w.grad, torch.full((4,), 5.0))


def test_saved_tensor_edited_in_place_is_caught(compiler):
    compiled = compiler(lambda w: w.exp())
    w = torch.randn(4, requires_grad=True)
    out = compiled(w)
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_bfloat16_autocast(compiler):
    net = small_net(32)
    theirs, compiled = copy.deepcopy(net), compiler(net)
    for _call in range(3):
        grads = []
        for run, owner in ((compiled, net), (theirs, theirs)):
            torch.manual_seed(0)
            x = torch.randn(4, 32, requires_grad=True)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = run(x)
                assert out.dtype == torch.bfloat16
                loss = out.float().square().mean()
            loss.backward()
            grads.append([x.grad, *(p.grad.clone() for p in owner.parameters())])
            owner.zero_grad()
        torch.testing.assert_close(*grads, rtol=2e-2, atol=2e-3)


def _solve(x, b):
    return torch.linalg.solve(x @ x.mT + 5 * torch.eye(len(x)), b)


@pytest.mark.parametrize("inside", [False, True])
@each_compiler_for_gradients
def test_a_backward_casts_only_where_it_runs_under_autocast(compiler, inside):
    """The backward of `solve` solves and multiplies in float32, where autocast would multiply in bfloat16."""
    torch._dynamo.reset()
    compiled = compiler(_solve)
    for _call in range(2):
        grads = []
        for run in (compiled, _solve):
            torch.manual_seed(0)
            x, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
            with torch.autocast("cpu", torch.bfloat16):
                loss = run(x, b).square().sum()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
            grads.append((x.grad, b.grad))
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


def test_a_backward_under_autocast_that_casts_nothing_runs_its_program(monkeypatch):
    """Layers in bfloat16 have a backward in bfloat16."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    compiled = staticrt.compile(net)
    monkeypatch.setattr(Replay, "_differentiate", lambda *_: pytest.fail("ran operator by operator"))
    with torch.autocast("cpu", torch.bfloat16):
        for _call in range(2):
            net.zero_grad()
            compiled(torch.ones(2, 8)).float().square().sum().backward()
    assert net[0].weight.grad is not None


def test_autocast_inside(against_eager):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.first(x)
            return self.second(y.float())

    against_eager(Mixed(), rows(8), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_checkpoint(against_eager, budget):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = small_net(8), nn.Linear(8, 8)

        def forward(self, x):
            y = torch.utils.checkpoint.checkpoint(
                lambda t: F.dropout(self.block(t), 0.3), x, use_reentrant=False
            )
            return self.head(y)

    against_eager(Checkpointed(), rows(8), activation_memory_budget=budget)


def test_dropout_draws_eagers_numbers(against_eager):
    against_eager(lambda x: F.dropout(x, 0.4) + torch.rand_like(x) * x, rows())


def test_dropout_of_everything_draws_nothing(compiler):
    def function(x):
        return F.dropout(x * 2, 1.0) + F.dropout(x, 0.5) + torch.native_dropout(x, 1.0, True)[0]

    found = []
    for run in (compiler(function), function, staticrt.compile(function, joint_trace=True)):
        x = torch.tensor([1.0, float("inf"), 3.0, 4.0], requires_grad=True)
        torch.manual_seed(5)
        out = run(x)
        out.sum().backward()
        found.append((out, x.grad, torch.rand(2)))
    torch.testing.assert_close(found[0], found[1], equal_nan=True)
    torch.testing.assert_close(found[2], found[1], equal_nan=True)


def test_func_grad_and_hessian(compiler):
    def energy(x):
        return (x.sin() * x**2).sum()

    x = torch.randn(5)
    torch.testing.assert_close(compiler(torch.func.grad(energy))(x), torch.func.grad(energy)(x))
    torch.testing.assert_close(compiler(torch.func.hessian(energy))(x), torch.func.hessian(energy)(x))
    torch.testing.assert_close(torch.func.grad(compiler(energy))(x), torch.func.grad(energy)(x))
    torch.testing.assert_close(
        torch.func.vmap(compiler(energy))(x.expand(3, 5)), torch.func.vmap(energy)(x.expand(3, 5))
    )


def test_the_same_model_without_gradients(compiler):
    net, x = small_net(), torch.randn(3, 16)
    compiled = compiler(net)
    for _call in range(2):
        with torch.no_grad():
            assert not compiled(x).requires_grad
        out = compiled(x)
        assert out.requires_grad
        torch.testing.assert_close(out, net(x))


def test_no_grad_part_inside(against_eager):
    def function(x):
        with torch.no_grad():
            scale = x.norm()
        return x / scale

    against_eager(function, rows())


def test_enable_grad_inside_no_grad(compiler):
    def function(x):
        with torch.enable_grad():
            return x.sin()

    compiled = compiler(function)
    for _call in range(2):
        x = torch.randn(3, requires_grad=True)
        with torch.no_grad():
            out = compiled(x)
        out.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


@pytest.mark.parametrize("backward_node", ["aot", "auto"])
def test_a_region_called_in_inference_mode(backward_node):
    """Gradients that are turned on inside change nothing: inference mode stays."""
    graph = torch.fx.symbolic_trace(lambda x, w: (torch.tanh(x @ w),))
    x, w = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    for node, value in zip(graph.graph.nodes, (x, w, x @ w, x @ w), strict=False):
        node.meta["example_value"] = value
    region = staticrt_backend(graph, [x, w], options={"backward_node": backward_node})
    for mode in (torch.enable_grad, torch.inference_mode, torch.enable_grad):
        with mode(), torch.enable_grad():
            (out,), want = region(x, w), torch.tanh(x @ w)
        assert (out.is_inference(), out.requires_grad) == (want.is_inference(), want.requires_grad)
        torch.testing.assert_close(out, want)


def test_interleaved_forwards_and_backwards(compiler):
    compiled = compiler(lambda x, w: (x @ w).tanh().sum())
    w = torch.randn(6, 6, requires_grad=True)
    xs = [torch.randn(4, 6) for _ in range(4)]
    outs = [compiled(x, w) for x in xs]
    for i in (2, 0, 3, 1):
        (grad,) = torch.autograd.grad(outs[i], w)
        (want,) = torch.autograd.grad((xs[i] @ w).tanh().sum(), w)
        torch.testing.assert_close(grad, want)


def test_backward_in_another_thread(compiler):
    compiled, w = compiler(lambda w: (w**2).sum()), torch.randn(5, requires_grad=True)
    in_threads(lambda result: result.backward(), [compiled(w)])
    torch.testing.assert_close(w.grad, 2 * w.detach())


def test_many_threads(compiler):
    compiled = compiler(lambda x, w: (x @ w).tanh().sum())
    w = torch.randn(8, 8, requires_grad=True)
    compiled(torch.randn(3, 8), w).backward()

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _round in range(20):
            x = torch.randn(3, 8, generator=generator)
            (grad,) = torch.autograd.grad(compiled(x, w), w)
            (want,) = torch.autograd.grad((x @ w).tanh().sum(), w)
            torch.testing.assert_close(grad, want)

    in_threads(work, range(4))


def test_error_in_a_hook_leaves_nothing_behind(compiler):
    compiled = compiler(lambda x: x.sin() * 2)
    x = torch.randn(4, requires_grad=True)

    def fail(_grad):
        raise ValueError("stop")

    y = x * 1
    handle = y.register_hook(fail)
    with pytest.raises(ValueError, match="stop"):
        compiled(y).sum().backward()
    handle.remove()
    compiled(x * 1).sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().cos())


def test_operator_that_fails_at_run_time_then_works(compiler):
    compiled = compiler(lambda x, i: x[i] * 2)
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]))
    compiled(x, torch.tensor([1])).sum().backward()
    assert x.grad.tolist() == [0, 2, 0, 0]


@pytest.mark.parametrize("edited", ["argument", "result"])
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_base_of_a_saved_view_edited_in_place_is_caught(compiler, edited, budget):
    def function(x, w):
        y = x * 2 if edited == "result" else x
        return y, y.t() @ w

    x, w = torch.randn(3, 4), torch.randn(3, 5, requires_grad=True)
    y, out = compiler(function, activation_memory_budget=budget)(x, w)
    (x if edited == "argument" else y).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
