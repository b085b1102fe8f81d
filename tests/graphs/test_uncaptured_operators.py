"""Captured parts with something between them that is not captured: one step, whatever lies between."""

import pytest
import torch

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import device, empty

CALLS = 6


@torch.library.custom_op("staticrt_test::uncaptured", mutates_args=())
def uncaptured(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0) * 2


def item(y):
    return y + int(y.sum().item())


def nonzero(y):
    return y[y.nonzero()[:, 0]]


def chosen(y):
    return y[y > 2]


def branch(y):
    return y * 2 if y.sum() > 12 else -y


def custom_operator(y):
    return uncaptured(y)


def numpy(y):
    return torch.from_numpy(y.numpy() + 1)


def written(y):
    return y.mul_(3)


def nothing(y):
    return y


@pytest.fixture(params=["cpu", "cpu_copy", "copy", "rebind"])
def any_tree(request, make_tree):
    return make_tree(device(request.param), Policy())


@pytest.mark.parametrize(
    "between",
    [item, nonzero, chosen, branch, custom_operator, numpy, written, nothing],
    ids=lambda f: f.__name__,
)
def test_between_two_captured_parts(any_tree, between):
    """The part between gets what the first captured part made, and the last one what it makes of that."""
    first = any_tree.boxed(lambda args: (lambda x: [x * 2, x + 1])(*empty(args)), name="first")
    last = any_tree.boxed(lambda args: [empty(args)[0] * 5 + 1], name="last")
    held = []
    for number in range(CALLS):
        x = torch.arange(4.0) + number % 3
        with any_tree.step():
            y, other = first([x])
            (z,) = last([between(y)])
        held.append((z, other, between(x * 2) * 5 + 1, x + 1))
        for z, other, want, more in held:
            assert torch.equal(z, want)
            assert torch.equal(other, more)
    report = any_tree.ctx.explain()
    assert report.skips == ()
    paths = {node.path[-1] for node in report.nodes if node.replays}
    assert "first" in paths
    sizes = 2 if between in (nonzero, chosen) else 1  # of what reaches the last part
    assert len({node.path[-1] for node in report.nodes}) == 2
    assert any_tree.captures >= 1 + sizes
    del y, z, other, held


def test_a_write_in_one_part_is_seen_by_the_others(any_tree):
    """Three parts on one tensor: made, written by a captured part, written between, read."""
    make = any_tree.boxed(lambda args: [empty(args)[0] * 2], name="make")
    write = any_tree.boxed(lambda args: [empty(args)[0].add_(1)], mutated_inputs=(0,), name="write")
    read = any_tree.boxed(lambda args: [empty(args)[0] * 10], name="read")
    for number in range(CALLS):
        with any_tree.step():
            (y,) = make([torch.full((3,), float(number))])
            (same,) = write([y])
            assert same.data_ptr() == y.data_ptr()
            y.mul_(2)
            (z,) = read([y])
        assert torch.equal(y, torch.full((3,), (number * 2.0 + 1) * 2))
        assert torch.equal(z, y * 10)
    assert any_tree.ctx.explain().skips == ()
    assert any_tree.captures == 3
    del y, same, z


def test_sizes_that_change_between_the_parts(any_tree):
    first = any_tree.boxed(lambda args: [empty(args)[0] + 1], name="first")
    last = any_tree.boxed(lambda args: [empty(args)[0] * 2], name="last")
    for number in range(12):
        x, rows = torch.arange(6.0), number % 3 + 1
        with any_tree.step():
            (y,) = first([x])
            (z,) = last([y[:rows]])
        assert torch.equal(z, (x[:rows] + 1) * 2)
    assert any_tree.captures == 4  # the first part, and the last one for each size
    assert any_tree.ctx.explain().skips == ()
    del y, z
