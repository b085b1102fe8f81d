"""The order of keys, where code takes all items of a dict without iterating over it."""

import pytest
import torch

from tests.support.compilers import each_compiler


def weighted(x, **numbers):
    return sum((x * number**place for place, number in enumerate(numbers.values(), 1)), start=x * 0)


def hands_on(x, **numbers):
    return weighted(x, **numbers)


def unpacks(x, **numbers):
    return weighted(x, **numbers)


def joins(x, **numbers):
    return weighted(x, **(numbers | {"c": 3}))


def updates(x, **numbers):
    other = {"c": 3}
    other.update(numbers)
    return weighted(x, **other)


@each_compiler
@pytest.mark.parametrize("function", [hands_on, unpacks, joins, updates])
def test_keywords_in_another_order_are_taken_in_theirs(compiler, function):
    def behind_a_break(x, **numbers):
        print(end="")
        return function(x, **numbers)

    compiled = compiler(behind_a_break)
    x = torch.ones(2)
    for numbers in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}):
        assert torch.equal(compiled(x, **numbers), function(x, **numbers))
