"""Results that view each other, or inputs, or are inputs: a joint trace makes them anew of what they view."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from tests.support.joint_traces import joint, joint_calls, notes, same_gradients


def _row_of_norm(x, norm):
    y = norm(x * 2)
    return y, y[:, 0]


def _without_gradients(x, _norm):
    y = x * 2
    with torch.no_grad():
        v = y.view(-1)
    return y, y.detach(), v


def _only_views(x, _norm):
    y = (x * 2).sin()
    return y.view(-1), y.t()


FUNCTIONS = {
    "a view and what it views": lambda x, _norm: (lambda y: (y.t(), y))(x * 2),
    "views of one tensor": _only_views,
    "pieces": lambda x, _norm: (x * 2).chunk(2, dim=1),
    "unbound": lambda x, _norm: (x.exp()).unbind(1),
    "a piece and the whole": lambda x, _norm: (lambda y: (y.split(2, 1)[1], y, y.sum()))(x.exp()),
    "chains": lambda x, _norm: (lambda y: (y.view(-1)[1:].unsqueeze(0), y.diagonal(), y[0].expand(3, -1)))(
        x * x
    ),
    "an input": lambda x, _norm: (x, x * 2),
    "views of an input": lambda x, _norm: (x[0], x.t(), x.sum()),
    "a view of an input that nothing else reads": lambda x, norm: (x[1:], norm.weight * 2),
    "an input given twice": lambda x, _norm: (x, [x, x.cos()]),
    "a parameter": lambda x, norm: (norm.weight, norm.weight[1:], norm(x)),
    "with written buffers": _row_of_norm,
    "without gradients": _without_gradients,
    "data": lambda x, _norm: (lambda y: (y, y.data, y.data[1:], y.data.data + y.tanh().data.exp()))(
        x.sigmoid()
    ),
    "integers": lambda x, _norm: (lambda i: (i, i.t(), x.sin()))(x.argsort()),
    "by sizes": lambda x, _norm: (lambda y: (y, y.view(y.shape[1], y.shape[0]), y[: y.shape[0] // 2]))(
        x.tan()
    ),
}


def _tensors(out):
    return torch.utils._pytree.tree_leaves(out)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_that_are_views(name):
    function = FUNCTIONS[name]
    norm = nn.BatchNorm1d(4)
    nn.init.normal_(norm.weight)
    ways = []
    for compiles in (True, False):
        own = copy.deepcopy(norm)
        ways.append(((joint if compiles else (lambda f: f))(lambda x, own=own: function(x, own)), own))
    for call in range(5):
        found = []
        for run, own in ways:
            torch.manual_seed(call)
            x = torch.randn(3 + call // 2, 4, requires_grad=True)
            out = run(x)
            outs = _tensors(out)
            same = [a is b or (a._is_view() and a._base is b) for a in outs for b in (*outs, x, own.weight)]
            memory = [
                a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in outs for b in (*outs, x)
            ]
            facts = [(t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.is_leaf) for t in outs]
            sum((k + 1) * t.sin().sum() for k, t in enumerate(outs) if t.requires_grad).backward()
            found.append((outs, x.grad, own.weight.grad, dict(own.state_dict()), same, memory, facts))
        got, want = found
        torch.testing.assert_close(got[:4], want[:4])
        if name not in (
            "views of one tensor",
            "chains",
            "pieces",
            "unbound",
        ):  # of which the base is no result
            assert got[4] == want[4]
        assert got[5:] == want[5:]
    assert joint_calls(ways[0][0]) == 5, notes(ways[0][0])


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"without gradients", "by sizes"}))
def test_views_need_no_python(name):
    norm = nn.BatchNorm1d(4)
    compiled = joint(lambda x: FUNCTIONS[name](x, norm))
    x = torch.randn(4, 4, requires_grad=True)
    for _call in range(4):
        compiled(x)
    before = compiled.__inspectable__().fast_calls
    kept = norm.running_mean.clone(), norm.running_var.clone()
    outs = _tensors(compiled(x))
    norm.running_mean, norm.running_var = kept
    for out, want in zip(outs, _tensors(FUNCTIONS[name](x, norm)), strict=True):
        torch.testing.assert_close(out, want)
        assert (out.is_leaf, out._is_view()) == (want.is_leaf, want._is_view())
    assert compiled.__inspectable__().fast_calls == before + 1


@pytest.mark.parametrize("written", [0, 1])
def test_writes_to_such_results(written):
    def function(x):
        y = x * 2
        return y.view(-1), y

    compiled = joint(function)
    for _call in range(3):
        found = []
        for run in (compiled, function):
            x = torch.arange(6.0).view(2, 3).requires_grad_()
            outs = run(x)
            outs[written].mul_(3)
            (outs[0].sum() + outs[1].pow(2).sum()).backward()
            found.append((outs, x.grad))
        torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 3


def test_second_derivatives_through_views():
    def function(x):
        y = x.sin() * x
        return y.view(-1), y.t(), x[0]

    compiled = joint(function)
    found = []
    for run in (compiled, function):
        torch.manual_seed(0)
        x = torch.randn(2, 3, requires_grad=True)
        a, b, c = run(x)
        (first,) = torch.autograd.grad(a.pow(2).sum() + b.sin().sum() + c.pow(3).sum(), x, create_graph=True)
        first.pow(2).sum().backward()
        found.append((first, x.grad))
    torch.testing.assert_close(*found)
    assert joint_calls(compiled) == 1


def test_a_custom_function_that_returns_a_view_is_not_taken_for_the_view():
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -g

    def function(x):
        return Reverse.apply(x), x.sin()

    compiled = joint(function)
    for _call in range(2):
        x = torch.randn(3, requires_grad=True)
        a, b = compiled(x)
        (a.sum() + b.sum()).backward()
        torch.testing.assert_close(x.grad, x.detach().cos() - 1)


def test_a_module_that_hands_its_mask_on():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x, mask):
            return self.lin(x) * mask, mask

    torch.manual_seed(0)
    model = Block()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for size in (2, 2, 5):
        x, mask = torch.randn(size, 4), torch.ones(size, 1)
        out, same = compiled(x, mask)
        assert same is mask
        out.sum().backward()
        eager(x, mask)[0].sum().backward()
    same_gradients(model, eager)
    assert joint_calls(compiled) == 3


def flattened(x):
    y = x * 2
    return y, y.t().reshape(-1)


def written_after_a_flattening(x):
    y = x * 2
    flat = y.t().reshape(-1)
    flat.mul_(3)
    return y * 1, flat * 1


def written_after_contiguous(x):
    y = x * 2
    z = y.t().contiguous()
    y.mul_(3)
    return (z * 1,)


@pytest.mark.parametrize("model", [flattened, written_after_a_flattening, written_after_contiguous])
def test_copies_that_are_views_at_sizes_of_one(model):
    compiled = staticrt.compile(model)
    for rows in (3, 5, 4, 1, 2, 1):
        x = torch.randn(rows, 3, requires_grad=True)
        got, expected = compiled(x), model(x)
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        # Only where it is a view in eager, one result shares memory with the other.
        memory = [[y.untyped_storage().data_ptr() for y in results] for results in (got, expected)]
        assert len({*memory[0]}) == len({*memory[1]})
        gradients = [torch.autograd.grad(sum(y.square().sum() for y in each), x) for each in (got, expected)]
        torch.testing.assert_close(*gradients)
    assert {trace.route for trace in compiled.explain().traces} == {"training"}
