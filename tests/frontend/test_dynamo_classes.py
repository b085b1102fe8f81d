"""Behind a graph break, classes and the objects made of them behave as in eager."""

import dataclasses
import enum
import functools
import gc
import types
import typing
import weakref

import pytest
import torch

import staticrt


def classes_that_count(calls):
    """Classes that add to `calls` when an object is made of them."""

    class Base:
        def __init__(self, value):
            calls.append(len(calls))
            self.value = value

    class Derived(Base):
        def __init__(self, value):
            super().__init__(value)

    class Default:
        def __init__(self, value, seen=calls):
            seen.append(len(seen))
            self.value = value

    class Setter:
        def __setattr__(self, name, value):
            calls.append(name)
            object.__setattr__(self, name, value)

        __init__ = Default.__init__

    @dataclasses.dataclass
    class Data:
        value: torch.Tensor

        def __post_init__(self):
            calls.append(len(calls))

    class Meta(type):
        def __call__(cls, value):
            calls.append(len(calls))
            return super().__call__(value * len(calls))

    class Made(Data, metaclass=Meta):
        pass

    return [Base, Derived, Default, Setter, Data, Made]


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("gradients", [False, True])
def test_what_a_constructor_changes_is_changed_in_each_call(number, gradients):
    runs = []
    for compiled in (False, True):
        calls = []
        kind = classes_that_count(calls)[number]

        def function(x, kind=kind):
            print(end="")
            return kind(x * 2).value + 1

        run = staticrt.compile(function) if compiled else function
        results = [run(torch.ones(2, requires_grad=gradients)) for _ in range(4)]
        runs.append((results, calls))
    torch.testing.assert_close(runs[1][0], runs[0][0])
    assert runs[1][1] == runs[0][1]


@typing.runtime_checkable
class Counted(typing.Protocol):
    count: int


@typing.runtime_checkable
class Closed(typing.Protocol):
    def close(self): ...


class Plain:
    pass


@pytest.mark.parametrize("kind", [Counted, (int, Counted), Counted | Closed])
def test_members_of_protocols_are_those_of_the_object(kind):
    def function(x, value):
        print(end="")
        return x * 2 if isinstance(value, kind) else x - 1

    compiled = staticrt.compile(function)
    counted = Plain()
    counted.count = 3
    with torch.no_grad():
        for value in (Plain(), counted, Plain(), counted):
            assert torch.equal(compiled(torch.ones(2), value), function(torch.ones(2), value))


class Asked(type):
    def __instancecheck__(cls, value):
        cls.asked.append(value)
        return len(cls.asked) % 2 == 0

    __subclasscheck__ = __instancecheck__


@pytest.mark.parametrize("ask", [isinstance, issubclass])
def test_a_metaclass_is_asked_in_each_call(ask):
    def results(compiler):
        class Kind(metaclass=Asked):
            asked: typing.ClassVar = []

        def function(x):
            print(end="")
            return x * 2 if ask(int, Kind) else x - 1

        run = compiler(function)
        with torch.no_grad():
            return [run(torch.ones(2)).tolist() for _call in range(5)], Kind.asked

    assert results(staticrt.compile) == results(lambda function: function)


@pytest.mark.parametrize("made", [lambda *parts: type(*parts), types.new_class])
def test_a_class_is_made_in_each_call(made):
    seen = []

    class Base:
        def __init_subclass__(cls):
            seen.append(cls)

    def function(x):
        print(end="")
        kind = made("Made", (Base,), {})
        return x * 2, kind is seen[-1]

    compiled = staticrt.compile(function)
    with torch.no_grad():
        assert [compiled(torch.ones(2))[1] for _call in range(4)] == [True] * 4
    assert len(set(seen)) == 4


def test_derived_classes_see_what_is_stored_in_their_base():
    class Base:
        calls = 0

    class Derived(Base):
        def seen(self):
            return self.calls * 10

    def function(x):
        print(end="")
        Base.calls += 1
        return x * Derived().seen() + Derived.calls

    compiled = staticrt.compile(function)
    with torch.no_grad():
        assert [compiled(torch.ones(1)).item() for _call in range(3)] == [11, 22, 33]


def test_constants_in_classes_are_read_in_each_call():
    class Kind(enum.Enum):
        ADD = 1
        SCALE = 2

    class Base:
        factor, shifts, kind = 1, [1], Kind.ADD

    class Derived(Base):
        @classmethod
        def scaled(cls, x):
            return x * cls.factor

    def function(x):
        print(end="")
        Base.shifts.append(2)
        x = Derived.scaled(x) + sum(Base.shifts)
        return x * 10 if Derived.kind is Kind.SCALE else x

    def results(run):
        Base.factor, Base.shifts, Base.kind = 1, [1], Kind.ADD
        found = [run(torch.ones(1)).item()]
        Base.factor, Base.kind = 7, Kind.SCALE
        found.append(run(torch.ones(1)).item())
        Derived.factor = 9
        found.append(run(torch.ones(1)).item())
        del Derived.factor
        return found, Base.shifts

    compiled = staticrt.compile(function)
    with torch.no_grad():
        assert results(compiled) == results(function)


def test_an_object_that_counts_its_end_ends_in_each_call():
    ended = []

    class Row:
        def __del__(self):
            ended.append(1)

    def function(x):
        print(end="")
        row = Row()
        row.values = x
        return row.values * 2

    compiled = staticrt.compile(function)
    with torch.no_grad():
        for calls in range(1, 5):
            compiled(torch.ones(2))
            gc.collect()
            assert len(ended) == calls


def test_a_weak_reference_to_what_the_function_makes_ends():
    class Row:
        pass

    ended = []

    def function(x):
        row = Row()
        row.values = x
        reference = weakref.ref(row, lambda _reference: ended.append(1))
        y = reference().values * 2
        del row
        return y, reference() is None

    compiled = staticrt.compile(function)
    with torch.no_grad():
        assert [compiled(torch.ones(2))[1] for _call in range(5)] == [True] * 5
    assert len(ended) == 5


class Mode:
    pass


FIRST, SECOND, THIRD = Mode(), Mode(), Mode()
TABLE = {FIRST: 1, SECOND: 2}
LIST = [SECOND, THIRD]
ASKS = {
    "is": lambda mode: mode is FIRST,
    "equal": lambda mode: mode == SECOND,
    "table": lambda mode: TABLE.get(mode, 7),
    "list": lambda mode: LIST.index(mode) if mode in LIST else 9,
    "count": lambda mode: LIST.count(mode),
    "hash": lambda mode: hash(mode),
    "text": lambda mode: repr(mode),
    "containers": lambda mode: (mode, 1) in {(FIRST, 1): 2} or {1: mode} == {1: SECOND},
}


@pytest.mark.parametrize("backend", [False, True])
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_an_object_is_told_from_another_of_its_class(ask, backend):
    def answer(x, mode):
        return x * 2, ask(mode)

    def model(*args):
        print(end="")
        return answer(*args)

    compiled = torch.compile(model, backend="staticrt") if backend else staticrt.compile(model)
    with torch.no_grad():
        for mode in (FIRST, SECOND, THIRD, FIRST, SECOND):
            assert compiled(torch.ones(2), mode)[1] == ask(mode)


ONE = [None]
MAKE = {
    "object": Mode,
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "function": lambda: lambda: 1,
    "partial": lambda: functools.partial(len),
    "sentinel": object,
    "range": lambda: range(3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(1)),
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@pytest.mark.parametrize("same_first", [False, True])
def test_two_arguments_that_are_one_object_are_told_from_two(make, same_first):
    def model(x, first, second):
        return x * 2, first is second, first is not ONE[0]

    first, second = make(), make()
    ONE[0] = make()
    calls = [(first, second), (first, first), (ONE[0], second), (first, ONE[0]), (ONE[0], ONE[0])]
    compiled = torch.compile(model, backend="staticrt")
    for call in reversed(calls) if same_first else calls:
        assert compiled(torch.ones(2), *call)[1:] == (call[0] is call[1], call[0] is not ONE[0])


@pytest.mark.parametrize(
    "ask", [lambda mode: mode is FIRST, lambda mode: mode == ONE, lambda mode: mode in LIST]
)
def test_other_objects_in_each_call_compile_nothing_again(ask):
    def model(x, mode):
        return x * 2, ask(mode)

    compiled = torch.compile(model, backend="staticrt", fullgraph=True)
    modes = [Mode() for _call in range(3)]
    assert not compiled(torch.ones(2), modes[0])[1]
    with torch.compiler.set_stance("fail_on_recompile"):
        assert not any(compiled(torch.ones(2), mode)[1] for mode in modes)
    assert compiled(torch.ones(2), FIRST)[1] == ask(FIRST)
