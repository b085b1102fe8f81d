"""What is still held when a step ends: it moves out of the pool, once, and whoever sees it goes with it (D1 in docs/design/graphs.md).

Scenarios are those of upstream's cloning of outputs at a boundary; here a boundary is every step, and it moves what
autograd has saved as well.
"""

import pytest
import torch

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import Trained, cube, empty

STEPS = 5


@pytest.fixture
def default(make_tree, copying):
    return make_tree(copying, Policy())


def in_pool(tree, tensor):
    return tensor.untyped_storage().data_ptr() in tree.manager.pool.live_ptrs()


def moved(tree):
    return tree.ctx.explain().rehomed_bytes


def warm(tree, *calls):
    """Warm up and capture; nothing is held afterwards."""
    for _ in range(3):
        with tree.step():
            for call in calls:
                call()
    assert moved(tree) == 0


def test_a_live_output_is_moved_poisoned_or_overwritten(make_tree, copying):
    for rule in ("clone", "error", "reuse"):
        tree = make_tree(copying, Policy(live_outputs=rule))
        f = tree.boxed(cube)
        warm(tree, lambda f=f: f([torch.zeros(4)]))
        out = f([torch.full((4,), 2.0)])[0]
        same = id(out)
        last = f([torch.full((4,), 3.0)])[0]
        assert torch.equal(last, torch.full((4,), 27.0))
        if rule == "clone":
            assert torch.equal(out, torch.full((4,), 8.0))
            assert moved(tree) == 16
            assert not in_pool(tree, out)
        elif rule == "error":
            with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
                out.sum()
        else:
            assert last is out
        assert id(out) == same
        del out, last


def test_a_dead_output_costs_nothing(default):
    f = default.boxed(cube)
    for number in range(STEPS):
        assert f([torch.full((4,), float(number))])[0][0] == number**3
        assert default.live() <= 1
    assert moved(default) == 0


def test_outputs_of_one_storage_are_moved_once_and_stay_together(default):
    f = default.boxed(lambda args: (lambda y: [y[:4], y[2:]])(empty(args)[0] * 2))
    warm(default, lambda: f([torch.ones(6)]))
    head, tail = f([torch.arange(6.0)])
    f([torch.zeros(6)])
    assert moved(default) == 24
    assert head.tolist() == [0, 2, 4, 6]
    assert tail.tolist() == [4, 6, 8, 10]
    head[2:] = -1
    assert tail.tolist() == [-1, -1, 8, 10]


def test_an_alias_that_the_tree_never_saw_follows(default):
    f = default.boxed(cube)
    warm(default, lambda: f([torch.ones(4)]))
    out = f([torch.full((4,), 2.0)])[0]
    aliases = [out[1:], out.detach(), out.view(2, 2).t(), torch.empty(0).set_(out.untyped_storage(), 0, (4,))]
    f([torch.zeros(4)])
    out.add_(1)
    for alias in aliases:
        assert alias.untyped_storage().data_ptr() == out.untyped_storage().data_ptr()
        assert set(alias.flatten().tolist()) == {9.0}
    assert moved(default) == 16


def test_an_alias_of_the_graph_before(default):
    f, g = default.boxed(cube), default.boxed(lambda args: (lambda y: [y[1:], y + 1])(empty(args)[0]))
    warm(default, lambda: g(f([torch.ones(4)])))
    with default.step():
        y = f([torch.full((4,), 2.0)])[0]
        view, more = g([y])
    with default.step():
        g(f([torch.zeros(4)]))
    assert torch.equal(y, torch.full((4,), 8.0))
    assert torch.equal(view, torch.full((3,), 8.0))
    assert torch.equal(more, torch.full((4,), 9.0))
    y.zero_()
    assert view.sum() == 0
    assert moved(default) == 32


def test_only_a_view_is_alive(default):
    f = default.boxed(cube)
    warm(default, lambda: f([torch.ones(4)]))
    views = [f([torch.full((4,), float(n))])[0][2:] for n in range(STEPS)]
    for number, view in enumerate(views):
        assert torch.equal(view, torch.full((2,), number**3 * 1.0))


def test_a_moved_output_is_an_input_like_any_other(default):
    f, g = default.boxed(cube), default.boxed(lambda args: [empty(args)[0] * 10])
    warm(default, lambda: f([torch.ones(4)]), lambda: g([torch.ones(4)]))
    for number in range(STEPS):
        with default.step():
            out = f([torch.full((4,), float(number))])[0]
        with default.step():
            f([torch.zeros(4)])
        with default.step():
            assert torch.equal(g([out])[0], torch.full((4,), 10.0 * number**3))


@pytest.mark.parametrize("times", [1, 2])
def test_saved_for_backward(default, times):
    f = default.boxed(cube)
    warm(default, lambda: f([torch.ones(4)]))
    weight = torch.ones(4, requires_grad=True)
    losses = []
    for number in range(STEPS):
        y = f([torch.full((4,), float(number))])[0]
        losses.append(sum((y * weight for _ in range(times)), torch.zeros(())).sum())
        del y
    for number, loss in enumerate(losses):
        (gradient,) = torch.autograd.grad(loss, weight)
        assert torch.equal(gradient, torch.full((4,), times * number**3 * 1.0))


@pytest.mark.parametrize("only_view", [True, False])
def test_a_view_saved_for_backward(default, only_view):
    f = default.boxed(cube)
    warm(default, lambda: f([torch.ones(4)]))
    weight = torch.ones(2, requires_grad=True)
    saved, bases = [], []
    for number in range(STEPS):
        base = f([torch.full((4,), float(number))])[0]
        saved.append((base[2:] * weight).sum())
        if not only_view:
            bases.append(base)
        del base
    for number, loss in enumerate(saved):
        (gradient,) = torch.autograd.grad(loss, weight)
        assert torch.equal(gradient, torch.full((2,), number**3 * 1.0))
    for number, base in enumerate(bases):
        assert torch.equal(base, torch.full((4,), number**3 * 1.0))


def test_a_view_saved_by_a_captured_forward(default):
    """What a captured forward saves is an alias of its output; many forwards wait for their backwards."""

    def forward(args):
        (x,) = empty(args)
        y = x * x
        return [y, y[1:], x.clone()]

    def backward(args):
        tail, x, gradient = empty(args)
        return [gradient * 2 * x + torch.nn.functional.pad(tail, (1, 0)) * 0]

    f = Trained(default, forward, backward)
    leaves = [torch.full((3,), float(n), requires_grad=True) for n in range(STEPS)]
    outs = [f(leaf) for leaf in leaves]
    for number in (3, 0, 4, 1, 2):
        assert torch.equal(outs[number].detach(), torch.full((3,), number**2 * 1.0))
        outs[number].sum().backward()
        assert torch.equal(leaves[number].grad, torch.full((3,), number * 2.0))


def test_moving_leaves_versions_alone(default):
    """Autograd compares versions of what it saved: moving bytes is not a write."""
    f = default.boxed(cube)
    warm(default, lambda: f([torch.ones(4)]))
    out = f([torch.full((4,), 2.0)])[0]
    before = out._version
    f([torch.zeros(4)])
    assert out._version == before
