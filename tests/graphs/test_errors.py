"""Uses after an overwrite, functions that go, exceptions in every phase."""

import contextlib
import gc

import pytest
import torch

from staticrt.errors import CaptureError
from staticrt.graphs.policy import Policy
from tests.support.fake_graph_backend import FakeBackend, Fault
from tests.support.graph_harness import cube, cubed, empty


class Interrupt(BaseException):
    pass


def test_use_after_an_overwrite_twice(tree):
    f = tree.boxed(cube, stack_traces=["  File model.py, line 3\n"])
    inp = torch.rand(4)
    out = f([inp])[0]
    out2 = f([inp])[0]
    with pytest.raises(
        RuntimeError, match=r"overwritten by a subsequent run. Stack trace: File model.py, line 3"
    ):
        out + out
    f([inp])
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        out2 + out2


def test_a_captured_output_is_poisoned_by_the_next_step(tree):
    f, g = tree.boxed(cube), tree.boxed(cube)
    inp = torch.rand(4)
    f([inp])
    out = f([inp])[0]
    g([inp])
    with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
        out + out


def test_poison_reaches_every_access(tree):
    f = tree.boxed(cube)
    inp = torch.rand(4, 4)
    out = f([inp])[0]
    view, detached = out[0], out.detach()
    f([inp])
    for use in (
        lambda: out + 1,
        lambda: view + 1,
        lambda: detached + 1,
        lambda: str(out),
        lambda: out.numpy(),
        lambda: out.data_ptr(),
        lambda: torch.add(inp, inp, out=out),
        lambda: out.untyped_storage().data_ptr(),
    ):
        with pytest.raises(RuntimeError, match="overwritten by a subsequent run"):
            use()


def test_gradients_have_their_own_text(tree):
    f = cubed(tree)
    x = torch.ones(4, requires_grad=True)
    f(x).sum().backward()
    gradient = x.grad
    x.grad = None
    f(x).sum().backward()
    with pytest.raises(RuntimeError, match="accessing gradient tensor output"):
        gradient + 1


def test_functions_go_while_outputs_live(cold):
    f = cold.wrap(lambda x: (x + 1 + 2, x * 10))
    inp = torch.rand(4)
    f(inp)
    out1, out2 = f(inp)
    del f
    cold.drop()
    assert cold.ctx.manager is None
    assert torch.equal(out1, inp + 1 + 2)
    assert torch.equal(out2, inp * 10)


def test_wrong_number_of_stack_traces_is_no_matter(tree):
    f = tree.boxed(lambda args: (lambda x: [x + 1, x + 2])(*empty(args)), stack_traces=["only one"])
    inp = torch.rand(4)
    _out1, out2 = f([inp])
    f([inp])
    with pytest.raises(RuntimeError, match="Could not find stack trace"):
        out2 + 1


def keeping(tree):
    """A function that keeps a result, and the list in which it keeps them."""
    kept = []

    def f(args):
        (x,) = empty(args)
        kept.append(x * 2)
        return [x + 1]

    return tree.boxed(f), kept


def test_memory_left_in_the_pool_is_reported(tree):
    f, kept = keeping(tree)
    with pytest.raises(RuntimeError, match="in the graph pool are not outputs"):
        f([torch.rand(4)])
    kept.clear()
    tree.ctx.close()


def test_memory_in_a_cycle_is_no_leak(tree):
    """Garbage that only the collector finds is nobody's."""

    def f(args):
        (x,) = empty(args)
        cycle = [x * 2]
        cycle.append(cycle)
        return [x + 1]

    f = tree.boxed(f)
    gc.disable()
    try:
        for _ in range(4):
            x = torch.rand(4)
            assert torch.equal(f([x])[0], x + 1)
    finally:
        gc.enable()
    assert tree.captures == 1


def test_memory_left_in_the_pool_makes_the_function_plain(make_tree):
    tree = make_tree(policy=Policy())
    f, kept = keeping(tree)
    with pytest.warns(UserWarning, match="keeps memory of the capture that it does not return"):
        f([torch.ones(4)])
    for value in range(3):
        assert torch.equal(f([torch.full((4,), float(value))])[0], torch.full((4,), value + 1.0))
    assert [k[0].item() for k in kept] == [2.0, 0.0, 2.0, 4.0]
    assert "keeps memory" in str(tree.ctx.explain())
    kept.clear()


PHASES = ["warmup", "capture", "capture_end", "replay"]


@pytest.mark.parametrize("device", ["copy", "rebind"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", [Fault, torch.OutOfMemoryError, Interrupt, KeyboardInterrupt])
def test_a_failure_in_any_phase_leaves_everything_usable(make_tree, device, phase, kind):
    error = kind("planned")
    backend = FakeBackend(device)
    tree = make_tree(backend, Policy())
    f = tree.boxed(lambda args: (lambda x: [x * 2, x + 1])(*empty(args)))
    before, _other = f([torch.ones(3)])
    g = tree.boxed(lambda args: (lambda x: [x * 3])(*empty(args)))
    backend.faults[phase] = [error]
    for number in range(6):
        x = torch.full((3,), float(number))
        given = [x]
        with contextlib.suppress(kind):
            with tree.step():
                out = g(given)[0]
            assert torch.equal(out, x * 3)
            (out2, _other) = f([x])
            assert torch.equal(out2, x * 2)
        assert torch.equal(before, torch.full((3,), 2.0))
        assert torch.equal(x, torch.full((3,), float(number)))
    error.__traceback__ = None  # it holds the frames, and they the functions
    assert not backend.faults[phase] or (device == "rebind" and phase == "warmup")
    tree.manager.validate()


@pytest.mark.parametrize("device", ["copy", "rebind"])
def test_a_function_that_raises(make_tree, device):
    tree = make_tree(FakeBackend(device), Policy())
    fail = [False, False, True, False, True, False, False]
    runs = iter(fail)

    def f(args):
        (x,) = empty(args)
        y = x * 2
        if next(runs):
            raise ValueError("not today")
        return [y + 1]

    f = tree.boxed(f)
    for number in range(4):
        x = torch.full((3,), float(number))
        with contextlib.suppress(ValueError):
            assert torch.equal(f([x])[0], x * 2 + 1)


def test_a_failed_warmup_whose_exception_is_kept(make_tree):
    """The traceback holds memory of the pool: replays must not write there."""
    tree = make_tree(policy=Policy())
    good = tree.boxed(lambda args: (lambda x: [(x * 2).relu() + 1])(*empty(args)))
    for _ in range(3):
        good([torch.ones(64)])
    bad_values = []

    def bad(args):
        (x,) = empty(args)
        bad_values.append(x * 7)
        raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        tree.boxed(bad)([torch.ones(64)])
    for number in range(4):
        out = good([torch.full((64,), float(number))])[0]
        assert torch.equal(out, torch.full((64,), number * 2 + 1.0))
        assert torch.equal(bad_values[0], torch.full((64,), 7.0))
    bad_values.clear()


def test_a_closed_context_says_so(make_tree):
    tree = make_tree()
    f = tree.boxed(cube)
    out = f([torch.full((2,), 2.0)])[0]
    tree.ctx.close()
    assert torch.equal(out, torch.full((2,), 8.0))
    with pytest.raises(CaptureError, match="Running a captured function after its graph context was closed"):
        f([torch.ones(2)])
    gc.collect()
