"""Results of any type hold what eager's hold, and each call makes new ones."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import staticrt


class Named(NamedTuple):
    value: torch.Tensor
    size: int


class PlainDict(dict):  # type: ignore[type-arg]
    pass


class Ordered(collections.OrderedDict):  # type: ignore[type-arg]
    pass


class Slots:
    __slots__ = ("size", "value")

    def __init__(self, value: torch.Tensor, size: int) -> None:
        self.value = value
        self.size = size


class SlotsAndDict(Slots):
    pass


class Items(list):  # type: ignore[type-arg]
    pass


class Pair(tuple):  # type: ignore[type-arg]
    pass


class Overrides(dict):  # type: ignore[type-arg]
    """Its own methods hide what it holds."""

    def items(self) -> Any:
        return [("nothing", 0)]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("read only")


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: torch.Tensor
    more: Any = None


def with_attributes(made: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def closure(x: torch.Tensor) -> Any:
    y = x * 2
    return lambda scale=3: y * scale


def generator(x: torch.Tensor) -> Any:
    yield x * 2
    yield x + 1


def linked(x: torch.Tensor) -> Any:
    node = PlainDict(value=x * 2)
    node["self"] = node
    return node


def twice_the_same(x: torch.Tensor) -> Any:
    shared = Items([x * 2])
    return {"a": shared, "b": shared}


# Each with what to compare of a result.
Read = Callable[[Any], Any]
MODELS: dict[str, tuple[Callable[[torch.Tensor], Any], Read]] = {
    "dict subclass": (lambda x: PlainDict(a=x * 2, n=x.shape[0]), dict),
    "dict subclass with attributes": (
        lambda x: with_attributes(PlainDict(a=x * 2), extra=x + 1),
        lambda r: (dict(r), r.extra),
    ),
    "ordered dict subclass": (lambda x: Ordered(b=x * 2, a=x), lambda r: list(r.items())),
    "default dict": (lambda x: collections.defaultdict(list, a=[x * 2]), lambda r: (dict(r), r["new"])),
    "counter": (lambda x: collections.Counter(a=x.dim()), lambda r: (r["a"], r["b"])),
    "deque": (lambda x: collections.deque([x, x * 2], maxlen=5), lambda r: (list(r), r.maxlen)),
    "list subclass": (lambda x: with_attributes(Items([x * 2]), note=x + 1), lambda r: (list(r), r.note)),
    "tuple subclass": (lambda x: with_attributes(Pair((x * 2, 1)), note=x + 1), lambda r: (tuple(r), r.note)),
    "named tuple": (lambda x: Named(x * 2, x.shape[0]), tuple),
    "slots": (lambda x: Slots(x * 2, x.shape[0]), lambda r: (r.value, r.size)),
    "slots and attributes": (
        lambda x: with_attributes(SlotsAndDict(x * 2, 1), note=x + 1),
        lambda r: (r.value, r.size, r.note),
    ),
    "empty object": (
        lambda x: (x * 2, with_attributes(nn.Identity.__class__("New", (), {})())),
        lambda r: r[0],
    ),
    "overriding dict": (lambda x: Overrides(a=x * 2), lambda r: list(dict.items(r))),
    "frozen dataclass": (lambda x: Frozen(x * 2, Frozen(x + 1)), lambda r: (r.value, r.more.value)),
    "set": (lambda x: (x, {x * 2}), lambda r: (r[0], list(r[1]))),
    "frozen set": (lambda x: frozenset({x * 2}), list),
    "empty set": (lambda x: (x * 2, set()), lambda r: (r[0], list(r[1]))),
    "tensor keys": (lambda x: {x * 2: x + 1}, lambda r: list(r.items())),
    "values": (lambda x: {"a": x * 2}.values(), list),
    "keys": (lambda x: (x * 2, {"a": x}.keys()), lambda r: (r[0], list(r[1]))),
    "closure": (closure, lambda r: (r(), r(4))),
    "partial": (lambda x: functools.partial(torch.add, x * 2, alpha=3), lambda r: r(torch.ones(2))),
    "bound method": (lambda x: Slots(x * 2, 1).__class__(x * 3, 2).__init__, lambda r: r.__self__.value),
    "method of a tensor": (lambda x: (x * 2).add, lambda r: r(1)),
    "iterator": (lambda x: iter([x * 2, x]), list),
    "map": (lambda x: map(torch.neg, [x, x * 2]), list),
    "zip": (lambda x: zip([x], [x * 2], strict=True), list),
    "generator": (generator, list),
    "generator expression": (lambda x: (y * 2 for y in [x, x + 1]), list),
    "slice": (lambda x: slice(0, x.shape[0], x * 2), lambda r: (r.start, r.stop, r.step)),
    "range": (lambda x: (x * 2, range(x.shape[0])), lambda r: (r[0], list(r[1]))),
    "text": (lambda x: (x * 2, f"{x.shape[0]} rows"), lambda r: r),
    "exception": (lambda x: ValueError("bad", x * 2), lambda r: r.args),
    "module": (lambda x: with_attributes(nn.Identity(), kept=x * 2), lambda r: r.kept),
    "bytes": (lambda x: (x * 2, bytearray(b"ab")), lambda r: (r[0], bytes(r[1]))),
    "object that holds itself": (linked, lambda r: (r["value"], r["self"] is r)),
    "the same list twice": (twice_the_same, lambda r: (list(r["a"]), r["a"] is r["b"])),
    "function made inside": (lambda x: (x * 2, lambda: 3), lambda r: (r[0], r[1]())),
    "class made inside": (lambda x: (x * 2, type("Inner", (), {"n": 3})), lambda r: (r[0], r[1].n)),
    "an argument": (lambda x: [x, x * 2], lambda r: r),
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return type(a) is type(b) and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and bool(a == b)


@pytest.mark.parametrize("name", MODELS)
def test_a_result_is_as_eagers_in_every_call(name: str) -> None:
    model, read = MODELS[name]
    compiled = staticrt.compile(model)
    kept = []
    with torch.no_grad():
        for rows in (2, 2, 3, 2):
            x = torch.randn(rows) if rows != 2 else torch.randn(2)
            expected, got = model(x), compiled(x)
            if not name.startswith(("empty object", "class")):
                assert type(got) is type(expected)
            if name == "partial" and rows != 2:
                continue
            kept.append(got)
            assert equal(read(got), read(expected))
    if name not in ("text", "an argument"):
        assert len({id(result) for result in kept}) == len(kept)


MUTABLE: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "set": (lambda x: (x * 2, set()), lambda r: r[1].add("mine"), lambda r: len(r[1])),
    "bytearray": (lambda x: (x * 2, bytearray(2)), lambda r: r[1].append(1), lambda r: len(r[1])),
    "object": (
        lambda x: (x * 2, Frozen(torch.Size([1]))),
        lambda r: object.__setattr__(r[1], "more", 3),
        lambda r: r[1].more,
    ),
    "list subclass": (lambda x: (x * 2, Items()), lambda r: r[1].append(1), lambda r: len(r[1])),
    "function": (lambda x: (x * 2, lambda: 1), lambda r: setattr(r[1], "n", 1), lambda r: vars(r[1])),
    "deque": (lambda x: (x * 2, collections.deque()), lambda r: r[1].append(1), lambda r: len(r[1])),
    "nested": (lambda x: (x * 2, Pair(([],))), lambda r: r[1][0].append(1), lambda r: len(r[1][0])),
}


@pytest.mark.parametrize("name", MUTABLE)
def test_a_changed_result_is_not_seen_by_the_next_call(name: str) -> None:
    model, change, read = MUTABLE[name]
    compiled = staticrt.compile(model)
    x = torch.ones(2)
    with torch.no_grad():
        expected = read(model(x))
        for _ in range(4):
            got = compiled(x)
            assert read(got) == expected
            change(got)


def test_what_a_model_holds_is_returned_itself() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tags = Slots(torch.ones(1), 1)
            self.names = {"a", "b"}

        def forward(self, x: torch.Tensor) -> Any:
            return x * 2, self.tags, self.names, len

    module = Model()
    compiled = staticrt.compile(module, fullgraph=True)
    with torch.no_grad():
        for _ in range(3):
            _y, tags, names, function = compiled(torch.ones(2))
            assert tags is module.tags
            assert names is module.names
            assert function is len


@pytest.mark.parametrize(
    "name", ["dict subclass", "slots", "closure", "set", "partial", "deque", "list subclass"]
)
def test_backend_gives_the_same_results(name: str) -> None:
    model, read = MODELS[name]
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="staticrt")
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2)
            try:
                expected = torch.compile(model, backend="eager")(x)
            except Exception:
                pytest.skip("Dynamo itself cannot")
            assert equal(read(compiled(x)), read(expected))


def test_a_view_of_a_dict_shows_what_the_dict_holds_later() -> None:
    own = {"w": 1}

    def model(d: dict[str, torch.Tensor]) -> Any:
        new = {"z": d["a"] * 2}
        return d.keys(), d.values(), own.items(), new.keys(), new

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for number in range(3):
            argument = {"a": torch.ones(2)}
            keys, values, items, new_keys, new = compiled(argument)
            argument["b"] = torch.zeros(1)
            own[f"v{number}"] = number
            new["y"] = torch.ones(1)
            assert (list(keys), list(new_keys)) == (["a", "b"], ["z", "y"])
            assert list(values)[1] is argument["b"]
            assert list(items) == list(own.items())


@pytest.mark.parametrize("gradients", [False, True])
def test_attributes_that_a_model_gives_to_tensors(gradients: bool) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        x.seen = True  # type: ignore[attr-defined]
        y = x * 2
        y.tag = "twice"  # type: ignore[attr-defined]
        return y

    compiled = staticrt.compile(model)
    for _ in range(3):
        x = torch.ones(2, requires_grad=gradients)
        assert compiled(x).tag == "twice"  # type: ignore[attr-defined]
        assert x.seen  # type: ignore[attr-defined]


def test_an_attribute_of_what_no_caller_sees_leaves_the_model_compiled() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.tag = "twice"  # type: ignore[attr-defined]
        return y + len(y.tag)  # type: ignore[attr-defined]

    assert staticrt.compile(model, fullgraph=True)(torch.ones(2)).tolist() == [7, 7]


@pytest.mark.parametrize("gradients", [False, True])
def test_the_greatest_of_tensors_is_one_of_them(gradients: bool) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        print(end="")
        return max(x.detach())

    compiled = staticrt.compile(model)
    for _ in range(2):
        x = torch.tensor([1.0, 3.0, 2.0], requires_grad=gradients)
        compiled(x).mul_(2)
        assert x.tolist() == [1, 6, 2]


def test_a_set_that_is_made_before_a_break_keeps_its_order() -> None:
    names = {f"name {number}" for number in range(20)}

    def model(x: torch.Tensor) -> Any:
        others = names - {"name 3"}
        print(end="")
        return x + 1, list(others), list(frozenset(others))

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for _ in range(2):
            assert compiled(torch.ones(1))[1:] == model(torch.ones(1))[1:]
