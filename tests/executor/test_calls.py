"""Calls in every shape a user may write them, against eager: pytrees, scalars, aliases, writes, randomness."""

import collections
import dataclasses
import random

import pytest
import torch
from torch import nn

import staticrt

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Box:
    value: torch.Tensor
    scale: float = 2.0


class Plain:
    def __init__(self, value):
        self.value = value
        self.seen = []


def same(got, want):
    assert type(got) is type(want), (got, want)
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want, check_stride=True)
        assert got.is_inference() == want.is_inference()
        assert got.requires_grad == want.requires_grad
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            same(got[key], want[key])
    elif hasattr(want, "__dict__"):
        same(vars(got), vars(want))
    else:
        assert got == want


def t(*shape):
    return torch.randn(*shape)


STRUCTURES = {
    "tuple": (lambda x, y: (x + y, x - y), lambda n: ((t(n, 3), t(n, 3)), {})),
    "nested": (
        lambda d, *rest: {"a": [d["x"] * 2, (rest[0], None, 3)], "b": d["y"]["z"].sum()},
        lambda n: (({"x": t(n), "y": {"z": t(n, 2)}}, t(2)), {}),
    ),
    "kwargs": (lambda x, *, scale=2.0, bias=None: x * scale if bias is None else x * scale + bias, None),
    "namedtuple": (lambda p: Pair(p.right, p.left + 1), lambda n: ((Pair(t(n), t(n)),), {})),
    "dataclass": (lambda b: Box(b.value * b.scale, 3.0), lambda n: ((Box(t(n)),), {})),
    "object": (lambda p: Plain(p.value + 1), lambda n: ((Plain(t(n)),), {})),
    "ordered": (
        lambda d: collections.OrderedDict((k, v + 1) for k, v in d.items()),
        lambda n: ((collections.OrderedDict(a=t(n), b=t(n)),), {}),
    ),
    "scalars_out": (lambda x: (x.shape[0], x.dim(), "text", 1.5, True, None), lambda n: ((t(n, 2),), {})),
    "no_tensor_args": (lambda: torch.arange(4) * 2, lambda n: ((), {})),
    "generator_of_lists": (
        lambda xs: [x * i for i, x in enumerate(xs)],
        lambda n: (([t(n), t(n), t(n)],), {}),
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("executor", ["auto", "reference"])
@pytest.mark.parametrize("name", [n for n in STRUCTURES if n != "kwargs"])
def test_structures_in_and_out(name, executor):
    function, make = STRUCTURES[name]
    compiled = staticrt.compile(function, executor=executor)
    for n in (3, 3, 5, 3):
        args, kwargs = make(n)
        same(compiled(*args, **kwargs), function(*args, **kwargs))
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


@torch.no_grad()
def test_kwargs_defaults_and_none():
    function = STRUCTURES["kwargs"][0]
    compiled = staticrt.compile(function)
    for _ in range(3):
        x, bias = t(4), t(4)
        same(compiled(x), function(x))
        same(compiled(x, scale=3.0), function(x, scale=3.0))
        same(compiled(x, bias=bias), function(x, bias=bias))
        same(compiled(bias=bias, x=x, scale=1.0), function(bias=bias, x=x, scale=1.0))
        same(compiled(x, bias=None), function(x))


@torch.no_grad()
def test_int_arguments_become_symbols_after_the_second_value():
    def function(x, k):
        return x[:k] * k

    compiled = staticrt.compile(function)
    x = t(40)
    for k in range(1, 30):
        same(compiled(x, k), function(x, k))
    assert len(compiled.explain().traces) <= 3


@torch.no_grad()
def test_floats_bools_and_strings_choose_a_trace():
    def function(x, factor, flip, mode):
        x = x * factor if mode == "mul" else x + factor
        return -x if flip else x

    compiled = staticrt.compile(function)
    for _ in range(2):
        for arguments in [
            (2.0, True, "mul"),
            (3.0, True, "mul"),
            (2.0, False, "add"),
            (-0.0, False, "mul"),
            (2, True, "mul"),
        ]:
            x = t(3)
            same(compiled(x, *arguments), function(x, *arguments))
            same(compiled(x.long(), *arguments), function(x.long(), *arguments))


def returns_input(x, y):
    return x, x + y


def returns_input_written(x, y):
    x.add_(y)
    return x


def returns_view(x, y):
    return x[1:], x.t(), (x + y).view(-1)


def returns_same_twice(x, y):
    z = x + y
    return z, z, z.view(-1), [z]


def writes_view_of_input(x, y):
    x[0].mul_(2)
    x.t()[1].copy_(y[0, : x.shape[0]].sum())
    return x.sum()


def writes_twice(x, y):
    x.add_(1)
    z = x * y
    x.mul_(3)
    return z, x.view(-1), x


def swaps(x, y):
    keep = x.clone()
    x.copy_(y)
    y.copy_(keep)
    return x, y


def detached(x, y):
    return x.detach(), (x * y).detach(), x.contiguous(), x.to(torch.float32), x.reshape(x.shape)


ALIASES = [returns_input, returns_input_written, returns_view, returns_same_twice, writes_view_of_input]
ALIASES += [writes_twice, swaps, detached]


def aliases(values, inputs):
    """Which outputs are which inputs, and which share memory with what."""
    flat = [v for value in values for v in (value if isinstance(value, list) else [value])]
    flat = [v for v in flat if isinstance(v, torch.Tensor)]
    tensors = [*flat, *inputs]
    return [
        (
            a is b,
            a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr(),
            a.data_ptr() - b.data_ptr(),
        )
        if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
        else None
        for a in tensors
        for b in tensors
    ]


@torch.no_grad()
@pytest.mark.parametrize("executor", ["auto", "reference"])
@pytest.mark.parametrize("function", ALIASES, ids=lambda f: f.__name__)
def test_aliases_and_writes(function, executor):
    compiled = staticrt.compile(function, executor=executor)
    for n in (3, 3, 3, 5, 4, 3):
        x, y = t(n, n), t(n, n)
        x2, y2 = x.clone(), y.clone()
        want, got = function(x2, y2), compiled(x, y)
        same(got, want)
        same([x, y], [x2, y2])
        wrap = [got] if isinstance(got, torch.Tensor) else list(got)
        wrap2 = [want] if isinstance(want, torch.Tensor) else list(want)
        assert aliases(wrap, [x, y]) == aliases(wrap2, [x2, y2])
    report = compiled.explain()
    assert len(report.traces) == 1, report
    assert not report.eager, report


@torch.no_grad()
def test_written_argument_that_overlaps_another_runs_eagerly():
    compiled = staticrt.compile(writes_twice)
    base = t(8)
    x, y = base[:6], base[2:]
    other = base.clone()
    want = writes_twice(other[:6], other[2:])
    same(compiled(x, y), want)
    same(base, other)
    same(compiled(base, base), writes_twice(other, other))
    same(base, other)
    assert any("shares memory" in item.reason for item in compiled.explain().eager)


@torch.no_grad()
def test_containers_of_the_caller_change_as_in_eager():
    def function(d, xs, box):
        d["new"] = d["x"] + 1
        del d["old"]
        xs.append(xs[0] * 2)
        box.value = box.value + 1
        box.seen.append(3)
        return d["x"]

    compiled = staticrt.compile(function)
    for n in (3, 3, 4):
        x = t(n)
        a = ({"x": x, "old": x * 2}, [x], Plain(x))
        b = ({"x": x, "old": x * 2}, [x], Plain(x))
        same(compiled(*a), function(*b))
        same(list(a), list(b))
    assert not compiled.explain().eager


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.steps += 1
        return self.drop(self.norm(x))


@torch.no_grad()
def test_training_mode_buffers_and_dropout_follow_the_seed():
    torch.manual_seed(0)
    model, twin = Norms(), Norms()
    compiled = staticrt.compile(model)
    for mode in (True, True, False, True, False):
        model.train(mode)
        twin.train(mode)
        for n in (3, 5):
            x = t(n, 4)
            torch.manual_seed(7)
            want = twin(x)
            after = torch.get_rng_state()
            torch.manual_seed(7)
            same(compiled(x), want)
            assert torch.equal(torch.get_rng_state(), after)
            same(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert not compiled.explain().eager


@torch.no_grad()
def test_random_operators_follow_the_seed():
    def function(x):
        a = torch.rand(x.shape[0], 3)
        b = torch.randn_like(x)
        c = torch.randint(0, 9, (4,))
        d = torch.randperm(5)
        e = torch.bernoulli(torch.full((3,), 0.5))
        f = torch.empty(3).uniform_(-1, 1).normal_()
        return a, b, c, d, e, f, nn.functional.dropout(x, 0.3, True)

    compiled = staticrt.compile(function)
    for n in (3, 3, 6):
        x = t(n, 2)
        torch.manual_seed(n)
        want = function(x)
        after = torch.get_rng_state()
        torch.manual_seed(n)
        same(compiled(x), want)
        assert torch.equal(torch.get_rng_state(), after)


def prints(self, x):
    print("called")
    return x + 1


def counts(self, x):
    self.count += 1
    return x + self.count


def appends(self, x):
    self.log.append(x)
    return x + 1


def keeps(self, x):
    self.kept = x * 2
    return self.kept + 1


def seeds(self, x):
    torch.manual_seed(0)
    return torch.rand_like(x)


def uses_numpy(self, x):
    return x + torch.from_numpy(x.numpy() * 2)


def branches(self, x):
    return x + 1 if x.sum().item() > 0 else x - 1


def tolists(self, x):
    return torch.tensor([v * 2 for v in x.tolist()])


def python_random(self, x):
    return x + random.random()


IMPURE = [prints, counts, appends, keeps, seeds, uses_numpy, branches, tolists, python_random]


class Impure(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act
        self.count = 0
        self.log = []
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return torch.relu(self.act(self, self.linear(x))) * 2


@torch.no_grad()
@pytest.mark.parametrize("act", IMPURE, ids=lambda f: f.__name__)
def test_python_effects_happen_on_every_call(act, capsys):
    torch.manual_seed(0)
    model, twin = Impure(act), Impure(act)
    twin.load_state_dict(model.state_dict())
    compiled = staticrt.compile(model)
    for sign in (1, -1, 1, -1):
        x = torch.rand(3) * sign
        random.seed(3)
        torch.manual_seed(1)
        want = twin(x)
        printed = capsys.readouterr().out
        random.seed(3)
        torch.manual_seed(1)
        same(compiled(x), want)
        assert capsys.readouterr().out == printed
        assert model.count == twin.count
        same(model.log, twin.log)
        if act is keeps:
            same(model.kept, twin.kept)
    report = compiled.explain()
    whole = not any("not traced whole" in note for note in report.notes)
    assert whole == (act in (branches, tolists))  # numbers that data decides are followed, and checked
    if act in (prints, uses_numpy):
        assert any("test_calls.py" in item.where for item in report.eager), report
