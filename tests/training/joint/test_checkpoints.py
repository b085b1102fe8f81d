"""Models with `torch.utils.checkpoint` inside: traced with their backward, which computes the parts again."""

import contextlib
import copy
import gc
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt.models.bench.train_memory import allocated_peak
from tests.support.joint_traces import joint_calls, same_gradients
from tests.support.threads import beside


class Block(nn.Module):
    def __init__(self, width, draws=0.0):
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.draws = draws

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.draws, self.draws > 0)


class Deep(nn.Module):
    def __init__(self, width=16, depth=4, block=Block, **settings):
        super().__init__()
        self.blocks = nn.ModuleList(block(width) for _ in range(depth))
        self.settings = {"use_reentrant": False, **settings}

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, **self.settings)
        return x


def _equal_eager(model, sizes=((4, 6), (4, 6), (3, 5), (7, 2)), served=True):
    model = model.double()
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    width = next(model.parameters()).shape[-1]
    for number, size in enumerate(sizes):
        x = torch.randn(*size, width, dtype=torch.float64)
        found = []
        for run, owner in ((compiled, model), (eager, eager)):
            torch.manual_seed(number)
            given = x.clone().requires_grad_()
            out = run(given)
            out.square().mean().backward()
            found.append((out, given.grad, dict(owner.named_buffers()), torch.get_rng_state()))
        torch.testing.assert_close(*found)
        same_gradients(model, eager)
    assert compiled._executor._splits.regions == []
    assert joint_calls(compiled) == (len(sizes) if served else 0), compiled.explain()
    return compiled


def test_gradients_equal_eagers_at_changing_sizes():
    compiled = _equal_eager(Deep())
    assert not compiled.explain().eager


def test_the_last_part_is_computed_again_first():
    """Each right before its own backward: one part's values live at a time."""
    model = Deep()
    compiled = staticrt.compile(model, passes=False)
    compiled(torch.randn(4, 16)).sum().backward()
    (trace,) = compiled._executor._joint.traces
    (graph,) = trace.executable.backward
    backward = graph.plans.get(())._graph
    order = [
        "again" if "gelu.default" in str(node.target) else "backward"
        for node in backward.graph.nodes
        if "gelu" in str(node.target)
    ]
    assert order == ["again", "backward"] * 4


def test_each_part_is_computed_again_right_before_it_is_read():
    """A step holds far less at its peak than without checkpoints; the arena is as large as what one part makes."""
    torch.manual_seed(0)
    peaks = {}
    for checkpoints in (True, False):
        model = Deep(64, 8)
        x = torch.randn(16, 32, 64)
        if not checkpoints:
            model = nn.Sequential(*model.blocks)
        compiled = staticrt.compile(copy.deepcopy(model))
        for way, run in (("eager", model), ("compiled", compiled)):

            def step(run=run, x=x):
                run(x).square().mean().backward()
                for p in run.parameters():
                    p.grad = None

            for _ in range(3):
                step()
            gc.collect()
            peaks[way, checkpoints] = allocated_peak(step)
        assert joint_calls(compiled) >= 4
    assert peaks["compiled", False] <= peaks["eager", False], peaks
    assert peaks["compiled", True] <= peaks["eager", True], peaks
    assert peaks["compiled", True] < 0.5 * peaks["compiled", False], peaks


@pytest.mark.parametrize("draws", [0.3, 1.0])
def test_dropout_is_drawn_again_as_it_was(draws):
    compiled = _equal_eager(Deep(block=lambda width: Block(width, draws)))
    assert not compiled.explain().eager


def test_of_dropout_only_the_generators_state_is_saved():
    torch.manual_seed(0)
    model = Deep(128, 4, block=lambda width: Block(width, 0.3))
    compiled = staticrt.compile(copy.deepcopy(model))
    x = torch.randn(256, 128)
    saved = {}
    for run in (model, compiled):
        for _ in range(2):
            run(x).sum().backward()
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(partial(_pack, packed), lambda t: t):
            run(x)
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in packed}
        known = {p.untyped_storage().data_ptr() for p in (x, *run.parameters())}
        saved[run] = sum(size for data, size in storages.items() if data not in known)
    mask = 256 * 128
    assert saved[compiled] < 3 * x.nbytes + 4 * mask / 2, saved


@pytest.mark.parametrize("draws", [0.0, 0.3])
def test_without_gradients_a_checkpoint_is_its_function(draws):
    model = Deep(block=lambda width: Block(width, draws))
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for size in (4, 4, 2, 1):
            x = torch.randn(size, 16)
            found = []
            for run in (compiled, model):
                torch.manual_seed(size)
                found.append((run(x), torch.get_rng_state()))
            torch.testing.assert_close(*found)
    assert compiled.explain().traces
    assert not compiled.explain().eager


class Views(nn.Module):
    """Results of parts that are views of inner values, of arguments, and several at once."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 6)

    def forward(self, x):
        def part(x):
            y = torch.tanh(self.lin(x))
            first, second = y.split(3, -1)
            return first.transpose(-1, -2), second, y.exp(), x

        a, b, c, d = checkpoint(part, x.sin(), use_reentrant=False)
        e, *_rest = checkpoint(part, d * 2, use_reentrant=False)
        return (a.transpose(-1, -2) * b).sum() + c.sum() * d.sum() + e.square().mean()


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        def inner(x):
            return self.first(x).tanh()

        def outer(x, scale):
            return self.last(checkpoint(inner, x * scale, use_reentrant=False)).sigmoid()

        return checkpoint(outer, x, scale=3, use_reentrant=False)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        def part(x):
            y = self.lin(x)
            y[..., 1:].mul_(2)
            return y.relu_().exp()

        return checkpoint(part, x, use_reentrant=False)


class Shares(nn.Module):
    """One layer in two parts, and values from outside that a closure holds."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        scale = x.abs().amax() + 1

        def part(x):
            return torch.tanh(self.lin(x)) * scale

        with torch.no_grad():
            unseen = checkpoint(part, x, use_reentrant=False)
        return checkpoint(part, checkpoint(part, x, use_reentrant=False), use_reentrant=False) + unseen


@pytest.mark.parametrize("kind", [Views, Nested, InPlace, Shares])
def test_parts_of_all_kinds(kind):
    _equal_eager(kind())


def test_gradients_of_some_results_and_twice():
    torch.manual_seed(0)
    model = Deep(8, 3).double()
    compiled = staticrt.compile(model)
    x = torch.randn(2, 8, dtype=torch.float64)
    out = compiled(x)
    first = torch.autograd.grad(out.sum(), list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(out.sum(), list(model.parameters()))
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    given = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(compiled(given).sum(), given)
    plain = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(model(plain).sum(), plain)
    torch.testing.assert_close(got, want)
    (slope,) = torch.autograd.grad(compiled(given).square().sum(), given, create_graph=True)
    (curve,) = torch.autograd.grad(slope.sum(), given)
    (slope,) = torch.autograd.grad(
        nn.Sequential(*model.blocks)(plain).square().sum(), plain, create_graph=True
    )
    (expected,) = torch.autograd.grad(slope.sum(), plain)
    torch.testing.assert_close(curve, expected)
    assert joint_calls(compiled) == 3


class Noise(Block):
    def forward(self, x):
        return super().forward(x * torch.rand_like(x))


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.lin, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x):
        return self.norm(self.lin(x).flatten(0, 1)).view(x.shape)


EAGER = {
    "a part that draws other numbers in each run": (
        lambda: Deep(block=lambda width: Block(width, 0.3), preserve_rng_state=False),
        "random numbers",
    ),
    "a part that draws otherwise than by dropout": (lambda: Deep(block=Noise), "random numbers"),
    "running statistics, which each run updates": (lambda: Deep(block=Norm, early_stop=False), "writes"),
    "reentrant autograd": (lambda: Deep(use_reentrant=True), "rng_state"),
    "reentrant autograd without random numbers": (
        lambda: Deep(use_reentrant=True, preserve_rng_state=False),
        "CheckpointFunction",
    ),
    "a context of its own": (
        lambda: Deep(context_fn=lambda: (torch.no_grad(), torch.no_grad()) and _contexts()),
        "context",
    ),
    "hooks on what is saved": (None, "saved tensors hooks"),
}


def _contexts():
    return contextlib.nullcontext(), contextlib.nullcontext()


class Hooked(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            return self.lin(x).exp()


@pytest.mark.parametrize("name", EAGER)
def test_what_runs_eagerly_and_without_dynamo(name):
    make, reason = EAGER[name]
    torch.manual_seed(0)
    compiled = _equal_eager((make or Hooked)(), served=False)
    assert any(reason in item.reason for item in compiled.explain().eager), compiled.explain()


def _pack(packed, tensor):
    packed.append(tensor)
    return tensor


def test_other_threads_checkpoint_as_ever_while_one_traces():
    seen = []
    model = Deep(8, 2)

    def others(_thread):
        x = torch.randn(2, 8, requires_grad=True)
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(partial(_pack, packed), lambda t: t):
            out = checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False)
        seen.append(len(packed))
        out.sum().backward()
        torch.testing.assert_close(x.grad, x.exp().cos().detach() * x.exp().detach())

    with beside(others):
        for size in (2, 3, 4):
            staticrt.compile(model)(torch.randn(size, 8)).sum().backward()
    assert set(seen) == {1}  # its input alone
