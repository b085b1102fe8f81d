"""A loaded model answers the calls the saved one would, and says why it refuses the others."""

import dataclasses
import io

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import ArchiveError, GradError, InputError
from tests.support.saved_archives import Point, mlp, reload

pytestmark = pytest.mark.usefixtures("no_gradients")


def test_other_sizes_need_no_other_trace():
    model = mlp()
    loaded = reload(model, (torch.randn(4, 16),))
    for batch in (4, 1, 9, 4):
        x = torch.randn(batch, 16)
        torch.testing.assert_close(loaded(x), model(x))
        torch.testing.assert_close(loaded(input=x), model(x))
    torch.testing.assert_close(loaded(torch.ones(16, 5).t()), model(torch.ones(16, 5).t()))


class Draws(nn.Module):
    def forward(self, x):
        return (x + 1) * nn.functional.dropout(x, 0.5, True)


class ReadsMemory(nn.Module):
    """Of memory: its argument's, or that of a tensor laid out as its argument is."""

    def __init__(self, of):
        super().__init__()
        self.of = of

    def forward(self, x):
        return self.of(x).as_strided((3, 2), (4, 1)) * 2


@pytest.mark.parametrize(
    "model", [ReadsMemory(lambda x: x), ReadsMemory(lambda x: x.flip(0)), ReadsMemory(torch.exp), Draws()]
)
def test_what_depends_on_the_layout_of_an_argument_is_not_asked_of_a_copy(model):
    memory = torch.linspace(0, 1, 24)
    rows, columns, pieces = memory[:12].view(3, 4), memory[:12].view(4, 3).t(), memory.view(6, 4)[::2]
    for saved, others in ((rows, (columns, pieces)), (columns, (rows, pieces))):
        loaded = reload(model, (saved,))
        for x in (saved, saved * 2):
            results = []
            for run in (loaded, model):
                torch.manual_seed(0)
                results.append(run(x))
            torch.testing.assert_close(*results)
        for x in others:
            with pytest.raises(InputError, match="'x' is laid out in memory otherwise than when traced"):
                loaded(x)


class Asks(nn.Module):
    """Its Python code depends on how its argument lies in memory."""

    def __init__(self, asked):
        super().__init__()
        self.asked = asked

    def forward(self, x):
        return x * self.asked(x)


@pytest.mark.parametrize(
    "asked",
    [
        lambda x: x.stride(0),
        lambda x: 2 if x.is_contiguous() else 3,
        lambda x: len(x) + torch.Tensor.stride(x, 1),
    ],
    ids=["stride", "is_contiguous", "function"],
)
def test_code_that_asks_for_strides_needs_the_layout_of_the_trace(asked):
    rows, columns = torch.linspace(0, 1, 12).view(3, 4), torch.linspace(0, 1, 12).view(4, 3).t()
    model = Asks(asked)
    for saved, other in ((rows, columns), (columns, rows)):
        loaded = reload(model, (saved,))
        torch.testing.assert_close(loaded(saved), model(saved))
        with pytest.raises(InputError, match="'x' is laid out in memory otherwise than when traced"):
            loaded(other)


class Follows(nn.Module):
    """Draws random numbers, or reads memory, of what `of` makes of its argument."""

    def __init__(self, of, what):
        super().__init__()
        self.of = of
        self.what = what

    def forward(self, x):
        return self.what(self.of(x))


def dropped(x):
    return nn.functional.dropout(x, 0.5, True)


@pytest.mark.parametrize(
    "model",
    [
        Follows(nn.Linear(4, 6), dropped),
        Follows(lambda x: x.long(), nn.Sequential(nn.Embedding(2, 3), nn.Dropout())),
        Follows(nn.Linear(4, 4), lambda x: x.as_strided((2, 3), (3, 1)) * 2),
        Follows(nn.GRU(4, 5).eval(), lambda result: result[0] + torch.randn(5)),  # draws nothing itself
        Follows(lambda x: x.sum() + torch.randn(x.shape[0], 2), nn.Identity()),
    ],
    ids=["linear", "embedding", "memory", "idle", "sizes"],
)
def test_random_numbers_of_row_major_values_need_no_layout_of_an_argument(model):
    rows, columns = torch.linspace(0, 1, 12).view(3, 4), torch.linspace(0, 1, 12).view(4, 3).t()
    for saved, other in ((rows, columns), (columns, rows)):
        loaded = reload(model, (saved,))
        results = []
        for run in (loaded, model):
            torch.manual_seed(0)
            results.append(run(other))
        torch.testing.assert_close(*results)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ((torch.randn(4, 15),), r"size of 'input' in dimension 1 = 15"),
        ((torch.randn(4, 16).double(),), r"'input' has dtype Double, expected Float"),
        ((torch.randn(16),), r"'input' has 1 dimensions, \[16\], expected 2"),
        ((3,), r"'input' is not a tensor"),
        (("x",), r"'input' is not a tensor"),
        ((torch.randn(4, 16), 1), r"the call gives \(Tensor, int\), the trace takes \(input\)"),
        ((), r"the call gives \(\), the trace takes \(input\)"),
        ((object(),), r"'input' is a object"),
        ((1 << 70,), r"more than 64 bits"),
        ((torch.randn(4, 16).to_sparse(),), r"not a dense tensor"),
    ],
)
def test_calls_outside_the_traces_are_errors_that_say_why(call, message):
    loaded = reload(mlp(), (torch.randn(4, 16),))
    x = torch.randn(2, 16)
    expected = loaded(x)
    with pytest.raises(InputError, match=message):
        loaded(*call)
    torch.testing.assert_close(loaded(x), expected)


def test_size_conditions_of_the_model_are_kept():
    class Branches(nn.Module):
        def forward(self, x, y):
            if x.shape[0] * 2 > y.shape[0] and x.shape[1] % 4 == 0:
                return x.sum() + y.sum()
            return x.sum() - y.sum()

    model = Branches()
    loaded = reload(model, (torch.ones(6, 8), torch.ones(7)))
    for rows, columns, other in ((6, 8, 7), (9, 4, 17), (5, 12, 3)):
        x, y = torch.randn(rows, columns), torch.randn(other)
        torch.testing.assert_close(loaded(x, y), model(x, y))
    for rows, columns, other in ((6, 9, 7), (3, 8, 7)):
        with pytest.raises(InputError, match="does not hold"):
            loaded(torch.ones(rows, columns), torch.ones(other))
    both = reload(model, (torch.ones(6, 8), torch.ones(7)), (torch.ones(2, 8), torch.ones(7)))
    for rows in (2, 6):
        x, y = torch.randn(rows, 8), torch.randn(7)
        torch.testing.assert_close(both(x, y), model(x, y))


def test_every_trace_is_saved():
    model = mlp()
    doubled = mlp().double()
    compiled = staticrt.compile(lambda module, x: x * 2 if module == "double" else x + 1)
    x = torch.randn(3)
    compiled("double", x)
    compiled("other", x)
    compiled("double", x.int())
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    torch.testing.assert_close(loaded("double", x), x * 2)
    torch.testing.assert_close(loaded("other", x), x + 1)
    torch.testing.assert_close(loaded("double", x.int()), x.int() * 2)
    with pytest.raises(InputError, match="traced as the constant"):
        loaded("third", x)
    assert model is not doubled


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    name: str


class Nested(nn.Module):
    def forward(self, pair, /, *rest, scale=2.0, options=None, **more):
        a, b = pair
        total = a * scale + b["inner"][0]
        for item in rest:
            total = total + item
        if options is not None and options["negate"]:
            total = -total
        for item in more.values():
            total = total + item
        return {"total": total, "parts": [a, (b["inner"][0], None, 3)], "point": Point(total * 2, "label")}


def test_nested_arguments_and_results():
    model = Nested()
    t = torch.randn
    args = ((t(2, 3), {"inner": [t(2, 3)]}), t(2, 3), t(3))
    kwargs = {"scale": 0.5, "options": {"negate": True}, "z": t(2, 1), "b": t(1)}
    compiled = staticrt.compile(model)
    compiled(*args, **kwargs)
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    loaded = staticrt.load(buffer.getvalue())
    for _ in range(3):
        got, expected = loaded(*args, **kwargs), model(*args, **kwargs)
        torch.testing.assert_close(got["total"], expected["total"])
        assert list(got) == ["total", "parts", "point"]
        assert got["parts"][0] is args[0][0]
        assert got["parts"][1][1:] == (None, 3)
        assert type(got["point"]) is Point
        assert got["point"].y == "label"
        torch.testing.assert_close(got["point"].x, expected["point"].x)
    shuffled = {name: kwargs[name] for name in ("b", "options", "z", "scale")}
    torch.testing.assert_close(loaded(*args, **shuffled)["total"], model(*args, **kwargs)["total"])
    with pytest.raises(InputError, match=r"'options\['negate'\]' is false, traced as the constant true"):
        loaded(*args, **{**kwargs, "options": {"negate": False}})


def test_positional_keyword_and_default_arguments_are_the_same_call():
    class Named(nn.Module):
        def forward(self, x, y=None, *, flag=True, power=2):
            out = x**power if flag else x
            return out if y is None else out + y

    model = Named()
    x, y = torch.randn(3), torch.randn(3)
    loaded = reload(model, (x, y))
    for call in (
        lambda m: m(x, y),
        lambda m: m(x, y=y),
        lambda m: m(y=y, x=x),
        lambda m: m(x, y, flag=True),
        lambda m: m(x, y, power=2, flag=True),
    ):
        torch.testing.assert_close(call(loaded), call(model))
    with pytest.raises(InputError):
        loaded(x, y, flag=False)
    with pytest.raises(InputError):
        loaded(x, y, x)
    with pytest.raises(InputError):
        loaded(x, y, nonsense=1)


def test_dataclasses_come_back_where_the_caller_names_them():
    class MakesResult(nn.Module):
        def forward(self, x):
            return Result(x + 1, "sum")

    x = torch.randn(3)
    compiled = staticrt.compile(MakesResult())
    if not isinstance(compiled(x), Result) or compiled.explain().eager:
        with pytest.raises(ArchiveError, match="no trace"):
            staticrt.save(compiled, io.BytesIO())
        return
    buffer = io.BytesIO()
    staticrt.save(compiled, buffer, exported_program=False)
    got = staticrt.load(buffer.getvalue(), types=[Result])(x)
    assert (type(got), got.name) == (Result, "sum")


def test_int_arguments_that_became_symbols():
    class Repeats(nn.Module):
        def forward(self, x, n):
            return x.repeat(n) * n

    model = Repeats()
    x = torch.randn(3)
    loaded = reload(model, None, (x, 2), (x, 3), (x, 4))
    for n in (2, 3, 4, 7):
        torch.testing.assert_close(loaded(x, n), model(x, n))


def test_a_callers_list_is_changed_as_by_the_model():
    class Appends(nn.Module):
        def forward(self, items):
            items.append(items[0] * 2)
            return len(items)

    x = torch.randn(2)
    loaded = reload(Appends(), ([x.clone()],))
    for _ in range(2):
        items = [x]
        assert loaded(items) == 2
        torch.testing.assert_close(items[1], x * 2)


def test_an_argument_that_is_written_must_not_share_memory():
    def function(x, y):
        x.add_(1)
        return x * y

    loaded = reload(function, (torch.ones(3), torch.ones(3)))
    x, y = torch.ones(3), torch.full((3,), 2.0)
    torch.testing.assert_close(loaded(x, y), torch.full((3,), 4.0))
    torch.testing.assert_close(x, torch.full((3,), 2.0))
    for _ in range(2):
        with pytest.raises(InputError, match="shares memory"):
            loaded(x, x.view(3))
        with pytest.raises(InputError, match="'y' and 'x' are the same tensor"):
            loaded(x, x)


def test_calls_that_need_gradients_are_errors():
    loaded = reload(mlp(), (torch.randn(2, 16),))
    with torch.enable_grad():
        x = torch.randn(2, 16, requires_grad=True)
        with pytest.raises(GradError, match=r"'input' requires gradients"):
            loaded(x)
        assert not loaded(x.detach()).requires_grad
    loaded(x)


def test_autocast_is_part_of_a_trace():
    weight = torch.randn(16, 16)

    def model(x):
        return x @ weight

    x = torch.randn(2, 16)
    loaded = reload(model, (x,))
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(InputError, match="traced with autocast off, the call has it at cpu:BFloat16"):
            loaded(x)
        cast = reload(model, (x,))
        torch.testing.assert_close(cast(x), model(x))
    with pytest.raises(InputError, match="traced with autocast cpu:BFloat16, the call has it off"):
        cast(x)
