"""`torch.compile(model, backend="staticrt")` without gradients."""

import logging

import pytest
import torch
from torch import nn

from staticrt.errors import OptionError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _equal(function, make_arguments, calls=3, **keywords):
    compiled = torch.compile(function, backend="staticrt", **keywords)
    with torch.no_grad():
        for call in range(calls):
            mine, theirs = make_arguments(call), make_arguments(call)
            torch.manual_seed(call)
            got = compiled(*mine)
            torch.manual_seed(call)
            want = function(*theirs)
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(mine, theirs)
    return compiled


def _inputs(*sizes):
    def make(call):
        generator = torch.Generator().manual_seed(call)
        return tuple(torch.randn(size, generator=generator) for size in sizes)

    return make


def test_backend_is_listed():
    assert "staticrt" in torch._dynamo.list_backends()
    assert "staticrt" in torch.compiler.list_backends()


def test_modules():
    _equal(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16)), _inputs((4, 8)))


def test_program_of_the_runtime_runs(caplog):
    with caplog.at_level(logging.INFO, "staticrt"):
        _equal(lambda x: (x @ x).relu(), _inputs((5, 5)))
    assert any("compiled a graph" in record.message for record in caplog.records)


def test_sizes_change():
    def make(call):
        return (torch.randn(2 + call, 3 + call),)

    torch.manual_seed(0)
    compiled = torch.compile(lambda x: x.softmax(-1) * x.shape[0], backend="staticrt", dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for call in range(6):
            (x,) = make(call)
            torch.testing.assert_close(compiled(x), x.softmax(-1) * x.shape[0])
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_sizes_become_symbols_by_themselves():
    compiled = torch.compile(lambda x: (x * x.shape[0]).cumsum(0), backend="staticrt")
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for size in (4, 7, 11, 5, 2):
            x = torch.randn(size, 3)
            torch.testing.assert_close(compiled(x), (x * size).cumsum(0))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 2


def test_marked_sizes():
    compiled = torch.compile(lambda x: x.mean(0) + x.shape[0], backend="staticrt", fullgraph=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.no_grad():
        for size in (4, 7, 11):
            x = torch.randn(size, 3)
            torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(compiled(x), x.mean(0) + size)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before == 1


def test_graph_breaks():
    def function(x):
        y = x.sin()
        torch._dynamo.graph_break()
        if y.sum() > 0:
            return y.exp()
        return y.cos()

    _equal(function, _inputs((6,)), calls=6)


def test_fullgraph_raises_where_it_breaks():
    def function(x):
        torch._dynamo.graph_break()
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(function, backend="staticrt", fullgraph=True)(torch.ones(2))


def test_outputs_that_are_no_tensors():
    _equal(lambda x: (x.shape[0], None, [x + 1, {"a": x * 2}], 3.5), _inputs((3, 2)))


def test_outputs_that_alias():
    def function(x):
        y = x * 2
        return x, x.t(), y, y[0], y

    compiled = torch.compile(function, backend="staticrt")
    with torch.no_grad():
        for _call in range(3):
            x = torch.randn(3, 4)
            same, transposed, y, row, again = compiled(x)
            assert same is x
            assert transposed.data_ptr() == x.data_ptr()
            assert row.data_ptr() == y.data_ptr()
            assert again is y
            y.zero_()
            assert row.eq(0).all()


def test_arguments_and_buffers_are_written():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(4))
            self.count = 0

        def forward(self, x):
            self.total += x.sum(0)
            self.count += 1
            x[0].mul_(3)
            return self.total * x

    mine, theirs = Counting(), Counting()
    compiled = torch.compile(mine, backend="staticrt")
    with torch.no_grad():
        for _call in range(4):
            x = torch.randn(3, 4)
            y = x.clone()
            torch.testing.assert_close(compiled(x), theirs(y))
            torch.testing.assert_close(x, y)
            torch.testing.assert_close(mine.total, theirs.total)
            assert mine.count == theirs.count


def test_arguments_that_share_memory():
    def function(x, y):
        x.add_(1)
        return x * y

    compiled = torch.compile(function, backend="staticrt")
    with torch.no_grad():
        for overlap in (False, True, False, True):
            base = torch.arange(10.0)
            mine = (base[:6], base[4:]) if overlap else (base[:6].clone(), base[4:].clone())
            base = torch.arange(10.0)
            theirs = (base[:6], base[4:]) if overlap else (base[:6].clone(), base[4:].clone())
            torch.testing.assert_close(compiled(*mine), function(*theirs))
            torch.testing.assert_close(mine, theirs)


def test_random_numbers_come_in_eagers_order():
    _equal(
        lambda x: torch.rand_like(x) + nn.functional.dropout(x, 0.3) * torch.randn(x.shape[0], 1),
        _inputs((5, 4)),
    )


def test_no_grad_inside_and_parameters_outside():
    net = nn.Linear(4, 4)

    def function(x):
        with torch.no_grad():
            scale = net(x).abs().mean()
        return net(x) / scale

    compiled = torch.compile(function, backend="staticrt")
    for _call in range(3):
        x = torch.randn(2, 4)
        got, want = compiled(x), function(x)
        torch.testing.assert_close(got, want)
        assert got.requires_grad


def test_inference_mode():
    net = nn.Linear(3, 3)
    compiled = torch.compile(net, backend="staticrt")
    with torch.inference_mode():
        for _call in range(3):
            x = torch.randn(2, 3)
            torch.testing.assert_close(compiled(x), net(x))


def test_options_reach_the_runtime_and_unknown_ones_are_named():
    torch.compile(lambda x: x + 1, backend="staticrt", options={"prepared": False})(torch.ones(3))
    compiled = torch.compile(lambda x: x + 1, backend="staticrt", options={"prepard": False})
    with pytest.raises(Exception, match="did you mean 'prepared'") as raised:
        compiled(torch.ones(3))
    assert _caused_by(raised.value, OptionError)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_memory_budget": 2}, "is at most 1, got 2"),
        ({"activation_memory_budget": float("nan")}, "is at least 0, got nan"),
        ({"trace_seconds": float("nan")}, "is at least 0, got nan"),
        ({"activation_memory_budget": -0.5}, "is at least 0"),
        ({"donate": ("x",)}, "option 'donate' names arguments of a function"),
        ({"max_prepared": True}, "takes int or None, got True"),
        ({"triton.cudagraphs": True}, "unknown option 'triton.cudagraphs'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(Exception, match=message) as raised:
        torch.compile(lambda x: x + 1, backend="staticrt", options=options)(torch.ones(3))
    assert _caused_by(raised.value, OptionError)


def test_modes():
    for mode in ("default", "reduce-overhead", "max-autotune"):
        torch._dynamo.reset()
        torch.compile(lambda x: x + 1, backend="staticrt", mode=mode)(torch.ones(3))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="unknown mode 'fastest'"):
        torch.compile(lambda x: x + 1, backend="staticrt", mode="fastest")(torch.ones(3))


def _caused_by(error, kind):
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False
