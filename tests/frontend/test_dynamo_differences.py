"""Behind a graph break, sets, attributes and generators behave as in eager."""

import builtins
import collections
import inspect
import itertools
import sys
import traceback

import numpy as np
import pytest
import torch

import staticrt


class Model(torch.nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.members, self.moved = body, {1, 9, 17}, {0, 1, 16}
        self.moved -= {0, 1}
        self.a, self.b = 1.0, 2.0
        self.ordered = collections.OrderedDict(u=2.0, v=3.0, w=5.0)

    def forward(self, x):
        print(end="")
        return self.body(self, x)


def shows_a_number(_model, x):
    number = x.sum().item()
    return x + 1, f"{number:.2f}", f"{number}"


def formats_a_number(_model, x):
    return x + 1, format(x.sum().item(), ".3f"), format(x.shape[0], "03d")


def rounds_a_number(_model, x):
    return x + 1, round(int(x.sum()), -1), round(x.sum().item() / 3, 1)


def discards_and_adds(model, x):
    model.members.discard(1)
    model.members.add(1)
    return x + 1, list(model.members)


def adds_in_another_order(_model, x):
    members = set()
    for number in (5, 3, 11, 2):
        members.add(number)
    return x + 1, [number * 2 for number in members]


def goes_through_it_later(_model, x):
    members = {7, 3, x.dim()}
    members.discard(3)
    members.add(0)
    y = x + 1
    print(end="")
    return y * 2, list(members), members.pop()


def makes_lists(_model, x):
    members = {0, 9, 3, x.dim() + 6}
    found = [1, 2]
    found.extend({8, 3, 10})
    return x + 1, list(members), found, collections.deque({9, 2})


def removes_what_moved_another(_model, x):
    """16 lies behind 0 and 1, where their hashes put it, and stays there when these have gone."""
    members = {0, 1, 16}
    members.discard(0)
    members.discard(1)
    members.add(17)
    return x + 1, list(members)


def subtracts_what_moved_another(_model, x):
    members = {0, 1, 16, x.dim()}
    members -= {0, 1}
    members.add(17)
    return x + 1, list(members)


def adds_where_another_moved(model, x):
    model.moved.add(17)
    return x + 1, list(model.moved)


def joins(_model, x):
    return x + 1, [*({5, 3} | {11, 2})], tuple({5, 3, 8} - {3}), next(iter({4, 2, 1} & {1, 4}))


def folds(_model, x):
    for number in {3.5, 2.0, 0.25, 7.0} | {x.dim() + 0.5}:
        x = x * number + 1
    return x


def sorts(_model, x):
    return x + 1, sorted({5, 3} | {x.dim()}), 3 in ({5, 3} - {5})


def deletes_and_sets(model, x):
    value = model.a
    del model.a
    model.a = value + 1
    return x * model.a, [ord(name) for name in vars(model) if len(name) == 1]


def sends(_model, x):
    def averages():
        total = x * 0
        for count in itertools.count(1):
            total = total + (yield total / count)

    generator = averages()
    next(generator)
    first = generator.send(x)
    print(end="")
    return first, generator.send(x * 2)


def ends_early(model, x):
    def counts():
        number = 0.0
        try:
            while True:
                number += 1
                model.a += 1
                yield x * number
        finally:
            model.b += 1

    generator = counts()
    first = next(generator)
    print(end="")
    second = next(generator)
    generator.close()
    return first, second, model.a, model.b


def takes_what_it_returns(_model, x):
    def rows():
        yield from x.unbind(0)
        return x.shape[0]

    def all_rows(counts):
        counts.append((yield from rows()))

    counts = []
    return torch.stack(list(all_rows(counts))) * 2, counts


def gives(model, x):
    def rows():
        for row in x:
            model.a += 1
            yield row * 2

    return rows()


def totals(x):
    total = x
    while True:
        try:
            more = yield total
        except ValueError:
            total = total * 10
            continue
        if more is None:
            return total
        total = total + more


def last_total(x):
    generator = totals(x)
    next(generator)
    generator.send(1)
    generator.throw(ValueError)
    try:
        generator.send(None)
    except StopIteration as end:
        return end.value


def throws(_model, x):
    print(end="")
    return last_total(x), x.shape[0]


class Doubled(float):
    def __rmul__(self, other):
        return other * (float(self) * 2)

    __mul__ = __rmul__


def multiplies_by_a_derived_number(_model, x):
    print(end="")
    return DOUBLED * x, x.shape[0]


DOUBLED = Doubled(3)


def changes_arrays(model, x):
    bias = torch.ones(2)
    bias += 1
    seen = bias.numpy()
    seen += 1
    seen[1:] *= 3
    model.a += float(seen.sum())
    return x * bias, seen.sum()


def moves_the_first_item(model, x):
    name, value = model.ordered.popitem(last=False)
    model.ordered[name] = value
    return x * value, ord(name)


def taken(result):
    """What a caller sees of a result; of a generator the first item."""
    return (0, next(result)) if hasattr(result, "send") else result


BODIES = [
    *(discards_and_adds, adds_in_another_order, goes_through_it_later, joins, folds, sorts),
    *(makes_lists, removes_what_moved_another, subtracts_what_moved_another, adds_where_another_moved),
    *(deletes_and_sets, sends, ends_early, takes_what_it_returns, gives, changes_arrays),
    *(moves_the_first_item, throws, multiplies_by_a_derived_number),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_what_dynamo_runs_otherwise_is_eagers(body, gradients):
    model, plain = Model(body), Model(body)
    compiled = staticrt.compile(model)
    for rows in (2, 3, 2):
        x = torch.ones(rows, 2, requires_grad=gradients)
        torch.testing.assert_close(taken(compiled(x)), taken(plain(x)))
        assert [*model.members] == [*plain.members]
        assert [*model.moved] == [*plain.moved]
        assert [*vars(model)] == [*vars(plain)]
        assert (model.a, model.b) == (plain.a, plain.b)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("body", [shows_a_number, formats_a_number, rounds_a_number])
def test_texts_and_rounded_numbers_are_eagers(body, gradients):
    compiled = staticrt.compile(Model(body))
    for rows in (2, 2, 3, 1):
        x = torch.ones(rows, 2, requires_grad=gradients)
        got, expected = compiled(x), body(None, x)
        assert got[1:] == expected[1:]
        assert torch.equal(got[0], expected[0])


def test_sets_whose_order_makes_no_difference_stay_compiled():
    compiled = staticrt.compile(Model(sorts))
    with torch.no_grad():
        compiled(torch.ones(2, 2))
    assert len(compiled.explain().traces) == 1


def test_the_reason_is_told_and_what_the_function_calls_is_compiled():
    def doubled(x):
        return x * 2

    compiled = staticrt.compile(Model(lambda model, x: discards_and_adds(model, doubled(x))))
    with torch.no_grad():
        compiled(torch.ones(2, 2))
    explanation = compiled.explain()
    assert len(explanation.traces) == 1
    assert "another order than Python" in str(explanation)


def callers_names():
    return sorted(sys._getframe(1).f_locals)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    "looked",
    [
        *("eval('k')", "sorted(locals())", "sorted(vars())", "dir()", "callers_names()", "exec('k') or k"),
        *("inspect.stack()[0].function", "sys._getframe().f_code.co_name", "(lambda k: eval('k'))(k)"),
        *(
            "stack()[0].function",
            "frame().f_code.co_name",
            "sorted(variables())",
            "sorted(builtins.locals())",
        ),
        *("traceback.extract_stack()[-1].name", "sys.exc_info()[2].tb_frame.f_code.co_name"),
    ],
)
def test_frames_that_code_looks_at_are_eagers(looked, gradients):
    names = {module.__name__: module for module in (sys, inspect, builtins, traceback)}
    names.update(callers_names=callers_names, stack=inspect.stack, frame=sys._getframe, variables=locals)
    lines = (
        "y = x + 1",
        "print(end='')",
        "try:",
        "    raise KeyError",
        "except KeyError:",
        f"    return y * k, {looked}",
    )
    exec("\n    ".join(("def function(x, k):", *lines)), names)
    compiled = staticrt.compile(names["function"])
    for number in (2, 2, 3):
        x = torch.ones(2, requires_grad=gradients)
        got, expected = compiled(x, number), names["function"](x, number)
        assert torch.equal(got[0], expected[0])
        assert got[1] == expected[1]


NUMBER = np.float64(3.0)


@pytest.mark.parametrize(
    "read", [lambda x, k: x * k, lambda x, k: x if isinstance(k, float) else -x, lambda x, k: (x, k > 1)]
)
@pytest.mark.parametrize("held", ["argument", "global"])
def test_numbers_of_numpy_are_eagers(read, held):
    def function(x, k):
        print(end="")
        return read(x, k if held == "argument" else NUMBER)

    compiled = staticrt.compile(function)
    with torch.no_grad():
        for x in (torch.tensor([1, 2]), torch.ones(2), torch.ones(3)):
            got, expected = compiled(x, np.float64(2.5)), function(x, np.float64(2.5))
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
            assert type(got[-1]) is type(expected[-1])


@pytest.mark.parametrize("given", [range(2), range(5, 8), (1, 2)])
def test_a_range_is_unpacked(given):
    def taken(*values, scale):
        return [value * scale for value in values]

    def function(x, values):
        print(end="")
        return x * 2, taken(*values, scale=3), max(*range(4), 2)

    compiled = staticrt.compile(function)
    with torch.no_grad():
        assert compiled(torch.ones(2), given)[1:] == function(torch.ones(2), given)[1:]


def test_a_method_named_eval_looks_at_no_frame():
    layer = torch.nn.Dropout()

    def function(x):
        print(end="")
        layer.eval()
        return layer(x) * 2

    compiled = staticrt.compile(function)
    with torch.no_grad():
        for _call in range(2):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert compiled.explain().traces
