"""Nothing that a trace made outlives it: caches and attributes of the model hold what eager would have put there."""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import staticrt


@functools.lru_cache
def bounded(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril()


@functools.cache
def unbounded(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril()


class Registry:
    table: torch.Tensor


class Slotted:
    __slots__ = ("__weakref__", "table")


class Entry:
    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def attributed(x: torch.Tensor) -> torch.Tensor:
    if not hasattr(attributed, "table"):
        attributed.table = torch.full((4,), 3.0)
    return x * attributed.table


def nested(x: torch.Tensor) -> torch.Tensor:
    if x.shape[0] not in nested.tables:
        nested.tables[x.shape[0]] = Entry(x.new_full((4,), 3.0))
    return x * nested.tables[x.shape[0]].value


_local = threading.local()
_slotted = Slotted()
_weak: Any = weakref.WeakKeyDictionary()
_owner = Entry(torch.ones(1))


def in_class(x: torch.Tensor) -> torch.Tensor:
    if not hasattr(Registry, "table"):
        setattr(Registry, "table", x * 0 + 2)  # noqa: B010
    return x * Registry.table


def in_slots(x: torch.Tensor) -> torch.Tensor:
    if not hasattr(_slotted, "table"):
        _slotted.table = x * 0 + 2
    return x * _slotted.table


def in_thread_local(x: torch.Tensor) -> torch.Tensor:
    if not hasattr(_local, "table"):
        _local.table = x * 0 + 2
    return x * _local.table


def in_weak_dict(x: torch.Tensor) -> torch.Tensor:
    if _owner not in _weak:
        _weak[_owner] = x * 0 + 2
    return x * _weak[_owner]


def make_partial() -> tuple[Callable[..., Any], Callable[[], Any]]:
    """A cache among the default arguments of a function, reached through its attributes only."""
    store: dict[str, torch.Tensor] = {}

    def lookup(x: torch.Tensor) -> torch.Tensor:
        if "t" not in store:
            store["t"] = x * 0 + 2
        return store["t"]

    return lambda x: x * lookup(x), lambda: store.get("t")


CASES: dict[str, tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any]]] = {
    "lru_cache": (
        lambda x: x @ bounded(4),
        bounded.cache_clear,
        lambda: bounded(4) if bounded.cache_info().currsize else None,
    ),
    "cache": (
        lambda x: x @ unbounded(4),
        unbounded.cache_clear,
        lambda: unbounded(4) if unbounded.cache_info().currsize else None,
    ),
    "attribute of a function": (
        attributed,
        lambda: vars(attributed).clear(),
        lambda: getattr(attributed, "table", None),
    ),
    "dict of a function": (
        nested,
        lambda: setattr(nested, "tables", {}),
        lambda: getattr(next(iter(nested.tables.values()), None), "value", None),
    ),
    "class": (
        in_class,
        lambda: delattr(Registry, "table") if hasattr(Registry, "table") else None,
        lambda: getattr(Registry, "table", None),
    ),
    "slots": (
        in_slots,
        lambda: delattr(_slotted, "table") if hasattr(_slotted, "table") else None,
        lambda: getattr(_slotted, "table", None),
    ),
    "thread local": (in_thread_local, _local.__dict__.clear, lambda: getattr(_local, "table", None)),
    "weak dict": (in_weak_dict, _weak.clear, lambda: _weak.get(_owner)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Any:
    model, forget, kept = CASES[request.param]
    forget()
    yield model, forget, kept
    forget()


def test_what_a_model_caches_is_real_after_the_first_call(case: Any) -> None:
    model, _forget, kept = case
    compiled = staticrt.compile(model)
    with torch.no_grad():
        compiled(torch.ones(4))
    found = kept()
    assert found is None or type(found) is torch.Tensor
    assert torch.equal(model(torch.full((4,), 2.0)), compiled(torch.full((4,), 2.0)))


def test_calls_after_a_cached_value_answer_as_eager(case: Any) -> None:
    model, forget, _kept = case
    with torch.no_grad():
        expected = [model(torch.full((4,), float(n))) for n in range(4)]
        forget()
        compiled = staticrt.compile(model)
        for n, want in enumerate(expected):
            assert torch.equal(compiled(torch.full((4,), float(n))), want)


class Transposed(nn.Linear):
    """Keeps its transposed weight as an attribute of the weight."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self.weight, "transposed"):
            self.weight.transposed = self.weight.t().contiguous()  # type: ignore[attr-defined]
        return x @ self.weight.transposed  # type: ignore[attr-defined,no-any-return]


def test_an_attribute_of_a_parameter_is_real() -> None:
    module = Transposed(4, 4)
    compiled = staticrt.compile(module)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(compiled(x), x @ module.weight.t())
            assert type(module.weight.transposed) is torch.Tensor


def test_a_gradient_set_by_the_model_is_real() -> None:
    weight = nn.Parameter(torch.ones(3))

    def model(x: torch.Tensor) -> torch.Tensor:
        weight.grad = x * 2
        return x + 1

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for n in range(3):
            compiled(torch.full((3,), float(n)))
            assert type(weight.grad) is torch.Tensor
            assert weight.grad.tolist() == [2.0 * n] * 3


@pytest.mark.parametrize("gradients", [False, True])
def test_a_gradient_that_the_model_replaces_is_the_one_that_it_had(gradients: bool) -> None:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)

    def model(x: torch.Tensor) -> torch.Tensor:
        if weight.grad is not None:
            weight.grad = weight.grad * 2
        return x * weight

    compiled = staticrt.compile(model)
    with torch.set_grad_enabled(gradients):
        for n in (2.0, 4.0):
            compiled(torch.ones(3))
            assert weight.grad.tolist() == [n] * 3


def test_a_gradient_that_the_model_clears_is_there_before_the_call() -> None:
    weight, seen = nn.Parameter(torch.ones(3)), []

    def model(x: torch.Tensor) -> torch.Tensor:
        seen.append(weight.grad is None)
        weight.grad = None
        return x + 1

    weight.grad = torch.ones(3)
    compiled = staticrt.compile(model)
    for _ in range(2):
        compiled(torch.ones(3))
    assert seen == [False, True]
    assert weight.grad is None


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_backward_inside_a_call_that_needs_gradients_leaves_real_ones(create_graph: bool) -> None:
    weight = nn.Parameter(torch.ones(3))

    def model(x: torch.Tensor) -> torch.Tensor:
        (weight * x).sum().backward(create_graph=create_graph)
        return x * 2

    compiled = staticrt.compile(model)
    for before, after in ((None, 2.0), (torch.ones(3), 3.0)):
        weight.grad = before
        x = torch.ones(3, requires_grad=True)
        for run in (compiled, model):
            run(x)
        assert type(weight.grad) is type(x.grad) is torch.Tensor
        assert weight.grad.tolist() == [after] * 3


def test_what_a_failed_trace_left_is_taken_back() -> None:
    seen: list[str] = []

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x @ bounded(4)
        if (y.sum() > 0).item():  # our sizes do not answer this
            y = y + 1
        print(end="")
        return y

    bounded.cache_clear()
    compiled = staticrt.compile(model)
    with torch.no_grad():
        for n in range(3):
            x = torch.full((4,), float(n))
            assert torch.equal(compiled(x), model(x))
            seen.append(type(bounded(4)).__name__)
    assert seen == ["Tensor"] * 3


def test_a_size_in_an_unknown_place_is_a_number() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        model.rows = x.shape[0]  # type: ignore[attr-defined]
        return x + 1

    compiled = staticrt.compile(model)
    with torch.no_grad():
        for rows in (3, 4, 5):
            compiled(torch.ones(rows))
            assert type(model.rows) is int  # type: ignore[attr-defined]
            assert model.rows == rows  # type: ignore[attr-defined]


def test_a_dead_cycle_is_no_escape() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        def again(n: int) -> torch.Tensor:
            return x if n == 0 else again(n - 1) + 1

        try:
            raise ValueError(x)
        except ValueError as error:
            kept = error
        return again(3) + kept.args[0]

    compiled = staticrt.compile(model, fullgraph=True)
    with torch.no_grad():
        for n in range(3):
            x = torch.full((2,), float(n))
            assert torch.equal(compiled(x), model(x))


def test_explain_names_who_keeps_a_tensor() -> None:
    bounded.cache_clear()
    compiled = staticrt.compile(lambda x: x @ bounded(4))
    with torch.no_grad():
        compiled(torch.ones(4))
    assert "keeps tensors in the cache of bounded()" in str(compiled.explain())


def test_a_list_that_only_an_attribute_of_a_function_holds() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        model.seen.append(x * 2)  # type: ignore[attr-defined]
        return x + len(model.seen)  # type: ignore[attr-defined]

    model.seen = collections.deque()  # type: ignore[attr-defined]
    compiled = staticrt.compile(model)
    with torch.no_grad():
        answers = [compiled(torch.full((2,), float(n))).tolist() for n in range(4)]
    assert [type(t) for t in model.seen] == [torch.Tensor] * 4  # type: ignore[attr-defined]
    assert answers == [[n + n + 1.0] * 2 for n in range(4)]


@pytest.mark.parametrize("as_global", [True, False])
def test_a_lazy_module_keeps_its_class_until_eager_initialises_it(as_global: bool) -> None:
    def model_of(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return (lambda x: module(x)) if as_global else module

    lazy = nn.LazyBatchNorm3d(affine=False, track_running_stats=False)
    compiled = staticrt.compile(model_of(lazy))
    plain = model_of(nn.BatchNorm3d(2, affine=False, track_running_stats=False))
    with torch.no_grad():
        for n in range(3):
            x = torch.randn(2, 2, n + 1, 2, 2)
            torch.testing.assert_close(compiled(x), plain(x))
    assert type(lazy) is nn.BatchNorm3d


def test_an_error_keeps_nothing_of_its_trace(monkeypatch):
    """Frames refer to functions, and a lambda to what it closes over: nobody has to look for that."""

    def model(x):
        return (lambda: x.view(7))()

    searches = []
    monkeypatch.setattr(
        "staticrt.frontend.tracing.escapes._Holders.release", lambda _: searches.append(1) or []
    )
    compiled = staticrt.compile(model)
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(torch.ones(3))
    assert searches == []
    assert "test_escapes.py" in str(compiled.explain())
