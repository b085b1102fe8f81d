"""Each check of a replay, step of a restore and boundary is needed: without it, a scenario goes wrong."""

import pytest
import torch
from tests_capture_fake import FakeBackend
from tests_capture_harness import Tree, cube, empty

from staticrt.capture import checks, paths, restore
from staticrt.capture.checks import Check
from staticrt.capture.policy import Policy
from staticrt.capture.restore import Step


@pytest.fixture
def default(make_tree):
    return make_tree(policy=Policy())


def moved_managed_input(tree):
    """An input captured as output of the step comes from elsewhere."""
    f, g = tree.boxed(cube), tree.boxed(lambda args: [empty(args)[0] + 1])
    for _ in range(3):
        with tree.step():
            g(f([torch.full((3,), 2.0)]))
    with tree.step():
        f([torch.full((3,), 2.0)])
        assert torch.equal(g([torch.full((3,), 5.0)])[0], torch.full((3,), 6.0))


def held_where_it_was_dead(tree):
    """An output that had died before the next capture is still held now."""
    f = tree.boxed(lambda args: (lambda x: [x * 2, x + 5])(*empty(args)))
    g = tree.boxed(lambda args: (lambda x: [x.repeat(2)[:3] + 1, x * 7, x * 9])(*empty(args)))
    for _ in range(3):
        with tree.step():
            first, second = f([torch.ones(3)])
            given = [first]
            del first, second
            g(given)
    with tree.step():
        first, second = f([torch.ones(3)])
        given = [first]
        del first
        outs = g(given)
        assert torch.equal(second, torch.full((3,), 6.0))
        assert torch.equal(outs[1], torch.full((3,), 14.0))


def moved_static_input(tree):
    f = tree.boxed(lambda args: (lambda w, x: [w * x])(*empty(args)), static_inputs=(0,))
    weights = [torch.full((3,), 2.0), torch.full((3,), 3.0)]
    for _ in range(3):
        f([weights[0], torch.ones(3)])
    assert torch.equal(f([weights[1], torch.ones(3)])[0], torch.full((3,), 3.0))


def other_overlap(tree):
    """Two inputs that shared memory when captured do not now: an alias would be of the wrong one."""
    f = tree.boxed(lambda args: (lambda a, b: [b[:2], a + b])(*empty(args)))
    base = torch.arange(4.0)
    for _ in range(3):
        f([base, base[:]])
    a, b = torch.zeros(4), torch.ones(4)
    view, _total = f([a, b])
    assert torch.equal(view, torch.ones(2))


def outlives_its_inputs(tree):
    """What died inside the capture would be overwritten although somebody holds it."""
    f = tree.boxed(lambda args: [empty(args)[0] * 2])

    def reuse(args):
        y = args[0] + 1
        args.clear()  # the input's bytes may be reused from here
        return [y * 3, y * 4, y * 5]

    g = tree.boxed(reuse)
    for _ in range(3):
        with tree.step():
            g(f([torch.ones(64)]))
    with tree.step():
        y = f([torch.ones(64)])[0]
        g([y])
        assert torch.equal(y, torch.full((64,), 2.0))


SCENARIOS = {
    Check.MANAGED: moved_managed_input,
    Check.DEAD_BEFORE: held_where_it_was_dead,
    Check.STATIC: moved_static_input,
    Check.OVERLAP: other_overlap,
    Check.DEAD_AFTER: outlives_its_inputs,
}


@pytest.mark.parametrize("check", list(Check))
def test_every_check_of_a_replay_is_needed(make_tree, monkeypatch, check):
    # Copied inputs never share memory; rebound ones may.
    device = "rebind" if check is Check.OVERLAP else "copy"
    SCENARIOS[check](make_tree(FakeBackend(device), Policy()))
    monkeypatch.setattr(checks, "ENABLED", set(Check) - {check})
    with pytest.raises((AssertionError, RuntimeError)):
        SCENARIOS[check](make_tree(FakeBackend(device), Policy()))


def branch_after_replay(tree):
    """A capture after replays, while an output of theirs died and another lives."""
    f = tree.boxed(lambda args: (lambda x: [x + 1, x + 2])(*empty(args)))
    g = tree.boxed(lambda args: [empty(args)[0] * 3])
    for _ in range(3):
        f([torch.ones(4)])
    with tree.step():
        out1, out2 = f([torch.ones(4)])
        given = [out1]
        del out1, out2
        x = g(given)[0]
        assert tree.live() == 1
        assert torch.equal(x, torch.full((4,), 6.0))
    tree.manager.validate()


def leak_in_a_warmup(tree):
    kept = []

    def f(args):
        (x,) = empty(args)
        kept.append(x * 2)
        return [x + 1]

    f = tree.boxed(f)
    try:
        with pytest.raises(RuntimeError, match="are no outputs"):
            f([torch.ones(4)])
    finally:
        kept.clear()


RESTORES = {
    Step.DROP_CACHES: branch_after_replay,
    Step.FREE_DEAD: branch_after_replay,
    Step.CHECK_LIVE: leak_in_a_warmup,
}


@pytest.mark.parametrize("step", list(Step))
def test_every_step_of_a_restore_is_needed(make_tree, monkeypatch, step):
    RESTORES[step](make_tree(warmup=step is Step.CHECK_LIVE))
    broken = Tree(warmup=step is Step.CHECK_LIVE)  # whose memory need not come back
    with monkeypatch.context() as patched:
        patched.setattr(restore, "ENABLED", set(Step) - {step})
        with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
            RESTORES[step](broken)
    broken.ctx.close()


def test_moving_held_outputs_out_is_needed(make_tree, monkeypatch):
    def scenario(tree):
        f = tree.boxed(cube)
        held = [f([torch.full((3,), float(n))])[0] for n in range(5)]
        for number, out in enumerate(held):
            assert torch.equal(out, torch.full((3,), number**3 * 1.0))

    scenario(make_tree(policy=Policy()))
    monkeypatch.setattr(paths.Paths, "_move_out", lambda self, outputs: None)
    broken = make_tree(policy=Policy())
    with pytest.raises((AssertionError, RuntimeError)):
        scenario(broken)


def test_moving_outputs_out_of_a_bound_capture_is_needed(make_tree, monkeypatch):
    from staticrt.capture import capturing

    def scenario(tree):
        f = tree.boxed(lambda args: (lambda x: [x * 2, x * 3])(*empty(args)))
        g = tree.boxed(lambda args: (lambda x: [((x * 5) + 1) * 2])(*empty(args)))
        held = f([torch.ones(3)])
        other = g([torch.ones(3)])
        g([torch.zeros(3)])
        f([torch.zeros(3)])
        assert torch.equal(held[0], torch.full((3,), 2.0))
        assert torch.equal(held[1], torch.full((3,), 3.0))
        assert torch.equal(other[0], torch.full((3,), 12.0))
        assert tree.live() == 0

    scenario(make_tree(FakeBackend("rebind"), Policy()))
    monkeypatch.setattr(capturing, "rehome", lambda ref: 0)
    with pytest.raises((AssertionError, RuntimeError)):
        scenario(make_tree(FakeBackend("rebind"), Policy(check_pool=False)))
