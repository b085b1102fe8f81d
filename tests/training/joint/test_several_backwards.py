"""Several backwards of one compiled call, without `retain_graph`: allowed, refused and accumulated as in eager."""

import copy
import itertools
import random
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.joint_traces import fast_calls, joint, joint_calls


class Apart(nn.Module):
    """Two results without an operator in common."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x, y):
        return torch.tanh(self.left(x)), torch.sigmoid(self.right(y)) * 2


class SavingTrunk(Apart):
    """A trunk that saves what its backward needs."""

    def forward(self, x, y):
        shared = torch.tanh(x * y)
        return self.left(shared), self.right(shared).relu()


class PlainTrunk(Apart):
    """A trunk of operators that save nothing; the same tensor is saved by both results' operators."""

    def forward(self, x, y):
        shared = (x + y).transpose(0, 1).transpose(0, 1)
        return shared * shared, shared.exp()


class SharedInput(Apart):
    """Both results' operators save the same input."""

    def forward(self, x, y):
        return x * y, self.right(x)


class Sums(Apart):
    """Saves nothing."""

    def forward(self, x, y):
        return x + y, x.sum(0)


class Pieces(Apart):
    """Results are parts of one operator's results."""

    def forward(self, x, y):
        low, high = torch.sigmoid(x - y).unbind(0)[:2]
        return low * 2, high.exp()


class Chain(Apart):
    """One result is computed from the other."""

    def forward(self, x, y):
        first = torch.tanh(self.left(x))
        return first, F.softmax(first.sum(0, keepdim=True) + self.right(y).sum(), -1)


MODELS = [Apart, SavingTrunk, PlainTrunk, SharedInput, Sums, Pieces, Chain]


def _both_once(a, b, *_):
    a.sum().backward()
    b.sum().backward()


def _other_order(a, b, *_):
    b.pow(2).sum().backward()
    a.pow(2).sum().backward()


def _first_twice(a, b, *_):
    a.sum().backward()
    a.sum().backward()


def _both_then_first(a, b, *_):
    (a.sum() + b.sum()).backward()
    a.sum().backward()


def _kept_once(a, b, *_):
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    a.sum().backward()


def _kept_late(a, b, *_):
    a.sum().backward()
    b.sum().backward(retain_graph=True)
    b.sum().backward()


def _part_of_inputs(a, b, x, y, parameters):
    first = torch.autograd.grad(a.sum(), [x], allow_unused=True)
    second = torch.autograd.grad(b.sum(), [y], allow_unused=True)
    return first, second


def _parameters_then_input(a, b, x, y, parameters):
    first = torch.autograd.grad(a.sum(), parameters, allow_unused=True)
    return first, torch.autograd.grad(a.sum(), [x], allow_unused=True)


def _inputs_of_backward(a, b, x, y, parameters):
    (a.sum() + b.sum()).backward(inputs=[x])
    (a.sum() + b.sum()).backward(inputs=[y])


def _undefined(a, b, *_):
    torch.autograd.backward([a.sum(), b.detach().requires_grad_().sum()])
    b.sum().backward()


class _Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


def _no_gradient_arrives(a, b, *_):
    (_Nothing.apply(a).sum() + b.sum()).backward()


def _in_threads(a, b, *_):
    errors = []

    def run(result):
        try:
            result.sum().backward()
        except RuntimeError as error:
            errors.append(error)

    for result in (a, b):
        thread = threading.Thread(target=run, args=(result,))
        thread.start()
        thread.join()
    if errors:
        raise errors[0]


def _twice_differentiable(a, b, x, *_):
    (gradient,) = torch.autograd.grad(a.sum(), [x], create_graph=True, allow_unused=True)
    b.sum().backward()
    return gradient


def _twice_differentiable_after(a, b, x, *_):
    b.sum().backward()
    (gradient,) = torch.autograd.grad(a.pow(2).sum(), [x], create_graph=True)
    gradient.pow(2).sum().backward()


def _graph_not_kept(a, b, x, *_):
    (gradient,) = torch.autograd.grad(a.pow(2).sum(), [x], create_graph=True, retain_graph=False)
    b.sum().backward()
    return gradient.detach()


def _input_written_between(a, b, x, y, parameters):
    a.sum().backward()
    with torch.no_grad():
        y.add_(1)
    b.sum().backward()


def _weight_written_between(a, b, x, y, parameters):
    b.sum().backward()
    with torch.no_grad():
        for parameter in parameters[2:]:
            parameter.mul_(0.5)
    a.sum().backward()


USES = [
    _both_once,
    _other_order,
    _first_twice,
    _both_then_first,
    _kept_once,
    _kept_late,
    _part_of_inputs,
    _parameters_then_input,
    _inputs_of_backward,
    _undefined,
    _no_gradient_arrives,
    _in_threads,
    _twice_differentiable,
    _twice_differentiable_after,
    _graph_not_kept,
    _input_written_between,
    _weight_written_between,
]


def _outcome(run, model, use, batch, frozen=()):
    """What a use of the two results of a call does: its results, error, and the gradients that it leaves."""
    torch.manual_seed(batch)
    x, y = (torch.randn(batch, 4).requires_grad_(name not in frozen) for name in "xy")
    a, b = run(x, y)
    result, error = None, ""
    try:
        result = use(a, b, x, y, list(model.parameters()))
    except RuntimeError as raised:
        error = str(raised).split("Hint:")[0]
    leaves = [x, y, *model.parameters()]
    gradients = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    return result, error, gradients


def _compare(got, want, which_error=True):
    assert got[1] == want[1] if which_error else bool(got[1]) == bool(want[1])
    if not want[1]:  # eager has run some nodes before the one that raises
        torch.testing.assert_close((got[0], got[2]), (want[0], want[2]))


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)
def test_as_in_eager(kind, use):
    torch.manual_seed(0)
    model = kind()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for batch in (4, 4, 6, 3, 4):  # recorded with constant sizes, then with symbolic ones
        # There two errors apply; which one eager meets first depends on the order of its nodes.
        one = (kind, use) != (Chain, _input_written_between)
        _compare(_outcome(compiled, model, use, batch), _outcome(eager, eager, use, batch), one)
    assert joint_calls(compiled) + fast_calls(compiled) >= 5, compiled.explain()


@pytest.mark.parametrize("frozen", ["x", "y"])
@pytest.mark.parametrize("use", [_both_once, _first_twice, _kept_once], ids=lambda use: use.__name__)
def test_with_an_input_that_needs_no_gradient(use, frozen):
    model = Chain()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for batch in (4, 4, 5):
        got = _outcome(compiled, model, use, batch, frozen)
        _compare(got, _outcome(eager, eager, use, batch, frozen))


def test_adversarial_losses_of_one_call():
    """A generator's and a discriminator's loss of one call, each backward with its own parameters."""

    class Losses(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, noise, real):
            made = torch.tanh(self.generator(noise))
            judged = self.judge(made.detach()).exp().mean() + self.judge(real).neg().exp().mean()
            return judged, self.judge(made).neg().exp().mean()

    torch.manual_seed(0)
    model = Losses()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for step in range(4):
        torch.manual_seed(step)
        noise, real = torch.randn(5, 4), torch.randn(5, 4)
        for run, own in ((compiled, model), (eager, eager)):
            own.zero_grad()
            judged, fooled = run(noise, real)
            judged.backward()
            fooled.backward()
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


def test_each_backward_frees_what_only_it_reads():
    """Of two results, the backward of one frees what only its operators saved."""

    def function(x, w, y, v):
        return x * w, y * v

    # Otherwise the inputs stay until nothing is left to differentiate.
    compiled = joint(function, double_backward=False)
    w, v = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
    for run in (function, compiled, compiled, compiled):
        x, y = torch.randn(4), torch.randn(4)
        a, b = run(x, w, y, v)
        first, second = StorageWeakRef(x.untyped_storage()), StorageWeakRef(y.untyped_storage())
        del x, y
        a.sum().backward()
        assert first.expired()
        assert not second.expired()
        b.sum().backward()
        assert second.expired()
    assert joint_calls(compiled) + fast_calls(compiled) >= 3


OPERATORS = (
    torch.tanh,
    torch.exp,
    lambda v: v + 1,
    lambda v: v * 0.5,
    lambda v: v.transpose(0, 1).contiguous().transpose(0, 1),
    lambda v: F.layer_norm(v, v.shape[-1:]),
    lambda v: v.cumsum(0),
    lambda v: v[:, 1:].sum(1, keepdim=True) + v,
)


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_with_three_results(seed):
    """Backwards of random subsets of results, in random order, with and without retain_graph."""
    choose = random.Random(seed)
    plan = [
        (choose.randrange(i + 2), choose.randrange(i + 2), choose.choice(OPERATORS), choose.random() < 0.4)
        for i in range(7)
    ]

    def function(x, y):
        values = [x, y]
        for left, right, operator, joined in plan:
            value = operator(values[left])
            values.append(value * values[right] if joined else value)
        return tuple(values[-3:])

    subsets = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]
    backwards = [(choose.choice(subsets), choose.random() < 0.3) for _ in range(4)]
    compiled = joint(function)
    for batch in (3, 3, 5):
        found = []
        for run in (compiled, function):
            torch.manual_seed(batch)
            x, y = torch.randn(batch, 4, requires_grad=True), torch.randn(batch, 4, requires_grad=True)
            results = run(x, y)
            log = []
            for subset, keeps in backwards:
                try:
                    sum(results[i].sum() for i in subset).backward(retain_graph=keeps)
                    log.append([None if v.grad is None else v.grad.clone() for v in (x, y)])
                except RuntimeError as error:
                    log.append(str(error))
                    break  # eager has run some nodes before the one that raises
            found.append(log)
        texts = [[entry if isinstance(entry, str) else "" for entry in log] for log in found]
        assert texts[0] == texts[1], (seed, backwards, compiled.explain())
        numbers = [[entry for entry in log if not isinstance(entry, str)] for log in found]
        torch.testing.assert_close(numbers[0], numbers[1])
