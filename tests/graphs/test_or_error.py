"""`or_error=True`: a call that would run uncaptured raises and says why. Upstream: `config.triton.cudagraph_or_error`."""

import pytest
import torch

import staticrt
from staticrt.errors import CaptureError
from staticrt.graphs import GraphContext, override
from tests.support.graph_harness import device


class Unknown:
    """No constant that a key could hold."""


def read(x):
    return x * x.sum().item()


def transpose_in_place(x):
    return x.t_() * 2


def thrice(function, inputs):
    for _ in range(3):
        function(*inputs())


@pytest.fixture(params=["cpu", "cpu_copy", "copy", "rebind"])
def context(request):
    ctx = GraphContext("cpu", backend=device(request.param), or_error=True)
    yield ctx
    ctx.close()


REASONS = {
    "a value is read": (read, lambda: (torch.ones(2),), "depend"),
    "an input gets another shape": (transpose_in_place, lambda: (torch.ones(2, 3),), "another shape"),
    "a sparse input": (lambda x: x.to_dense() + 1, lambda: (torch.eye(2).to_sparse(),), "sparse"),
    "an unknown argument": (lambda x, _u: x + 1, lambda: (torch.ones(2), Unknown()), "a Unknown"),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("why", REASONS)
def test_each_reason_is_raised(context, why):
    function, inputs, part = REASONS[why]
    f = context.wrap(function, name="f")
    with pytest.raises(CaptureError, match=f"(?s)f would run uncaptured: .*{part}"):
        thrice(f, inputs)  # a warmup is not an uncaptured run
    good = context.wrap(lambda x: x * 2, name="good")
    for k in range(4):
        assert good(torch.full((2,), float(k))).tolist() == [2.0 * k] * 2
    assert good.context.explain().captures >= 1


@pytest.mark.parametrize("context", ["cpu_copy", "copy"], indirect=True)  # elsewhere writes reach any address
def test_a_written_input_that_cannot_be_captured(context):
    f = context.wrap(lambda x: x.add_(1), mutated_inputs=[0], name="f")
    x = torch.zeros(2)
    with (
        pytest.warns(UserWarning, match="mutation"),
        pytest.raises(CaptureError, match="mutation on input: input 0"),
    ):
        f(x)
    assert x.tolist() == [0.0, 0.0]


def test_transforms_and_modes_around_a_call(context):
    f = context.wrap(lambda x: x * 2, name="f")
    with pytest.raises(CaptureError, match="f would run uncaptured: an active mode or transform"):
        torch.vmap(f)(torch.ones(3))


def test_what_is_left_out_on_purpose_runs(context):
    views = context.wrap(lambda x: x.t(), name="views")
    for _ in range(3):
        assert views(torch.ones(2, 3)).shape == (3, 2)  # min_kernels: nothing to gain
    f = context.wrap(read, name="f")
    with override(False):
        assert f(torch.ones(2)).tolist() == [2.0, 2.0]


def test_policies_leave_out_what_they_name():
    with GraphContext(
        "cpu", or_error=True, captures=lambda name, _mode: name != "f", capture_sizes=[1]
    ) as ctx:
        assert ctx.wrap(read, name="f")(torch.ones(2)).tolist() == [2.0, 2.0]
        g = ctx.wrap(lambda x, n: x * n, name="g")
        assert g(torch.ones(1), 2).tolist() == [2.0]
        assert g(torch.ones(1), 1).tolist() == [1.0]
        assert ctx.explain().captures == 1


def test_the_functions_own_error_is_its_own(context):
    def wrong(x):
        raise ValueError("mine")

    f = context.wrap(wrong)
    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            f(torch.ones(2))


def test_compiled_modules():
    with GraphContext("cpu", or_error=True) as ctx:
        fast = staticrt.compile(torch.nn.Linear(3, 3).eval(), graphs=ctx)
        with torch.no_grad():
            for _ in range(3):
                fast(torch.ones(2, 3))
        assert ctx.explain().captures == 1
        assert not ctx.explain().skips

        class Nonzero(torch.nn.Module):
            def forward(self, x):
                return (x + 1).nonzero()

        found = staticrt.compile(Nonzero(), graphs=ctx)
        with pytest.raises(CaptureError, match=r"(?s)would run uncaptured"):
            found(torch.ones(3))
