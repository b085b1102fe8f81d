"""What a compiled region must keep of eager's semantics: aliases, writes, hooks, modes, undefined gradients."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from staticrt import training


def _net(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def _rows(width=16):
    return lambda call: (torch.randn(3 + 2 * call, width, requires_grad=True),)


def test_three_calls_and_other_sizes(against_eager):
    against_eager(_net(), _rows(), calls=5)


def test_graph_break(against_eager):
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.first(x).tanh()
            torch._dynamo.graph_break()
            return self.second(y) * (2.0 if y.sum() > 0 else 3.0)

    against_eager(Broken(), _rows(8), calls=5)


def test_written_argument(against_eager):
    def function(x, w):
        x.mul_(2)
        return x * w

    against_eager(function, lambda c: (torch.randn(4 + c), torch.randn(4 + c, requires_grad=True)))


def test_written_argument_that_needs_gradients(door):
    compiled = door(lambda x, w: (x.mul_(w), x.sin())[1])
    results = []
    for run in (compiled, lambda x, w: (x.mul_(w), x.sin())[1]):
        torch.manual_seed(3)
        leaf, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
        x = leaf * 3
        out = run(x, w)
        (out.sum() + x.cos().sum()).backward()
        results.append((out.detach(), x.detach(), leaf.grad, w.grad))
    torch.testing.assert_close(*results)


def test_second_order_of_a_written_argument(door):
    def function(x, w):
        x.mul_(w)
        return x.sin()

    results = []
    for run in (door(function), function):
        torch.manual_seed(3)
        leaf, w = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
        x = leaf * 3
        out = run(x, w)
        total = out.sum() + x.cos().sum()
        slopes = torch.autograd.grad(total, (leaf, w), create_graph=True)
        again = torch.autograd.grad(sum(s.square().sum() for s in slopes), (leaf, w))
        results.append(again)
    torch.testing.assert_close(*results)


def test_writes_into_a_returned_view(door):
    def function(x):
        y = x.sin()
        return y, y[0]

    results = []
    for run in (door(function), function):
        x = torch.linspace(0, 1, 6).reshape(2, 3).requires_grad_()
        y, row = run(x)
        row.mul_(2)
        assert row._base is y or row._base is y._base
        (y * y).sum().backward()
        results.append((y.detach(), x.grad))
    torch.testing.assert_close(*results)


def test_views_of_arguments(door):
    x = torch.randn(3, 4, requires_grad=True)
    compiled = door(lambda x: (x.t(), x.view(-1), x * 2))
    for _call in range(3):
        transposed, flat, double = compiled(x)
        assert transposed._is_view()
        assert transposed._base is x
        assert flat.data_ptr() == x.data_ptr()
        assert not double._is_view()
        (grad,) = torch.autograd.grad((transposed.sum() + flat.square().sum() + double.sum()), x)
        torch.testing.assert_close(grad, 3 + 2 * x.detach())


def test_views_of_intermediates_twice_differentiable(door):
    def function(x):
        y = x**3
        return y[1:], y.view(2, 3)

    results = []
    for run in (door(function), function):
        x = torch.linspace(-1, 1, 6).requires_grad_()
        tail, grid = run(x)
        (slope,) = torch.autograd.grad(tail.sum() + grid.square().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(slope.sum(), x)
        results.append((slope.detach(), again))
    torch.testing.assert_close(*results)


def test_tangent_that_is_not_contiguous(door):
    compiled, x = door(lambda x: x.sin() * 2), torch.randn(4, 6, requires_grad=True)
    for tangent in (torch.randn(6, 4).t(), torch.randn(4, 1).expand(4, 6), torch.randn(4, 12)[:, ::2]):
        (grad,) = torch.autograd.grad(compiled(x), x, tangent)
        torch.testing.assert_close(grad, tangent * 2 * x.detach().cos())


def test_undefined_gradients_stay_undefined(door):
    def function(x, a, b):
        return (x * a).sum(0), (x * b).tanh(), x.mean()

    compiled = door(function)
    for size in (4, 4, 7):
        for used in ((0,), (1,), (2,), (0, 1), (0, 1, 2)):
            grads = []
            for run in (compiled, function):
                torch.manual_seed(size)
                leaves = [torch.randn(size, 3, requires_grad=True) for _ in range(3)]
                outs = run(*leaves)
                sum(outs[i].sum() for i in used).backward()
                grads.append([leaf.grad for leaf in leaves])
            for mine, theirs in zip(*grads, strict=True):
                assert (mine is None) == (theirs is None)
                if theirs is not None:
                    torch.testing.assert_close(mine, theirs)


def test_undefined_gradient_of_an_infinite_branch(door):
    """0 · ∞ would be NaN: the branch that nobody asks for is not computed."""
    compiled = door(lambda x: (x * 2, (x - 1).log()))
    x = torch.ones(3, requires_grad=True)
    compiled(x)[0].sum().backward()
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_undefined_gradient_where_the_other_summand_is_laid_out_otherwise(door):
    """The sum of both gradients is row-major, what remains of it is not; views that follow must not be misled."""

    def function(x):
        y = x.sin()
        return y.mul(2), (y.transpose(0, 1).exp()[:, :3]).matmul(torch.ones(3, 2)).transpose(0, 1)

    compiled = door(function)
    for used in (0, 1, (0, 1)):
        grads = []
        for run in (compiled, function):
            x = torch.linspace(0, 1, 12).reshape(3, 4).requires_grad_()
            outs = run(x)
            sum(outs[i].square().sum() for i in (used if isinstance(used, tuple) else (used,))).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_undefined_gradients_are_plans_of_their_own(door):
    compiled = door(lambda x: (x.sin(), x.cos()))
    x = torch.randn(3, requires_grad=True)
    for used in (0, 1, 0, 1, 0):
        compiled(x)[used].sum().backward()
    (sum(out.sum() for out in compiled(x))).backward()
    state = training.debug_state()[-1]
    (backward,) = [graph for graph in state["graphs"] if graph["role"] == "backward"]
    # The node of door B keeps the plans it was given and asks only once for each.
    assert (backward["misses"], backward["hits"], backward["evicted"]) == (
        3,
        3 if state["door"] == "A" else 1,
        0,
    )
    assert sorted(len(key) for key in backward["plans"]) == [0, 1, 1]


def test_aliased_arguments(against_eager):
    def inputs(call):
        x = torch.randn(4 + call, requires_grad=True)
        return x, x

    against_eager(lambda x, y: x * y.sin(), inputs)


def test_tensor_hooks_that_edit(door):
    net, results = _net(), []
    for run, owner in ((door(net), net), (theirs := copy.deepcopy(net), theirs)):
        owner[0].weight.register_hook(lambda grad: grad * 3)
        x = torch.ones(2, 16, requires_grad=True)
        y = x * 2
        y.register_hook(lambda grad: grad + 1)
        out = run(y)
        out.register_hook(lambda grad: grad.sign())
        out.square().sum().backward()
        results.append([x.grad, *(p.grad for p in owner.parameters())])
    torch.testing.assert_close(*results)


def test_full_backward_hooks_that_edit(door):
    net, results = _net(), []
    theirs = copy.deepcopy(net)
    for owner in (net, theirs):
        owner.register_full_backward_hook(lambda _m, grads, _outs: tuple(g * 2 for g in grads))
    for run, owner in ((door(net), net), (theirs, theirs)):
        x = torch.ones(2, 16, requires_grad=True)
        run(x * 1).square().sum().backward()
        results.append([x.grad, *(p.grad for p in owner.parameters())])
    torch.testing.assert_close(*results)


def test_saved_tensors_hooks_see_what_is_saved(door):
    compiled, net = door(f := (lambda x, w: (x @ w).tanh())), f
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


def test_save_on_cpu_hooks_that_replace(door):
    compiled = door(lambda w: w.exp())
    w = torch.randn(4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 0 + 5):
        out = compiled(w)
    out.sum().backward()
    assert torch.equal(w.grad, torch.full((4,), 5.0))


def test_saved_tensor_edited_in_place_is_caught(door):
    compiled = door(lambda w: w.exp())
    w = torch.randn(4, requires_grad=True)
    out = compiled(w)
    with torch.no_grad():
        out.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_bfloat16_autocast(door):
    net = _net(32)
    theirs, compiled = copy.deepcopy(net), door(net)
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


def test_autocast_inside(against_eager):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.first(x)
            return self.second(y.float())

    against_eager(Mixed(), _rows(8), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_checkpoint(against_eager, budget):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.head = _net(8), nn.Linear(8, 8)

        def forward(self, x):
            y = torch.utils.checkpoint.checkpoint(
                lambda t: F.dropout(self.block(t), 0.3), x, use_reentrant=False
            )
            return self.head(y)

    against_eager(Checkpointed(), _rows(8), activation_memory_budget=budget)


def test_detached_and_integer_outputs(door):
    compiled = door(lambda x: (x.sin(), x.detach() * 2, x.argmax(), x > 0, 3))
    for _call in range(3):
        x = torch.randn(5, requires_grad=True)
        value, detached, index, mask, number = compiled(x)
        assert value.requires_grad
        assert not detached.requires_grad
        assert (index.item(), number) == (x.argmax().item(), 3)
        assert torch.equal(mask, x > 0)
        value.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


def test_dropout_draws_eagers_numbers(against_eager):
    against_eager(lambda x: F.dropout(x, 0.4) + torch.rand_like(x) * x, _rows())


def test_func_grad_and_hessian(door):
    def energy(x):
        return (x.sin() * x**2).sum()

    x = torch.randn(5)
    torch.testing.assert_close(door(torch.func.grad(energy))(x), torch.func.grad(energy)(x))
    torch.testing.assert_close(door(torch.func.hessian(energy))(x), torch.func.hessian(energy)(x))
    torch.testing.assert_close(torch.func.grad(door(energy))(x), torch.func.grad(energy)(x))
    torch.testing.assert_close(
        torch.func.vmap(door(energy))(x.expand(3, 5)), torch.func.vmap(energy)(x.expand(3, 5))
    )


def test_the_same_model_without_gradients(door):
    net, x = _net(), torch.randn(3, 16)
    compiled = door(net)
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

    against_eager(function, _rows())


def test_enable_grad_inside_no_grad(door):
    def function(x):
        with torch.enable_grad():
            return x.sin()

    compiled = door(function)
    for _call in range(2):
        x = torch.randn(3, requires_grad=True)
        with torch.no_grad():
            out = compiled(x)
        out.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


def test_interleaved_forwards_and_backwards(door):
    compiled = door(lambda x, w: (x @ w).tanh().sum())
    w = torch.randn(6, 6, requires_grad=True)
    xs = [torch.randn(4, 6) for _ in range(4)]
    outs = [compiled(x, w) for x in xs]
    for i in (2, 0, 3, 1):
        (grad,) = torch.autograd.grad(outs[i], w)
        (want,) = torch.autograd.grad((xs[i] @ w).tanh().sum(), w)
        torch.testing.assert_close(grad, want)


def test_backward_in_another_thread(door):
    compiled, w = door(lambda w: (w**2).sum()), torch.randn(5, requires_grad=True)
    out, failed = compiled(w), []

    def work():
        try:
            out.backward()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failed
    torch.testing.assert_close(w.grad, 2 * w.detach())


def test_many_threads(door):
    compiled = door(lambda x, w: (x @ w).tanh().sum())
    w = torch.randn(8, 8, requires_grad=True)
    compiled(torch.randn(3, 8), w).backward()
    failed = []

    def work(seed):
        try:
            generator = torch.Generator().manual_seed(seed)
            for _round in range(20):
                x = torch.randn(3, 8, generator=generator)
                (grad,) = torch.autograd.grad(compiled(x, w), w)
                (want,) = torch.autograd.grad((x @ w).tanh().sum(), w)
                torch.testing.assert_close(grad, want)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_error_in_a_hook_leaves_nothing_behind(door):
    compiled = door(lambda x: x.sin() * 2)
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


def test_operator_that_fails_at_run_time_then_works(door):
    compiled = door(lambda x, i: x[i] * 2)
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([9]))
    compiled(x, torch.tensor([1])).sum().backward()
    assert x.grad.tolist() == [0, 2, 0, 0]


def test_results_belong_to_the_caller(door):
    compiled = door(lambda x: (x * 2).relu())
    kept = []
    for call in range(4):
        x = torch.full((3,), float(call + 1), requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        kept.append((out.detach(), x.grad))
    for call, (out, grad) in enumerate(kept):
        assert out.tolist() == [2.0 * (call + 1)] * 3
        assert grad.tolist() == [2.0] * 3
        grad.add_(1)


def test_numpy_in_the_middle(door):
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.from_numpy(np.asarray(x.detach().numpy()) / 2)

        @staticmethod
        def backward(ctx, grad):
            return torch.from_numpy(grad.numpy() / 2)

    def function(x):
        return Half.apply(x.sin() * x).cos()

    results = []
    for run in (door(function), function):
        x = torch.linspace(0, 2, 5).requires_grad_()
        run(x).sum().backward()
        results.append(x.grad)
    torch.testing.assert_close(*results)


def test_custom_function(door):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 5 * x**2  # wrong on purpose: it must be this one that runs

    compiled = door(lambda x: Cube.apply(x.sin()).sum())
    for _call in range(3):
        x = torch.randn(4, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, 5 * x.detach().sin() ** 2 * x.detach().cos())


def test_gradients_inside_the_graph(door):
    """`autograd.grad` and `backward` in the compiled function: upstream refuses them (F7)."""

    def slope(x):
        out = (x**3).sum()
        (grad,) = torch.autograd.grad(out, x)
        return grad * 2

    compiled = door(slope)
    for _call in range(3):
        x = torch.randn(4, requires_grad=True)
        torch.testing.assert_close(compiled(x), 6 * x.detach() ** 2)


def test_requires_grad_inside(door):
    def function(x):
        y = x.detach().requires_grad_()
        return y, (y**2).sum()

    compiled = door(function)
    for _call in range(2):
        y, out = compiled(torch.ones(3))
        out.backward()
        assert y.grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("edited", ["argument", "result"])
@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_base_of_a_saved_view_edited_in_place_is_caught(door, edited, budget):
    def function(x, w):
        y = x * 2 if edited == "result" else x
        return y, y.t() @ w

    x, w = torch.randn(3, 4), torch.randn(3, 5, requires_grad=True)
    y, out = door(function, activation_memory_budget=budget)(x, w)
    (x if edited == "argument" else y).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_one_of_several_views_of_a_written_argument_is_still_its_view(door):
    """Upstream gives such a result memory of its own."""

    def f(x, w):
        x.mul_(w)
        return x.chunk(2)[1]

    compiled = door(f)
    for run in (compiled, f):
        w = torch.randn(4, 3, requires_grad=True)
        x = torch.randn(4, 3)
        out = run(x, w)
        assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        x.detach().fill_(7)
        assert bool((out == 7).all())


def test_a_class_of_tensors_with_methods_of_its_own(door):
    class Named(torch.Tensor):
        def name(self):
            return "named"

    layer = nn.Linear(3, 3)
    compiled = door(layer)
    for _ in range(3):
        x = torch.randn(2, 3)
        layer.zero_grad()
        out = compiled(x.as_subclass(Named))
        assert type(out) is Named
        out.sum().backward()
        torch.testing.assert_close(layer.weight.grad.as_subclass(torch.Tensor), x.sum(0).expand(3, 3))
