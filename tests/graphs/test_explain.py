"""`explain()` of graphs: for each node why it replays or not, bytes copied, memory held."""

import re

import pytest
import torch

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import cube, device, empty


@pytest.fixture
def default(make_tree, copying):
    return make_tree(copying, Policy())


def nodes(tree):
    return {node.path: node for node in tree.ctx.explain().nodes}


def test_a_node_that_replays(default):
    f = default.boxed(cube, name="cube", input_names=["x"])
    for number in range(5):
        f([torch.full((4,), float(number))])
    (node,) = default.ctx.explain().nodes
    assert (node.path, node.replays, node.reason) == (("cube",), 3, "first call here")
    assert node.copied_bytes == 4 * 16
    assert node.inputs == (("input 0 (x)", "copied"),)
    assert node.passed_over == ()
    assert "not replayed" not in str(default.ctx.explain())


def test_a_capture_that_nobody_replayed(default):
    f = default.boxed(cube, name="cube")
    for _ in range(2):
        f([torch.ones(4)])
    assert default.ctx.explain().replays == 0
    assert "not replayed: no later call matched it" in str(default.ctx.explain())


def test_memory_held_by_a_capture(default):
    f = default.boxed(cube, name="cube")
    for _ in range(3):
        out = f([torch.ones(4)])[0]
    assert nodes(default)["cube",].held_bytes == 16 + 16  # the buffer of the input, the output
    view = out[:1]
    del out
    assert nodes(default)["cube",].held_bytes == 32
    del view
    assert nodes(default)["cube",].held_bytes == 16


def test_outputs_that_share_memory_count_once(default):
    f = default.boxed(
        lambda args: (lambda x: (lambda y: [y, y[:2], y.view(2, 2)])(x + x))(empty(args)[0]), name="f"
    )
    for _ in range(3):
        outs = f([torch.ones(4)])
    assert nodes(default)["f",].held_bytes == 32
    del outs


def test_why_a_static_input_is_not_replayed(make_tree, copying):
    tree = make_tree(copying, Policy(unstable_after=None))
    f = tree.boxed(lambda args: (lambda w, x: [w * x])(*empty(args)), static_inputs=(0,), name="scale")
    first, second = torch.ones(3), torch.ones(3)
    for weight in (first, first, first, second, second, second):
        f([weight, torch.ones(3)])
    old, new = tree.ctx.explain().nodes
    assert old.passed_over == (("a static input was at another address", 3),)
    assert new.passed_over == ()
    assert (old.replays, new.replays) == (1, 2)
    assert "was captured as static at" in new.reason
    assert "not replayed: a static input was at another address (3 calls)" in str(tree.ctx.explain())


def test_why_a_held_output_is_not_replayed(default):
    f = default.boxed(lambda args: (lambda x: [x * 2, x + 5])(*empty(args)), name="f")
    g = default.boxed(lambda args: [empty(args)[0] * 9], name="g")
    for _ in range(3):
        with default.step():
            first, second = f([torch.ones(3)])
            given = [first]
            del first, second
            g(given)
    with default.step():
        first, second = f([torch.ones(3)])
        given = [first]
        del first
        g(given)
    nodes = [node for node in default.ctx.explain().nodes if node.path == ("f", "g")]
    assert nodes[0].passed_over == (("an output was alive that was dead at the capture", 1),)
    assert "dead before the capture, is still held" in nodes[1].reason
    del second


def test_inputs_that_share_memory_in_another_way(make_tree):
    tree = make_tree(device("cpu"), Policy())
    f = tree.boxed(lambda args: (lambda a, b: [a + b])(*empty(args)), name="add")
    base = torch.arange(6.0)
    for pair in ((base[:4], base[2:]), (base[:4], base[1:5]), (base[:4], base[2:])):
        assert torch.equal(f(list(pair))[0], pair[0] + pair[1])
    first, second = tree.ctx.explain().nodes
    assert first.passed_over == (("inputs shared memory in another way", 1),)
    assert (first.replays, second.replays) == (1, 0)


def test_what_a_node_of_the_cpu_holds(make_tree):
    tree = make_tree(device("cpu"), Policy())
    table = [1.0, 2.0, 3.0]
    f = tree.boxed(lambda args: [empty(args)[0] * torch.tensor(table)], name="scale")
    for _ in range(3):
        out = f([torch.ones(3)])[0]
    (node,) = tree.ctx.explain().nodes
    assert node.copied_bytes == 0
    assert node.held_bytes == 12  # the table; outputs are the caller's
    assert out.tolist() == table


def test_calls_that_run_plain_are_counted_by_reason(default):
    f = default.wrap(lambda x: x * x.sum().item(), name="scaled")
    g = default.boxed(cube, name="cube")
    for number in range(4):
        f(torch.full((3,), float(number)))
        g([torch.ones(2)])
    report = default.ctx.explain()
    assert [(skip.function, skip.calls) for skip in report.skips] == [("scaled", 3)]  # after its warmup
    assert re.search("depends? on values", report.skips[0].reason)
    assert f"scaled: {report.skips[0].reason}   (3 calls)" in str(report)
    assert [node.path for node in report.nodes] == [("cube",)]
