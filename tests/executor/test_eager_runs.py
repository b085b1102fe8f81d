"""Calls that run eagerly again and again are not looked at anew each time."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import staticrt
from staticrt import tuning
from staticrt.executor import executor as under_test
from staticrt.runtime.call import Call
from staticrt.runtime.eager_calls import watch_eager


class Quantized(nn.Module):
    def forward(self, x):
        return torch.quantize_per_tensor(x * 2, 0.1, 0, torch.quint8).dequantize()


@pytest.fixture
def taken_apart(monkeypatch):
    """The sizes of each call that was looked at."""
    seen = []

    class Counted(Call):
        @staticmethod
        def of(args, kwargs):
            seen.append(tuple(args[0].shape) if args else "keywords")
            return Call.of(args, kwargs)

    monkeypatch.setattr(under_test, "Call", Counted)
    return seen


def run(fast, module, x, calls):
    with torch.no_grad():
        for _ in range(calls):
            assert torch.equal(fast(x), module(x))


def test_after_many_alike_most_are_not_looked_at(taken_apart):
    module = Quantized().eval()
    fast = staticrt.compile(module)
    x = torch.rand(4)
    run(fast, module, x, 4 * tuning.EAGER_RUN_CALLS)
    assert len(taken_apart) <= tuning.EAGER_RUN_CALLS + 4
    taken_apart.clear()
    run(fast, module, x, 4 * tuning.EAGER_RUN_CALLS)
    assert 1 <= len(taken_apart) <= 4  # now and then the model may have changed
    assert f"({8 * tuning.EAGER_RUN_CALLS} calls)" in str(fast.explain())


def test_other_arguments_are_looked_at(taken_apart):
    module = Quantized().eval()
    fast = staticrt.compile(module)
    run(fast, module, torch.rand(4), 2 * tuning.EAGER_RUN_CALLS)
    for other in (torch.rand(5), torch.rand(4, dtype=torch.float64).float().view(2, 2)):
        taken_apart.clear()
        run(fast, module, other, 1)
        assert taken_apart == [tuple(other.shape)]
    taken_apart.clear()
    with torch.no_grad():
        fast(x=torch.rand(4))
    assert taken_apart == ["keywords"]


class Scaled(Quantized):
    def forward(self, x, by=2, *, flip=False):
        y = super().forward(x) * by
        return -y if flip else y


@pytest.mark.parametrize(
    "other",
    [
        ((torch.rand(4), 3), {}),
        ((torch.rand(4), 2.0), {}),
        ((torch.rand(4), True), {}),
        ((torch.rand(4),), {"flip": True}),
        ((torch.rand(4),), {"by": 2}),
        ((torch.rand(2, 2), 2), {}),
        ((torch.rand(4, dtype=torch.float64).float().expand(2, 4), 2), {"flip": False}),
    ],
    ids=["int", "float", "bool", "keyword", "by keyword", "sizes", "more keywords"],
)
def test_what_differs_is_looked_at(taken_apart, other):
    module = Scaled().eval()
    fast = staticrt.compile(module)
    args, kwargs = other
    with torch.no_grad():
        for _ in range(3 * tuning.EAGER_RUN_CALLS):
            fast(torch.rand(4), 2)
        taken_apart.clear()
        fast(torch.rand(4), 2)
        assert not taken_apart
        torch.testing.assert_close(fast(*args, **kwargs), module(*args, **kwargs), rtol=0, atol=0)
        assert len(taken_apart) == 1


def test_calls_with_gradients_are_looked_at(taken_apart):
    module = Quantized().eval()
    fast = staticrt.compile(module)
    run(fast, module, torch.rand(4), 2 * tuning.EAGER_RUN_CALLS)
    x = torch.rand(4, requires_grad=True)
    with torch.no_grad():
        fast(x)
    assert len(taken_apart) >= 1
    assert "(4,)" in str(taken_apart[-1])


def test_profiles_see_calls_that_are_not_looked_at(taken_apart):
    module = Quantized().eval()
    fast = staticrt.compile(module)
    run(fast, module, torch.rand(4), 3 * tuning.EAGER_RUN_CALLS)
    taken_apart.clear()
    with watch_eager() as spans:
        run(fast, module, torch.rand(4), 3)
    assert not taken_apart
    assert len(spans) == 3
    assert all(span.reason for span in spans)


def test_calls_of_two_kinds_are_counted_under_their_own_reasons():
    class Two(nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8).dequantize()
            return Quantized.forward(self, x)

    fast = staticrt.compile(Two().eval())
    once, often = torch.rand(4), torch.rand(4, dtype=torch.float64)
    with torch.no_grad():
        for x in [*[often] * (tuning.EAGER_RUN_CALLS + 1), once, *[often] * 5]:
            fast(x)
    assert sorted(report.calls for report in fast.explain().eager) == [1, tuning.EAGER_RUN_CALLS + 6]


def test_a_donated_argument_is_given_up_by_eager_calls():
    module = Quantized().eval()
    fast = staticrt.compile(module, donate=["x"])
    with torch.no_grad():
        for _ in range(3 * tuning.EAGER_RUN_CALLS):
            x = torch.rand(4)
            fast(x)
            with pytest.raises(RuntimeError, match="donated"):
                x + 1


def test_a_call_that_can_be_compiled_still_is(taken_apart):
    class Either(nn.Module):
        def forward(self, x):
            return Quantized.forward(self, x) if x.dtype == torch.float32 else x * 2

    module = Either().eval()
    fast = staticrt.compile(module)
    run(fast, module, torch.rand(3), 2 * tuning.EAGER_RUN_CALLS)
    run(fast, module, torch.rand(3, dtype=torch.float64), 3)
    assert "1 traced graph" in str(fast.explain())


def test_a_wrong_call_raises_as_eager_does(taken_apart):
    class Picky(nn.Module):
        def forward(self, x):
            if bool((x > 1).any()):
                raise ValueError("too large")
            return Quantized.forward(self, x)

    module = Picky().eval()
    fast = staticrt.compile(module)
    run(fast, module, torch.zeros(4), 3 * tuning.EAGER_RUN_CALLS)
    for _ in range(3):
        with pytest.raises(ValueError, match="too large"), torch.no_grad():
            fast(torch.full((4,), 2.0))
        run(fast, module, torch.zeros(4), 2)


def test_a_trace_with_symbolic_sizes_after_many_eager_calls():
    class Either(nn.Module):
        def forward(self, x):
            return (
                x.sin() if torch._C._functorch.is_functorch_wrapped_tensor(x) else Quantized.forward(self, x)
            )

    fast = staticrt.compile(Either().eval())
    with torch.no_grad():
        for _ in range(tuning.EAGER_RUN_CALLS + 1):
            fast(torch.rand(4))
        graph = make_fx(torch.vmap(fast), tracing_mode="symbolic")(torch.rand(3, 4))
    assert torch.ops.aten.sin.default in [node.target for node in graph.graph.nodes]
