"""verify=True: prepared runs are held against the general path."""

import pytest
import torch
from torch.nn import functional as F

import staticrt
from staticrt.errors import InternalError
from staticrt.models import zoo


@pytest.mark.parametrize(
    "name", ["mlp", "wide_deep", "encoder_tiny", "lstm_unrolled", "graph_network", "control_flow"]
)
def test_the_zoo_agrees(name):
    (entry,) = zoo.select([name])
    model, args = entry.build(), entry.inputs()
    with torch.no_grad():
        fast = staticrt.compile(model, verify=True)
        for _ in range(3):
            torch.testing.assert_close(fast(*args), model(*args), rtol=1e-4, atol=1e-4)
    (native,) = fast._executor.natives()
    assert native.cache_counters["prepared"] == 1


def call(function, x, times):
    for _ in range(times):
        function(x)


def test_a_difference_is_an_error_that_names_the_result():
    calls = 0

    @torch.library.custom_op("staticrt_tests::counting", mutates_args=())
    def counting(x: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return x + calls

    @counting.register_fake
    def _(x):
        return torch.empty_like(x)

    fast = staticrt.compile(lambda x: torch.ops.staticrt_tests.counting(x) * 2, verify=True)
    x = torch.ones(4)
    fast(x)
    with pytest.raises(InternalError, match="differs from the general path's in value"):
        call(fast, x, 3)


def test_random_draws_and_writes_are_compared_once():
    state = torch.zeros(8)

    def step(x, s):
        s.add_(1)
        return F.dropout(x, 0.5) + s

    fast = staticrt.compile(step, verify=True)
    x = torch.ones(8)
    for call in range(5):
        torch.manual_seed(call)
        got = fast(x, state)
        torch.manual_seed(call)
        torch.testing.assert_close(got, F.dropout(x, 0.5) + state)
        assert float(state[0]) == call + 1
