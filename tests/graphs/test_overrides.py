"""`override` and `Policy(captures=)`: who says that a function runs uncaptured, and for how long."""

import threading

import pytest
import torch

import staticrt
from staticrt.errors import OptionError
from staticrt.graphs import GraphContext, override
from staticrt.graphs.policy import Policy
from tests.support.graph_harness import cube, cubed, device


@pytest.fixture(params=["copy", "cpu", "cpu_copy"])
def any_tree(request, make_tree):
    return make_tree(device(request.param), Policy())


def calls(tree, f, number=3):
    for k in range(number):
        assert torch.equal(f([torch.full((3,), float(k))])[0], torch.full((3,), k**3 * 1.0))
    return tree.captures if tree.manager is not None else 0


def test_off_then_on_again(any_tree):
    f = any_tree.boxed(cube, name="cube")
    with override(False):
        assert calls(any_tree, f) == 0
    assert any_tree.ctx.explain().skips[0].reason == "an override says so"
    assert any_tree.ctx.explain().skips[0].calls == 3
    assert calls(any_tree, f) == 1
    replays = any_tree.ctx.explain().replays
    with override(False):
        calls(any_tree, f)
    assert any_tree.ctx.explain().replays == replays
    calls(any_tree, f)
    assert any_tree.ctx.explain().replays == replays + 3


@pytest.mark.parametrize(
    ("outer", "inner", "captured"),
    [
        (False, True, True),
        (True, False, False),
        (False, None, False),
        (None, None, True),
        (False, False, False),
    ],
)
def test_the_innermost_one_decides(any_tree, outer, inner, captured):
    f = any_tree.boxed(cube)
    with override(outer), override(inner):
        assert (calls(any_tree, f) == 1) == captured
    assert calls(any_tree, f) == 1


def test_only_one_direction(any_tree):
    f = any_tree.boxed(cube)
    with override(backward=False):
        assert calls(any_tree, f) == 1


def test_as_a_decorator(any_tree):
    f = any_tree.boxed(cube)

    @override(False)
    def part():
        return calls(any_tree, f)

    assert part() == part() == 0
    assert calls(any_tree, f) == 1


def test_an_exception_ends_it(any_tree):
    f = any_tree.boxed(cube)
    with pytest.raises(ValueError, match="planned"), override(False):
        raise ValueError("planned")
    assert calls(any_tree, f) == 1


def test_it_is_of_one_thread(any_tree):
    f = any_tree.boxed(cube)
    seen = []
    with override(False):
        thread = threading.Thread(target=lambda: seen.append(calls(any_tree, f)))
        thread.start()
        thread.join()
    assert seen == [1]


@pytest.mark.parametrize(
    ("forward", "backward"), [(True, False), (False, True), (False, False), (True, True)]
)
def test_a_backward_follows_its_forward(make_tree, copying, forward, backward):
    tree = make_tree(copying, Policy())
    f = cubed(tree)
    for _ in range(4):
        x = torch.rand(4, requires_grad=True)
        with override(forward, backward):
            out = f(x)
            out.sum().backward()
        torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)
    assert (tree.captures if tree.manager is not None else 0) == forward + backward
    assert not tree.ctx.generations.pending


@pytest.mark.parametrize(
    ("forward", "backward"), [(True, False), (False, True), (False, False), (True, True)]
)
def test_compiled_training(forward, backward):
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with GraphContext("cpu") as context:
        run = staticrt.compile(model, graphs=context)
        for _ in range(3):
            x = torch.randn(3, 4)
            with override(forward, backward):
                out = run(x)
            model.zero_grad()
            out.square().sum().backward()  # outside: what counts is where the forward ran
            got = [p.grad.clone() for p in model.parameters()]
            want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
            torch.testing.assert_close(got, list(want))
        assert context.explain().captures == forward + backward
        del run


def test_a_step_goes_on_through_a_plain_call(make_tree, copying):
    tree = make_tree(copying, Policy())
    f, g, h = (tree.boxed(cube, name=name) for name in "fgh")
    for _ in range(4):
        with tree.step():
            x = f([torch.full((3,), 2.0)])
            with override(False):
                y = g([x[0]])
            z = h(y)
            assert torch.equal(x[0], torch.full((3,), 8.0))
            assert torch.equal(z[0], torch.full((3,), 8.0**9))
    assert tree.captures == 2


def test_wrong_words():
    with pytest.raises(OptionError, match="override: backward is True, False or None, got 'no'"):
        override(backward="no")


def test_a_policy_names_what_is_captured(make_tree):
    asked = []

    def captures(name, mode):
        asked.append((name, mode))
        return name != "left out"

    for name in ("cpu", "cpu_copy"):
        asked.clear()
        tree = make_tree(device(name), Policy(captures=captures))
        f, g = tree.boxed(cube, name="taken"), tree.boxed(cube, name="left out", mode="forward")
        assert calls(tree, f) == 1
        assert calls(tree, g) == 1
        assert asked == [("taken", "inference"), ("left out", "forward")]
        assert [(s.function, s.reason, s.calls) for s in tree.ctx.explain().skips] == [
            ("left out", "the policy does not capture it", 3)
        ]
