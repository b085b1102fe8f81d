"""Which node follows which: roots, branches, steps."""

import warnings

import pytest
import torch

from staticrt.graphs.generations import mark_step_begin
from tests.support.graph_harness import Trained, cube, cubed, empty
from tests.support.threads import in_threads


def twice(function, *args):
    function(*args)
    return function(*args)


def test_two_shapes_make_two_roots(tree):
    f = tree.wrap(lambda x: x * x * x)
    twice(f, torch.ones(4, 4))
    twice(f, torch.zeros(5, 5))
    assert tree.root_children() == [0, 0]


def test_two_shapes_between_eager_runs(tree):
    def plain(x, y):
        return (x + 1) @ y

    f = tree.wrap(plain)
    for size in (20, 40):
        plain(torch.ones(20, 20), torch.ones(20, 20))
        x, y = torch.ones(size, size), torch.rand(size, size)
        for _ in range(3):
            assert torch.equal(f(x, y), plain(x, y))
    assert tree.root_children() == [0, 0]


def test_a_function_called_twice_and_a_sum(tree):
    f, total = tree.boxed(cube), tree.boxed(lambda args: [sum(empty(args))])
    ones = torch.ones(4, 4)

    def both(x):
        with tree.step():
            y = f([x])[0]
            z = f([y])[0]
            return total([y, z])[0]

    both(ones)
    both(ones)
    assert torch.equal(both(ones), ones + ones)
    assert tree.root_children() == [2]


def test_a_path_ends_with_its_step(tree):
    first = tree.boxed(cube)
    second = tree.boxed(lambda args: [args[0] + args.pop(1) if args.pop(0) is not None else None])
    second = tree.boxed(lambda args: (lambda x, y: [x + y])(*empty(args)))
    other = tree.boxed(lambda args: [empty(args)[0] + 4])
    for _ in range(3):
        with tree.step():
            x = torch.ones(4, 4)
            out = second([x, first([x])[0]])
        del out
        with tree.step():
            out = other([torch.ones(4, 4)])
        del out
    with tree.step():
        x = torch.ones(4, 4)
        second([x, first([x])[0]])
    assert tree.root_children() == [1, 0]


def test_a_branch_after_a_replay(tree):
    start = tree.boxed(lambda args: (lambda x: [x + x, (x + x).sum() > 0])(*empty(args)))
    up = tree.boxed(lambda args: [empty(args)[0] + 10])
    down = tree.boxed(lambda args: [empty(args)[0] - 10])

    def run(x):
        with tree.step():
            y, positive = start([x])
            given = [y]
            del y
            return (up if positive else down)(given)[0]

    inp = torch.zeros(4, 4)
    for _ in range(2):
        assert torch.equal(run(inp), torch.full((4, 4), -10.0))
    inp.add_(1)
    expected = torch.full((4, 4), 12.0)
    warm = run(inp)
    assert torch.equal(warm, expected)
    assert tree.live() == 1
    kept = run(inp)
    assert torch.equal(kept, expected)
    assert tree.live() == 1
    del warm
    assert tree.live() == 1
    del kept
    assert tree.live() == 0
    out = run(inp)
    assert torch.equal(out, expected)
    assert tree.live() == 0


def test_outputs_of_three_branches(tree):
    start = tree.wrap(lambda x: x + x + x)
    test = tree.wrap(lambda y: y.sum() <= 0)
    ten = tree.wrap(lambda y: y * 10)

    def run(x):
        with tree.step():
            y = start(x)
            return y if test(y) else ten(y)

    out1 = twice(run, torch.zeros(5))
    out2 = twice(run, torch.zeros(6))
    assert tree.live() == 1  # out1 was given up
    out3 = twice(run, torch.ones(5))
    assert torch.equal(out3, torch.full((5,), 30.0))
    assert tree.live() == 1
    del out1, out2
    assert tree.live() == 1
    del out3
    assert tree.live() == 0


def test_an_output_returned_across_a_break(tree):
    start = tree.wrap(lambda x: (x + x + x, x + x + x + 1))
    square = tree.wrap(lambda x: (x * x).sum() > 0)
    more = tree.wrap(lambda y: y + 1)

    def run(x):
        with tree.step():
            x, y = start(x)
            positive = square(x)
            del x
            return more(y) if positive else y

    twice(run, torch.zeros(5))
    assert tree.restores == 0
    out = twice(run, torch.ones(5))
    assert torch.equal(out, torch.full((5,), 5.0))
    assert tree.live() == 1
    del out
    assert tree.live() == 0
    assert tree.restores == 2  # to warm `more` up, and to capture it


def test_more_calls_capture_nothing(tree):
    f = tree.wrap(lambda x: x @ x)
    for _ in range(6):
        x = torch.rand(10, 10)
        assert torch.equal(f(x), x @ x)
    assert tree.captures == 1


def test_each_integer_is_warmed_up_and_captured(tree):
    ran = 0

    def body(args):
        nonlocal ran
        _size, x = empty(args)
        ran += 1
        return [x * 2]

    f = tree.boxed(body)
    for size, expected in ((2, 2), (3, 4)):
        x = torch.randn(size)
        for _ in range(3):
            assert torch.equal(f([size, x])[0], x * 2)
        assert ran == expected


def test_two_forwards_then_a_backward(tree):
    first, second = cubed(tree), cubed(tree)
    ones = torch.ones(4, 4, requires_grad=True)
    out = first(ones)
    out2 = second(out)
    assert tree.live() == 4  # two outputs, two saved squares
    assert tree.ctx.generations.pending
    out2.sum().backward()
    assert not tree.ctx.generations.pending
    del out, out2
    ones.grad = None  # lies in the pool under these rules
    second(first(ones)).sum().backward()
    first(ones.detach())
    assert tree.captures > 0


def test_marks_reach_a_capture(tree):
    f = cubed(tree)
    mark_step_begin()
    out = f(torch.rand(4, 4, requires_grad=True))
    mark_step_begin()
    out = f(torch.rand(4, 4, requires_grad=True))
    assert out is not None
    assert tree.captures == 1


def test_pending_backwards_are_warned_of(tree):
    f = cubed(tree)
    kept = [f(torch.rand(4, 4, requires_grad=True)) for _ in range(2)]
    with pytest.warns(UserWarning, match="Unable to hit fast path"):
        kept.append(f(torch.rand(4, 4, requires_grad=True)))
    assert tree.captures == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept.append(f(torch.rand(4, 4, requires_grad=True)))


def test_threads_capture_on_their_own(make_tree):
    trees = [make_tree() for _ in range(4)]

    def work(number):
        f = trees[number].wrap(lambda x: x * number + 1)
        for round in range(5):
            x = torch.full((3,), float(round))
            assert torch.equal(f(x), x * number + 1)

    in_threads(work, range(4))
    assert [tree.captures for tree in trees] == [1] * 4


def test_sizes_change_in_forward_and_backward(tree):
    def forward(args):
        (x,) = empty(args)
        y = torch.cat([x, x])
        return [torch.addmm(y, y, y).relu(), y]

    def backward(args):
        y, gradient = empty(args)
        gradient = gradient * (torch.addmm(y, y, y) > 0)
        whole = gradient + gradient @ y.T + y.T @ gradient
        half = y.shape[0] // 2
        return [whole[:half] + whole[half:]]

    f = Trained(tree, forward, backward)
    for rows in (2, 3):
        x = torch.randn(rows, rows * 2, requires_grad=True)
        y = torch.cat([x, x])
        expected = torch.addmm(y, y, y).relu()
        expected.sum().backward()
        gradient, x.grad = x.grad.clone(), None
        for _ in range(3):
            out = f(x)
            out.sum().backward()
            assert torch.allclose(out, expected)
            assert torch.allclose(x.grad, gradient)
            x.grad = None
