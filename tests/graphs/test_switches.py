"""Each check of a replay, step of a restore and boundary is needed: without it, a scenario goes wrong."""

import warnings

import pytest
import torch

from staticrt.graphs import (
    capturing,
    checks,
    generations,
    limits,
    manager,
    paths,
    poisoning,
    restore,
    storage,
)
from staticrt.graphs.checks import Check
from staticrt.graphs.policy import Policy
from staticrt.graphs.restore import RestoreStep
from tests.support import fake_graph_backend as fake_backend
from tests.support.fake_graph_backend import FakeBackend
from tests.support.graph_harness import Tree, cube, cubed, device, empty


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
        with pytest.raises(RuntimeError, match="are not outputs"):
            f([torch.ones(4)])
    finally:
        kept.clear()


RESTORES = {
    RestoreStep.DROP_CACHES: branch_after_replay,
    RestoreStep.FREE_DEAD: branch_after_replay,
    RestoreStep.CHECK_LIVE: leak_in_a_warmup,
}


@pytest.mark.parametrize("step", list(RestoreStep))
def test_every_step_of_a_restore_is_needed(make_tree, monkeypatch, step):
    RESTORES[step](make_tree(warmup=step is RestoreStep.CHECK_LIVE))
    broken = Tree(warmup=step is RestoreStep.CHECK_LIVE)  # whose memory need not come back
    with monkeypatch.context() as patched:
        patched.setattr(restore, "ENABLED", set(RestoreStep) - {step})
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
    from staticrt.graphs import capturing

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


def undeclared_write(make_tree, **declared):
    """Gate: a written input that is copied must run plain, or the write is lost."""
    made = make_tree(policy=Policy())
    f = made.boxed(lambda args: (lambda x: [x.add_(1)])(*empty(args)), **declared)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            x = torch.zeros(3)
            f([x])
            assert torch.equal(x, torch.ones(3))


def written_copy(make_tree):
    """The same for a write that the caller declares."""
    undeclared_write(make_tree, mutated_inputs=(0,))


def poisoned(make_tree):
    """Policy "error": what is overwritten raises."""
    made = make_tree(policy=Policy(live_outputs="error"))
    f = made.boxed(cube)
    for _ in range(3):
        out = f([torch.full((3,), 2.0)])[0]
    f([torch.zeros(3)])
    with pytest.raises(RuntimeError, match="overwritten"):
        out.sum()


def first_replay(make_tree):
    """A capture computes nothing where `capture_executes` is false: it is replayed once."""
    made = make_tree(policy=Policy())
    f = made.boxed(cube)
    for number in range(3):
        assert torch.equal(f([torch.full((3,), float(number))])[0], torch.full((3,), number**3 * 1.0))


def escaped(make_tree):
    """Results of a capture that is not kept leave the pool."""
    made = make_tree(policy=Policy(warmup=False, min_kernels=5))
    (out,) = made.boxed(cube)([torch.full((3,), 2.0)])
    assert torch.equal(out, torch.full((3,), 8.0))
    assert out.untyped_storage().data_ptr() not in made.manager.pool.live_ptrs()


def kept_to_itself(make_tree):
    """Memory that a function keeps to itself is left alone."""
    made = make_tree(policy=Policy())
    kept = []

    def f(args):
        (x,) = empty(args)
        if not kept:
            kept.append(x * 2)
        return [x + 1]

    g = made.boxed(cube)
    f = made.boxed(f)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f([torch.ones(4)])
            for _ in range(4):
                g([torch.full((4,), 7.0)])
            assert torch.equal(kept[0], torch.full((4,), 2.0))
            made.manager.validate()
    finally:
        kept.clear()


def pending_forwards(make_tree):
    """A step lasts while a backward is due: policy "error" must not poison what it needs."""
    made = make_tree(policy=Policy(live_outputs="error"))
    f = cubed(made)
    g = made.boxed(cube)
    x = torch.full((3,), 2.0, requires_grad=True)
    for _ in range(3):
        x.grad = None
        loss = f(x).sum()
        g([torch.ones(3)])
        loss.backward()
        assert torch.equal(x.grad, torch.full((3,), 12.0))


def inputs_after_a_failure(make_tree):
    """A failed capture hands the inputs back (D10 of docs/design/graphs.md)."""
    made = make_tree(policy=Policy(warmup=False))
    made.backend.faults["capture_end"] = [KeyboardInterrupt()]
    f, x = made.boxed(cube), torch.full((3,), 2.0)
    given = [x]
    try:
        with pytest.raises(KeyboardInterrupt):
            f(given)
        assert [value is x for value in given] == [True]
    finally:
        made.backend.faults.clear()


def random_state(make_tree):
    """What a capture draws on the way is drawn again by the first replay, not besides it."""
    made = make_tree(device("cpu_copy"), policy=Policy(warmup=False))
    f = made.wrap(lambda x: x + torch.rand(3))
    torch.manual_seed(0)
    got = [f(torch.zeros(3)).clone() for _ in range(3)]
    torch.manual_seed(0)
    for draw in got:
        assert torch.equal(draw, torch.rand(3))


def bounded(make_tree):
    """D5: no more captures than wanted."""
    made = make_tree(policy=Policy(max_graphs=2, unstable_after=None))
    f = made.boxed(lambda args: (lambda w, x: [w * x])(*empty(args)), static_inputs=(0,))
    weights = [torch.full((3,), float(number)) for number in range(5)]
    for weight in weights:
        for _ in range(2):
            assert torch.equal(f([weight, torch.ones(3)])[0], weight)
    assert len(made.manager.nodes()) <= 2


def own_loop(make_tree):
    """D2: `y = f(y)` begins again at a root instead of growing a path."""
    made = make_tree(policy=Policy(unstable_after=None))
    f = made.boxed(lambda args: [empty(args)[0] + 1])
    y = torch.zeros(3)
    for _ in range(30):
        y = f([y])[0]
    assert torch.equal(y, torch.full((3,), 30.0))
    assert 1 <= made.captures <= 3  # no path that grows, of warmups neither


def passed_on(make_tree):
    """D2: an output that is passed on continues the step: nothing is moved for it."""
    made = make_tree(policy=Policy())
    f, g = made.boxed(cube), made.boxed(lambda args: [empty(args)[0] * 2])
    for _ in range(5):
        given = f([torch.full((3,), 2.0)])
        assert torch.equal(g(given)[0], torch.full((3,), 16.0))
    assert made.ctx.explain().rehomed_bytes == 0


def gradients_leave(make_tree):
    """D1: gradients are the caller's, also those of the step that goes on."""
    made = make_tree(policy=Policy())
    f = cubed(made)
    leaves = [torch.full((3,), float(number), requires_grad=True) for number in range(6)]
    gradients = [torch.autograd.grad(f(leaf).sum(), leaf)[0] for leaf in leaves]
    for number, gradient in enumerate(gradients):
        assert torch.equal(gradient, torch.full((3,), 3.0 * number**2))
    assert made.ctx.explain().skips == ()


def nothing(*args):
    return None


def no(*args):
    return False


UNSEEN = (storage.Writes, "seen", lambda self: [])
# scenario -> where the invariants are kept that it needs, and what stands there when they are switched off
INVARIANTS = {
    written_copy: [(manager, "why_writes_prevent_capture", nothing), UNSEEN],
    undeclared_write: [UNSEEN],
    poisoned: [(poisoning, "poison_path", nothing)],
    first_replay: [(fake_backend.FakeGraph, "replay", nothing)],
    escaped: [(paths.Paths, "_escape", nothing)],
    kept_to_itself: [(limits.Limits, "_check_leaks", no)],
    pending_forwards: [(generations.Generations, "may_start", lambda self: True)],
    inputs_after_a_failure: [(capturing.Capturing, "give_back", nothing)],
    random_state: [(torch.random, "set_rng_state", nothing)],
    bounded: [(limits.Limits, "_evict", nothing)],
    own_loop: [(paths.Paths, "_twice_on_path", no)],
    passed_on: [(paths.Paths, "_continues", no)],
    gradients_leave: [(paths.Paths, "_move_out", nothing)],
}


@pytest.mark.parametrize("scenario", list(INVARIANTS), ids=lambda scenario: scenario.__name__)
def test_every_invariant_is_needed(make_tree, monkeypatch, scenario):
    scenario(make_tree)
    broken = []

    def keep(*args, **options):  # whose memory need not come back
        broken.append(Tree(*args, **options))
        return broken[-1]

    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place, name, off in INVARIANTS[scenario]:
            patched.setattr(place, name, off)
        with pytest.raises((AssertionError, RuntimeError, pytest.fail.Exception)):
            scenario(keep)
    for left in broken:
        left.ctx.close()
