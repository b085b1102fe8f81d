"""Inputs at fixed places, limits on re-captures and sizes, random numbers, autograd's view of cached outputs."""

import pytest
import torch

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import cubed, empty


def scale(args):
    w, x = empty(args)
    return [w * x]


def test_a_parameter_swapped_and_back(tree):
    f = tree.boxed(scale, static_inputs=(0,))
    a, b = torch.full((4,), 2.0), torch.full((4,), 3.0)
    for weight in (a, a, a, b, b, a, b):
        assert torch.equal(f([weight, torch.ones(4)])[0], weight)
    assert tree.captures == 2  # one for each place, and none again


def test_own_parameters_of_two_modules(tree):
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    f = tree.boxed(lambda args: (lambda w, b, x: [x @ w.T + b])(*empty(args)), static_inputs=(0, 1))
    with torch.no_grad():
        for module in (first, second, first, second, first):
            x = torch.randn(2, 4)
            out = f([module.weight.detach(), module.bias.detach(), x])[0]
            torch.testing.assert_close(out, module(x))
    assert tree.captures == 2


def test_churn_of_static_inputs_is_not_counted(make_tree):
    tree = make_tree(recapture_limit=0)
    f = tree.boxed(scale, static_inputs=(0,))
    kept = []
    for number in range(6):
        kept.append(torch.full((4,), float(number)))
        assert torch.equal(f([kept[-1], torch.ones(4)])[0], kept[-1])
    assert tree.skips() == 0


def test_a_parameter_that_moves_below_a_parent(tree):
    f, g = tree.boxed(lambda args: [empty(args)[0] + 1]), tree.boxed(scale, static_inputs=(0,))
    a, b = torch.full((4,), 2.0), torch.full((4,), 3.0)
    for weight in (a, a, a, b, b, a):
        with tree.step():
            y = f([torch.ones(4)])[0]
            assert torch.equal(g([weight, y])[0], weight * 2)
    assert tree.root_children() == [2]
    assert tree.captures == 3


@pytest.mark.parametrize(("limit", "skips", "captures"), [(0, 1, 2), (1, 0, 3)])
def test_a_path_tensor_replaced_by_a_clone(make_tree, limit, skips, captures):
    tree = make_tree(recapture_limit=limit)
    f, g = tree.boxed(lambda args: [empty(args)[0] + 1]), tree.boxed(lambda args: [empty(args)[0] * 2])

    def call(moved):
        with tree.step():
            y = f([torch.ones(4)])[0]
            given = [y.clone() if moved else y]
            del y
            assert torch.equal(g(given)[0], torch.full((4,), 4.0))

    for _ in range(5):
        call(False)
    if skips:
        with pytest.warns(
            UserWarning, match=r"more than 0 unexpected mismatches.*input 0 was captured as output"
        ):
            call(True)
    else:
        call(True)
    assert tree.skips() == skips
    assert tree.captures == captures


def test_a_misaligned_static_input_is_copied(tree):
    f = tree.boxed(lambda args: (lambda x: [x + x])(*empty(args)), static_inputs=(0,))
    for _ in range(4):
        inp = torch.ones(20)[1:]
        out = f([inp])[0]
        assert torch.equal(out, inp + inp)
        del out
    assert tree.node.ptrs == [None]
    assert tree.captures == 1


def test_too_many_sizes_are_warned_of_once(make_tree):
    tree = make_tree(max_sizes_unwarned=1)
    f = tree.wrap(lambda x, n: x * n)
    with pytest.warns(UserWarning, match="2 distinct sizes") as caught:  # noqa: PT031
        for size in (2, 3, 4):
            for _ in range(3):
                f(torch.ones(size), size)
    assert len([w for w in caught if "distinct sizes" in str(w.message)]) == 1


@pytest.mark.parametrize(("sizes", "captures"), [((), 0), ((2,), 1), ((2, (3,)), 2)])
def test_only_listed_sizes_are_captured(make_tree, sizes, captures):
    tree = make_tree(capture_sizes=sizes)
    f = tree.wrap(lambda x, n: x * n)
    for size in (2, 3, 4):
        for _ in range(3):
            assert torch.equal(f(torch.ones(size), size), torch.full((size,), float(size)))
    assert (tree.captures if tree.manager is not None else 0) == captures


def test_draws_repeat_after_a_seed(tree):
    f = tree.wrap(lambda: torch.rand(20))
    torch.manual_seed(0)
    first = [f().clone() for _ in range(3)]
    torch.manual_seed(0)
    again = [f().clone() for _ in range(3)]
    torch.manual_seed(0)
    eager = [torch.rand(20) for _ in range(3)]
    for a, b, c in zip(first, again, eager, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_values_that_decide_run_plain(make_tree):
    for policy in (Policy(), Policy.upstream()):
        tree = make_tree(policy=policy)
        item = tree.wrap(lambda x: x * x.sum().item())
        where = tree.wrap(lambda x: x.nonzero())
        for values in ([1.0, 0.0, 2.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0]):
            x = torch.tensor(values)
            assert torch.equal(item(x), x * x.sum())
            assert torch.equal(where(x), x.nonzero())
        assert tree.captures == 0
        assert "depends on values" in str(tree.ctx.explain())


def test_captured_parts_around_an_uncaptured_one(tree):
    first, last = tree.boxed(lambda args: [empty(args)[0] * 2]), tree.boxed(lambda args: [empty(args)[0] + 1])
    for number in range(5):
        with tree.step():
            x = torch.full((3,), float(number))
            y = first([x])[0]
            sizes = int(y.sum().item())  # between captured parts
            assert torch.equal(last([y + sizes])[0], x * 2 + number * 6 + 1)
    assert tree.captures == 2


def test_hooks_of_cached_outputs_are_reset(tree):
    f = tree.wrap(lambda x: x + x)
    for _ in range(3):
        out = f(torch.ones(2))
    hooked = out.requires_grad_()
    hooked.register_hook(lambda g: g * 100)
    del hooked, out
    out = f(torch.ones(2))
    assert out._backward_hooks is None


def test_outputs_are_not_cached_by_autocast(tree):
    f = tree.wrap(lambda x: x + x)
    for _ in range(3):
        out = f(torch.rand(4, 4))
    out.requires_grad_()
    other = torch.rand(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        once = out @ other
        out.detach().zero_()
        again = out @ other
    assert not torch.equal(once, again)


def test_a_forward_whose_backward_is_not_captured(tree):
    f = cubed(tree, capture_backward=False)
    for _ in range(3):
        x = torch.rand(4, 4, requires_grad=True)
        f(x).sum().backward()
        torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)
    assert tree.captures == 1
    assert not tree.ctx.generations.pending


def test_one_of_two_backwards_never_runs(tree):
    first, second = cubed(tree), cubed(tree)
    for _ in range(3):
        x, y = (torch.rand(4, 4, requires_grad=True) for _ in range(2))
        with tree.step():
            out, unused = first(x), second(y)
        out.sum().backward()
        del unused
    assert not tree.ctx.generations.pending
    assert tree.captures == 3


def test_what_a_backward_kills(cold):
    def forward(args):
        (x,) = empty(args)
        mask = (x > 0.4).float()
        y = x * 2
        return [y.sin() * mask, y, mask]

    def backward(args):
        y, mask, gradient = empty(args)
        return [gradient * mask * y.cos() * 2]

    from tests.support.graph_harness import Trained

    f = Trained(cold, forward, backward)
    x = torch.rand(4, 4, requires_grad=True)
    out = f(x)
    out.sum().backward()
    assert cold.root_children() == [1]
    node = cold.node
    assert node.dead_before == []
    assert node.dead_after == [(0, 1), (0, 2)]
    assert out.shape == (4, 4)
