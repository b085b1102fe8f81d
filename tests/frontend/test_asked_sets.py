"""Sets of classes of which code only asks what is in them: their items are guarded, and not what those hold."""

import pytest
import torch

import staticrt


class Known:
    scale = 2.0


class Other:
    scale = 3.0


ASKED = {Known, Other}


def _asks(x):
    y = x + 1 if Known in ASKED else x - 1
    ASKED.add(Known)
    return y


def _sum_of_scales():
    return sum(each.scale for each in ASKED)


def _reads_after(x):
    return _asks(x) * _sum_of_scales()


def _reads_before(x):
    return _asks(x * _sum_of_scales())


def _hands_on(x):
    return x * sum(each.scale for each in ASKED if Known in ASKED)


@pytest.fixture(autouse=True)
def _kept():
    before = set(ASKED), Other.scale
    yield
    ASKED.clear()
    ASKED.update(before[0])
    Other.scale = before[1]


def _check(function, compiled):
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(x), function(x))


def test_other_items_are_seen():
    compiled = staticrt.compile(_asks)
    _check(_asks, compiled)
    ASKED.discard(Known)
    # The call itself adds the class again.
    torch.testing.assert_close(compiled(torch.ones(3, 4)), torch.zeros(3, 4))
    assert Known in ASKED
    _check(_asks, compiled)


def test_what_classes_hold_is_not_walked_for_code_that_only_asks():
    def asks(x):
        return x.scale if Known in ASKED and hasattr(x, "scale") else x * 2

    compiled = staticrt.compile(asks)
    _check(asks, compiled)
    Other.scale = 5.0
    _check(asks, compiled)
    assert len(compiled.explain().traces) == 1


@pytest.mark.parametrize("function", [_reads_after, _reads_before, _hands_on])
def test_code_that_also_reads_the_classes_sees_their_changes(function):
    compiled = staticrt.compile(function)
    _check(function, compiled)
    Other.scale = 5.0
    _check(function, compiled)
    ASKED.discard(Other)  # which no code names
    _check(function, compiled)


class Equal(type):
    def __eq__(cls, other):
        return cls.number == other.number

    def __hash__(cls):
        return hash(cls.number)


class First(metaclass=Equal):
    number = 1


class Second(metaclass=Equal):
    number = 2


EQUAL = {First}


def test_classes_that_are_equal_by_what_they_hold_are_walked():
    def asks(x):
        return x + 1 if Second in EQUAL else x - 1

    compiled = staticrt.compile(asks)
    _check(asks, compiled)
    Second.number = 1
    try:
        _check(asks, compiled)
    finally:
        Second.number = 2
