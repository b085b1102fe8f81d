"""Containers among the arguments: subclasses keep their class and contents, and changes show as in eager."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import staticrt


class Batch(dict):  # type: ignore[type-arg]
    pass


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Pair(tuple):  # type: ignore[type-arg]
    pass


class User(collections.UserDict):  # type: ignore[type-arg]
    pass


class Scaled(dict):  # type: ignore[type-arg]
    """Overrides what its items look like."""

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) * 10

    @property
    def total(self) -> Any:
        return self["a"] + 1


class Slots:
    __slots__ = ("a", "n")

    def __init__(self, a: torch.Tensor, n: int = 1) -> None:
        self.a = a
        self.n = n


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """As transformers' BatchEncoding."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


def with_note(made: Any, note: Any) -> Any:
    made.note = note
    return made


def total(d: Any) -> torch.Tensor:
    result = torch.zeros(2)
    for value in d.values():
        result = result + value
    return result


READS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], Any]]] = {
    "dict subclass": (total, lambda x: Batch(a=x, b=x + 1)),
    "ordered dict subclass": (total, lambda x: Ordered(a=x, b=x + 1)),
    "default dict": (lambda d: d["a"] + d["missing"], lambda x: collections.defaultdict(lambda: 3, a=x)),
    "user dict": (total, lambda x: User(a=x, b=x * 2)),
    "encoding": (lambda e: e["ids"] + e.mask, lambda x: Encoding({"ids": x, "mask": x + 1})),
    "class of a dict": (lambda d: d["a"] + (1 if type(d) is Batch else 2), lambda x: Batch(a=x)),
    "overridden methods": (lambda d: d["a"] + d.total, lambda x: Scaled(a=x)),
    "attribute of a dict": (lambda d: d["a"] + d.note, lambda x: with_note(Batch(a=x), x * 3)),
    "list subclass": (lambda v: sum(v) + len(v), lambda x: Items([x, x + 1])),
    "attribute of a list": (lambda v: v[0] * v.note, lambda x: with_note(Items([x]), 3)),
    "tuple subclass": (lambda v: v[0] * 2 + v[1], lambda x: Pair((x, x + 1))),
    "slots": (lambda s: s.a * s.n, lambda x: Slots(x, 2)),
    "slots in a list": (lambda v: v[0].a + v[1], lambda x: [Slots(x), x]),
    "dict in an object": (lambda s: total(s.a), lambda x: Slots(Batch(a=x))),  # type: ignore[arg-type]
    "deque": (lambda v: v[0] + v[-1], lambda x: collections.deque([x, x + 1])),
    "tensor keys": (lambda d: next(iter(d)) * 2, lambda x: {x: 1}),
    "tensor keys with values": (lambda d: next(k + v for k, v in d.items()), lambda x: {x: x + 1}),
    "set of tensors": (lambda s: next(iter(s)) * 2, lambda x: {x}),
    "iterator": (lambda i: next(i) + 1, lambda x: iter([x, x])),
    "generator": (lambda i: sum(i), lambda x: (y for y in [x, x + 1])),
    "values": (lambda v: sum(v), lambda x: {"a": x, "b": x}.values()),
    "the same dict twice": (lambda v: v[0]["a"] + (v[0] is v[1]), lambda x: [d := Batch(a=x), d]),
}


@pytest.mark.parametrize("name", READS)
def test_a_container_is_read_as_in_eager(name: str) -> None:
    model, make = READS[name]
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for n in range(4):
            x = torch.full((2,), float(n))
            assert torch.equal(compiled(make(x)), model(make(x)))


def add_key(d: Any) -> Any:
    d["new"] = d["a"] * 2
    return d["a"] + 1


def append(v: Any) -> Any:
    v.append(v[0] * 2)
    return v[0] + 1


def drop(d: Any) -> Any:
    return d.pop("b") + 1


def note(d: Any) -> Any:
    d.note = d["a"] * 5
    return d["a"] + 1


def set_slot(s: Any) -> Any:
    s.a = s.a * 3
    return s.a + 1


def contents(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            [(k, contents(v)) for k, v in value.items()],
            contents(getattr(value, "__dict__", None) or []),
        )
    if isinstance(value, (list, tuple, collections.deque)):
        return list(map(contents, value))
    if isinstance(value, Slots):
        return contents(value.a)
    if isinstance(value, collections.UserDict):
        return contents(value.data)
    return value.tolist() if isinstance(value, torch.Tensor) else value


CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], Any]]] = {
    "key of a dict subclass": (add_key, lambda x: Batch(a=x)),
    "key of an ordered dict": (add_key, lambda x: collections.OrderedDict(a=x)),
    "key of an ordered dict subclass": (add_key, lambda x: Ordered(a=x)),
    "key of a default dict": (add_key, lambda x: collections.defaultdict(list, a=x)),
    "key of a user dict": (add_key, lambda x: User(a=x)),
    "key dropped": (drop, lambda x: Batch(a=x, b=x + 1)),
    "item of a list subclass": (append, lambda x: Items([x])),
    "item of a deque": (append, lambda x: collections.deque([x], maxlen=3)),
    "attribute of a dict": (note, lambda x: Batch(a=x)),
    "slot": (set_slot, Slots),
    "order": (lambda d: d.move_to_end("a") or d["a"] + 1, lambda x: Ordered(a=x, b=x)),
    "item made of a size": (lambda d: d.update(n=d["a"].shape[0]) or d["a"] + 1, lambda x: Batch(a=x)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_model_changes_in_a_container_shows_as_in_eager(name: str) -> None:
    model, make = CHANGES[name]
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for n in range(4):
            x = torch.full((2,), float(n))
            plain, ours = make(x.clone()), make(x.clone())
            assert torch.equal(compiled(ours), model(plain))
            assert type(ours) is type(plain)
            assert contents(ours) == contents(plain)
            assert (list(ours) if isinstance(ours, dict) else 0) == (
                list(plain) if isinstance(plain, dict) else 0
            )


def test_a_container_that_changed_between_calls_is_seen() -> None:
    compiled = staticrt.compile(total)
    batch = Batch(a=torch.ones(2))
    with torch.no_grad():
        for n in range(4):
            batch[f"more{n}"] = torch.full((2,), float(n))
            assert torch.equal(compiled(batch), total(batch))
            del batch["a" if n == 0 else f"more{n - 1}"]
            assert torch.equal(compiled(batch), total(batch))


def test_numbers_and_truth_values_as_keys_differ() -> None:
    def model(d: Any) -> torch.Tensor:
        key = next(iter(d))
        return d[key] * (2 if isinstance(key, bool) else 3)  # type: ignore[no-any-return]

    compiled = staticrt.compile(model)
    x = torch.ones(2)
    with torch.no_grad():
        for key in (1, True, 1.0, 1, True):
            assert torch.equal(compiled({key: x}), model({key: x}))


def test_an_argument_container_returned_is_the_callers() -> None:
    compiled = staticrt.compile(lambda d: (d, d["a"] * 2))
    with torch.no_grad():
        for _ in range(3):
            batch = Batch(a=torch.ones(2))
            assert compiled(batch)[0] is batch


def test_backend_reads_a_dict_subclass() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(total, backend="staticrt")
    with torch.no_grad():
        for n in range(3):
            batch = Batch(a=torch.full((2,), float(n)))
            assert torch.equal(compiled(copy.copy(batch)), total(batch))


BOUNDED = {
    "append": lambda x, d: (d.append(x * 2), sum(d))[1],
    "appendleft": lambda x, d: (d.appendleft(x * 2), d[0] - d[-1])[1],
    "extend": lambda x, d: (d.extend([x, x + 1]), sum(d))[1],
    "extendleft": lambda x, d: (d.extendleft([x, x + 1]), d[0])[1],
}


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", BOUNDED)
def test_a_bounded_deque_drops_items(name, gradients, splits):
    """Dynamo adds to a deque that is there already as if it had no bound."""

    def make():
        items = collections.deque([torch.ones(1), torch.zeros(1)], maxlen=2)

        def function(x):
            if splits:
                print(end="")
            return BOUNDED[name](x, items)

        return function, items

    (eager, expected), (function, items) = make(), make()
    compiled = staticrt.compile(function)
    for number in range(5):
        x = torch.full((1,), float(number), requires_grad=gradients)
        assert compiled(x).item() == eager(x).item()
        assert [item.item() for item in items] == [item.item() for item in expected]


def _move(items):
    items.move_to_end(next(iter(items)))


def _put_again(items):
    key = next(iter(items))
    items[key] = items.pop(key)


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("kind", "move"),
    [(collections.OrderedDict, _move), (dict, _put_again), (collections.OrderedDict, _put_again)],
)
def test_an_item_moves_to_the_end(kind, move, gradients, splits):
    """As caches do with what was used last: only the order changes."""

    def make():
        items = kind(a=1, b=2, c=3)

        def function(x):
            if splits:
                print(end="")
            move(items)
            return x * next(iter(items.values()))

        return function, items

    (eager, expected), (function, items) = make(), make()
    compiled = staticrt.compile(function)
    for _ in range(5):
        x = torch.ones(1, requires_grad=gradients)
        assert compiled(x).item() == eager(x).item()
        assert list(items) == list(expected)


class History(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.losses = collections.deque([1.0], maxlen=2)
        self.layer, self.read = torch.nn.Linear(2, 2), read

    def own_losses(self):
        return self.losses

    def forward(self, x):
        print(end="")
        return self.layer(x) * self.read(self)


def _adds(losses):
    losses.append(len(losses) + 1.0)
    return sum(losses)


REACHES = {
    "by name": lambda model: _adds(model.losses),
    "by a method": lambda model: _adds(model.own_losses()),
    "by a computed name": lambda model: _adds(getattr(model, model.name)),
    "by a list of attributes": lambda model: _adds(
        next(value for value in vars(model).values() if isinstance(value, collections.deque))
    ),
}


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("read", [*REACHES, "not"])
def test_a_bounded_deque_that_code_reaches_leaves_the_model_to_eager(read, gradients):
    torch.manual_seed(0)
    model = History(REACHES.get(read, lambda _model: 3.0))
    model.name = "losses"
    other = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(gradients):
        for _ in range(4):
            x = torch.randn(3, 2)
            torch.testing.assert_close(compiled(x), other(x))
            assert model.losses == other.losses
    assert bool(compiled.explain().traces) == (read == "not")
