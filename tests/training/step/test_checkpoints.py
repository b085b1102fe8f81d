"""Whole steps with `torch.utils.checkpoint` inside: the backward computes the parts again, in the step's one graph."""

import copy
import logging
import sys
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from tests.support.against_eager import equal_eager


class Block(nn.Module):
    def __init__(self, width, draws):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down, self.draws = nn.Linear(4 * width, width), draws

    def forward(self, x):
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), self.draws, self.draws > 0)


class Deep(nn.Module):
    def __init__(self, width=16, depth=3, draws=0.0, reentrant=False):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(Block(width, draws) for _ in range(depth))
        self.reentrant = reentrant

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def _step_of(model, optimizer):
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return train


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("draws", [0.0, 0.3])
def test_steps_equal_eagers_at_changing_sizes(reentrant, draws):
    def train(compile):
        model = Deep(draws=draws, reentrant=reentrant).double()
        step = compile(_step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
        losses = []
        for call, size in enumerate((4, 4, 7, 1, 3)):
            torch.manual_seed(call)
            losses.append(step(torch.randn(size, 16, dtype=torch.float64)).detach())
            losses.append(torch.get_rng_state())
        return losses, model.state_dict()

    step = equal_eager(train)
    assert step.explain().eager == (), step.explain()


def _arena(reentrant):
    model = Deep(depth=6, reentrant=reentrant)
    step = staticrt.compile_step(_step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    step(torch.randn(512, 16))
    step(torch.randn(512, 16))
    (trace,) = step.explain().traces
    return trace.signatures[0].arena_bytes, dict(trace.operators)["aten.gelu.default"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_parts_are_computed_again_and_hold_no_memory_in_between(reentrant):
    (kept, calls), (again, calls_again) = _arena(None), _arena(reentrant)
    assert (calls, calls_again) == (6, 12)
    assert again < 0.5 * kept


def _eager_reason(train, *arguments, raises=None):
    step = staticrt.compile_step(train)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            if raises is None:
                step(*arguments)
            else:
                with pytest.raises(RuntimeError, match=raises):
                    step(*arguments)
    return step.explain().eager[0].reason


@pytest.mark.filterwarnings("ignore:staticrt")
def test_a_part_whose_weights_are_written_before_its_backward_runs_eagerly():
    def train(compile):
        model = Deep().double()

        @compile
        def step(x):
            loss = model(x).square().mean()
            with torch.no_grad():
                model.blocks[0].up.bias.mul_(0.5)  # which no formula of a gradient reads
            grads = torch.autograd.grad(loss, [*model.first.parameters()])
            return [g.detach() for g in grads]

        return step(torch.randn(4, 16, dtype=torch.float64))

    assert "written before its backward" in equal_eager(train).explain().eager[0].reason


def test_a_reentrant_part_without_gradients_among_its_arguments_runs_eagerly():
    block = Block(8, 0.0)
    head = nn.Linear(8, 1)

    def train(x):
        head(checkpoint(block, x, use_reentrant=True)).sum().backward()

    assert "reentrant checkpoint" in _eager_reason(train, torch.randn(2, 8))
    assert block.up.weight.grad is None
    assert head.weight.grad is not None


def test_gradients_of_a_few_tensors_through_a_reentrant_part_raise_as_in_eager():
    model = Deep(reentrant=True)

    def train(x):
        return torch.autograd.grad(model(x).sum(), model.first.weight)

    assert "reentrant" in _eager_reason(train, torch.randn(2, 16), raises="incompatible with")


@pytest.mark.filterwarnings("ignore:staticrt")
@pytest.mark.parametrize("how", ["second backward", "view", "result"])
def test_a_part_that_reads_what_changes_before_a_backward_runs_eagerly(how):
    def train(compile):
        first, block = nn.Linear(16, 16).double(), Block(16, 0.0).double()
        weight = nn.Parameter(torch.randn(16, 16, dtype=torch.float64), requires_grad=False)

        @compile
        def step(x):
            row = weight[0]

            def part(x):
                return (
                    block(x)
                    if how == "second backward"
                    else (x + row).sin()
                    if how == "view"
                    else (x * row).tanh()
                )

            out = checkpoint(part, first(x), use_reentrant=False)
            loss = out.exp().mean() if how == "result" else out.square().mean()
            if how == "second backward":
                grads = torch.autograd.grad(loss, [*first.parameters()], retain_graph=True)
                with torch.no_grad():
                    block.up.bias.mul_(0.5)
                grads += torch.autograd.grad(loss, [*first.parameters()])
            else:
                with torch.no_grad():
                    (weight.data if how == "result" else weight).mul_(0.5)
                grads = torch.autograd.grad(loss, [*first.parameters()])
            return [g.detach() for g in grads]

        return [step(torch.full((4, 16), 0.5, dtype=torch.float64)) for _ in range(3)]

    assert "written before its backward" in equal_eager(train).explain().eager[0].reason


def _late(x, weight, reentrant):
    for factor in (1.0, 2.0, 3.0):
        x = checkpoint(lambda y: (y @ weight * factor).sin(), x, use_reentrant=reentrant)  # noqa: B023
    return x


def _in_a_list(x, weight, reentrant):
    held = [weight.detach().cos()]
    out = checkpoint(lambda y: (y @ held[0]).sin(), x @ weight, use_reentrant=reentrant)
    held[0] = weight.detach() * 2
    return out


def _in_an_object(x, weight, reentrant):
    class Scaled:
        scale = 1.0

        def __call__(self, y):
            return (y @ weight * self.scale).sin()

    scaled = Scaled()
    out = checkpoint(scaled, x @ weight, use_reentrant=reentrant)
    scaled.scale = 3.0
    return out


@pytest.mark.filterwarnings("ignore:staticrt")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", [_late, _in_a_list, _in_an_object])
@pytest.mark.parametrize("way", ["step", "model"])
def test_a_part_that_reads_what_is_assigned_before_its_backward_runs_eagerly(part, reentrant, way):
    def train(compile):
        weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))

        def forward(x):
            return part(x, weight, reentrant)

        run = compile(forward) if way == "model" else forward

        def step(x):
            run(x).square().sum().backward()
            found = x.grad, weight.grad
            x.grad = weight.grad = None
            return found

        step = compile(step) if way == "step" else step
        found = []
        for _ in range(3):
            x = torch.linspace(0, 1, 8, dtype=torch.float64).view(2, 4).requires_grad_()
            found.append([t.clone() for t in step(x)])
        return found

    compiled = equal_eager(train, staticrt.compile_step if way == "step" else staticrt.compile)
    if not (way == "model" and reentrant):  # which no model has in a trace
        assert "reads what changes before its backward" in compiled.explain().eager[0].reason


LOG = logging.getLogger(__name__)
LOG.addHandler(logging.StreamHandler(sys.stderr))


def test_what_libraries_keep_for_themselves_is_not_read_by_a_part():
    """The functions of Hugging Face's layers name a logger, and `copy.deepcopy`, from whose tables sympy is reached."""

    class Layer(Block):
        def forward(self, x):
            if len(x) > 1000:
                LOG.warning("long: %s", copy.deepcopy(x.shape))
            return super().forward(x)

    model = Deep(reentrant=False)
    model.blocks[1] = Layer(16, 0.0)
    eager = copy.deepcopy(model)
    fast = staticrt.compile(model)
    for size in (4, 5, 6):
        x = torch.randn(size, 16)
        fast(x).sum().backward()
        eager(x).sum().backward()
    for p, q in zip(fast.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    assert not fast.explain().eager


def test_a_reentrant_part_of_a_users_own_class_runs_its_own_code():
    class Doubled(torch.utils.checkpoint.CheckpointFunction):
        @staticmethod
        def forward(ctx, function, preserve, *args):
            return 2 * torch.utils.checkpoint.CheckpointFunction.forward(ctx, function, preserve, *args)

    model = Deep(reentrant=True)
    step = staticrt.compile_step(_step_of(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    step(torch.randn(2, 16))  # asks for parts of this thread from here on
    x = torch.randn(2, 16, requires_grad=True)
    torch.testing.assert_close(Doubled.apply(torch.sin, True, x), 2 * x.sin())
