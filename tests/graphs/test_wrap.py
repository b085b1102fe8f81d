"""What decides which capture a call uses, and what else callers do with a wrapped function."""

import copy
import math
import pickle
import sys

import pytest
import torch

from staticrt.graphs.policy import Policy
from tests.support.graph_harness import device


@pytest.fixture(params=["cpu", "cpu_copy"])
def real(request, make_tree):
    return make_tree(device(request.param), Policy())


def test_floats_that_compare_equal_may_be_others(real):
    f = real.wrap(lambda x, v: x / v)
    x = torch.ones(2)
    for value in (0.0, -0.0, 0.0, -0.0, -0.0, 0.0):
        assert f(x, value)[0].item() == math.copysign(math.inf, value)


def test_nan_is_one_capture(real):
    f = real.wrap(lambda x, v: x + v)
    for _ in range(5):
        assert f(torch.ones(2), float("nan")).isnan().all()
    assert real.captures == 1


def test_equal_numbers_of_other_types_are_other_captures(real):
    f = real.wrap(lambda x, v: x * v)
    for _ in range(2):
        for value in (1, 1.0, True, 1 + 0j):
            x = torch.ones(2, dtype=torch.int64)
            assert f(x, value).dtype == (x * value).dtype


def test_each_generator_draws_its_own_numbers(real):
    f = real.wrap(lambda x, g: x + torch.rand(3, generator=g))
    for seed in range(4):
        mine, twin = (torch.Generator().manual_seed(seed) for _ in range(2))
        for _ in range(3):
            assert torch.equal(f(torch.zeros(3), mine), torch.rand(3, generator=twin))
        assert torch.equal(mine.get_state(), twin.get_state())


def test_a_deep_copy_has_tensors_of_its_own(real):
    f = real.wrap(torch.nn.Linear(3, 2), name="linear")
    x = torch.randn(4, 3)
    with torch.no_grad():
        before = f(x)
        g = copy.deepcopy({"f": f})["f"]
        real.wrapped.append(g)
        for parameter in f._module.parameters():
            parameter.zero_()
        for _ in range(3):
            assert torch.equal(f(x), torch.zeros(4, 2))
            torch.testing.assert_close(g(x), before)
    assert g.context is f.context
    assert g.name == "linear"


def test_a_debugger_that_reads_local_variables_may_trace_the_call(real):
    def read(frame, event, argument):
        frame.f_trace_opcodes = True
        return read if frame.f_locals is not None else None

    before = sys.gettrace()
    sys.settrace(read)
    try:
        f = real.wrap(torch.nn.Linear(3, 2), name="linear")
    finally:
        sys.settrace(before)
    assert f.name == copy.deepcopy(f).name == "linear"


def test_a_pickle_says_what_to_do(real):
    f = real.wrap(torch.nn.Linear(3, 2))
    with pytest.raises(TypeError, match="pickle the function itself"):
        pickle.dumps(f)
    with pytest.raises(TypeError, match="belong to this process"):
        pickle.dumps(real.ctx)
