"""Models that make an attribute where it is not there yet, behind a graph break: it is made once, and as often as it goes."""

import contextlib
import operator

import pytest
import torch

import staticrt

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Slotted:
    __slots__ = ("factor", "table")


class Plain:
    pass


def new_function():
    return lambda: None


def catches(holder, x):
    try:
        table = holder.table
    except AttributeError:
        table = holder.table = made(holder)
    return x * table


def goes_on(holder, x):
    with contextlib.suppress(AttributeError):
        return x * operator.attrgetter("table")(holder)
    holder.table = made(holder)
    return x * holder.table


def looks_in_the_dict(holder, x):
    if "table" not in holder.__dict__:
        holder.__dict__["table"] = made(holder)
    return x * holder.table


def looks_among_variables(holder, x):
    if vars(holder).get("table") is None:
        holder.table = made(holder)
    return x * holder.table


def sets_a_default(holder, x):
    return x * holder.__dict__.setdefault("table", made(holder))


def asks(holder, x):
    if not hasattr(holder, "table"):
        holder.table = made(holder)
    return x * holder.table


def made(holder):
    return torch.full((2,), holder.factor)


ANY = (catches, goes_on, asks)
WITH_A_DICT = (looks_in_the_dict, looks_among_variables, sets_a_default)


@pytest.mark.parametrize("way", ["inference", "training", "backend"])
@pytest.mark.parametrize(
    ("make", "body"),
    [
        *((make, body) for make in (torch.nn.Module, Plain) for body in ANY + WITH_A_DICT),
        *((make, body) for make in (Slotted, new_function) for body in ANY),
    ],
)
def test_what_is_made_once_stays(make, body, way):
    holder = make()
    holder.factor = 2.0

    def model(x):
        print(end="")
        return body(holder, x)

    compiled = torch.compile(model, backend="staticrt") if way == "backend" else staticrt.compile(model)
    x = torch.ones(2, requires_grad=way == "training")
    assert compiled(x).tolist() == [2.0] * 2
    table = holder.table
    assert compiled(x).tolist() == [2.0] * 2
    assert holder.table is table
    holder.table = torch.ones(2)
    assert compiled(x).tolist() == [1.0] * 2
    holder.table.add_(2)
    assert compiled(x).tolist() == [3.0] * 2
    del holder.table
    assert compiled(x).tolist() == [2.0] * 2
    assert holder.table.tolist() == [2.0] * 2
