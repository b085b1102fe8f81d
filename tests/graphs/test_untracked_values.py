"""Values that a function computes or reads without any operator: no recording sees them, so no replay may stand for them."""

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import staticrt
from staticrt.errors import CaptureError
from staticrt.graphs import GraphContext
from staticrt.graphs.reads import READS as READ_BY
from staticrt.graphs.reads import detect_reads
from tests.support.graph_harness import device

CALLS = 5
closed_over = torch.tensor([1.0, 2.0, 3.0, 4.0])
thread = ThreadPoolExecutor(1)


def extension(x):
    """What a C++ extension does that is bound to Python, not to the dispatcher."""
    y = torch.empty_like(x)
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.nbytes)
    return y * 2


def compiled_elsewhere(x):
    y = torch._C._dynamo.guards._empty_strided_cpu((4,), (1,), torch.float32)  # as Inductor's code does
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.nbytes)
    return y + 1


def other_thread(x):
    return thread.submit(lambda: x * 2).result() + 1


def through_numpys_memory(x):
    y = torch.from_numpy(np.zeros(4, dtype=np.float32))
    ctypes.memmove(y.data_ptr(), x.data_ptr(), x.nbytes)
    return y * 3


UNSEEN = [extension, compiled_elsewhere, other_thread, through_numpys_memory]


@pytest.fixture
def context():
    with GraphContext("cpu") as made:
        yield made


def run(context, function):
    """Captured calls against plain ones."""
    f = context.wrap(function)
    for k in range(CALLS):
        x = torch.arange(4.0) + k
        assert torch.equal(f(x), function(x))
    return context.explain()


@pytest.mark.parametrize("function", UNSEEN, ids=lambda f: f.__name__)
def test_what_code_computes_unseen_is_computed_in_each_call(context, function):
    report = run(context, function)
    assert report.nodes == ()
    assert [skip.calls for skip in report.skips] == [CALLS - 2]
    assert "values that no operator made and that differ" in report.skips[0].reason


TABLES = {
    "a list": lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "numpy's": lambda x: x * torch.as_tensor([1.0, 2.0, 3.0, 4.0]),
    "closed over": lambda x: x * closed_over,
    "a part of an empty tensor": lambda x: torch.empty(6)[:4].copy_(x) * torch.tensor(2.0),
    "returned": lambda x: (lambda y: y.copy_(x))(torch.tensor([5.0, 6.0, 7.0, 8.0])),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_the_same_in_each_call(context, name):
    report = run(context, TABLES[name])
    assert report.skips == ()
    assert (report.captures, report.replays) == (
        1,
        CALLS - 2,
    )  # the second call was captured too, and compared


PLAIN = {
    "numbers": lambda x: (x * 2 + 1).clamp(0, 3) / 4.5,
    "operators without tensors": lambda x: x + torch.arange(4) + torch.zeros(4) + torch.full((4,), 2.0),
    "empty, then filled": lambda x: (lambda y: (y[::2].copy_(x[:2]), y[1::2].copy_(x[2:]), y)[2])(
        torch.empty(4)
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_what_operators_make_needs_no_second_capture(context, name):
    report = run(context, PLAIN[name])
    assert (report.captures, report.replays) == (1, CALLS - 1)


def test_calls_of_the_same_values_replay_meanwhile(context):
    f, x = context.wrap(extension), torch.ones(4)
    for _ in range(3):
        assert torch.equal(f(x), x * 2)
    assert context.explain().replays == 2
    for k in range(3):
        assert torch.equal(f(x + k), (x + k) * 2)
    assert context.explain().nodes == ()


def test_a_variable_of_python_that_changes(context):
    """A cache that each call replaces: no argument names it."""
    state = {"cache": torch.zeros(4)}

    def f(x):
        state["cache"] = state["cache"] + x
        return state["cache"] * 1

    wrapped, expected = context.wrap(f), torch.zeros(4)
    with pytest.warns(UserWarning, match="keeps memory of the capture that it does not return"):
        wrapped(expected)
    for k in range(CALLS):
        expected = expected + k
        assert torch.equal(wrapped(torch.full((4,), float(k))), expected)


def test_a_tensor_closed_over_that_is_replaced(context):
    state = {"scale": torch.ones(4)}
    f = context.wrap(lambda x: x * state["scale"])
    for k in range(CALLS):
        state["scale"] = torch.full((4,), float(k))
        assert torch.equal(f(torch.full((4,), 2.0 + k)), torch.full((4,), k * (2.0 + k)))
    assert context.explain().nodes == ()


def test_a_failure_in_the_second_capture_keeps_the_first(context):
    fail = [False, True, False, False]
    runs = iter(fail)

    def f(x):
        if next(runs, False):
            raise ValueError("planned")
        return x * closed_over

    wrapped = context.wrap(f)
    assert torch.equal(wrapped(torch.ones(4)), closed_over)
    with pytest.raises(ValueError, match="planned"):
        wrapped(torch.zeros(4))
    assert torch.equal(wrapped(torch.ones(4)), closed_over)
    assert context.explain().replays == 1
    for k in range(2, 5):
        assert torch.equal(wrapped(torch.full((4,), float(k))), closed_over * k)
    assert context.explain().replays == 3


READS = {
    "tolist": lambda x: x * 0 + torch.tensor([v * 2 for v in x.tolist()]),
    "numpy": lambda x: torch.from_numpy(x.numpy() * 2) + 1,
    "a function of numpy": lambda x: x + float(np.linalg.norm(x)),
    "asarray": lambda x: x + float(np.asarray(x).max()),
    "dlpack": lambda x: torch.from_dlpack(x) * 2,
    "a branch": lambda x: x + 1 if x.tolist()[0] > 1 else x - 1,
}


@pytest.mark.parametrize("kind", ["cpu", "cpu_copy"])
@pytest.mark.parametrize("name", READS)
def test_values_that_python_reads(kind, name):
    with GraphContext("cpu", backend=device(kind)) as context:
        report = run(context, READS[name])
        assert report.captures == 0
        assert "reads values" in report.skips[0].reason
    assert all(not hasattr(getattr(torch.Tensor, method), "in_class") for method in ("tolist", "numpy"))
    assert "tolist" not in vars(torch.Tensor)


def test_reads_inside_an_operator_are_its_own(context):
    @torch.library.custom_op("staticrt_test::by_numpy", mutates_args=())
    def by_numpy(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sin(x.numpy()))

    report = run(context, lambda x: by_numpy(x) + 1)
    assert (report.captures, report.replays) == (1, CALLS - 1)


def test_reads_in_another_thread_are_no_matter(context):
    seen = []

    def f(x):
        reader = threading.Thread(target=lambda: seen.append(closed_over.tolist()))
        reader.start()
        reader.join()
        return x + 1

    report = run(context, f)
    assert seen == [[1.0, 2.0, 3.0, 4.0]] * (CALLS + 1)
    assert (report.captures, report.replays) == (1, CALLS - 1)


def test_captures_under_way_at_once_notice_reads_until_the_last_has_ended():
    plain = {name: getattr(torch.Tensor, name) for name in READ_BY}
    with detect_reads():
        with detect_reads():
            pass
        assert all(getattr(torch.Tensor, name) is not plain[name] for name in READ_BY)
        assert torch.ones(2).tolist() == [1.0, 1.0]
    assert all(getattr(torch.Tensor, name) is plain[name] for name in READ_BY)


def test_reads_are_errors_where_they_must_not_run_uncaptured():
    with (
        GraphContext("cpu", or_error=True) as context,
        pytest.raises(CaptureError, match=r"Tensor.tolist\(\) reads values"),
    ):
        context.wrap(READS["tolist"])(torch.ones(4))


def test_what_compiles_in_its_first_call_is_captured_in_the_second(context):
    model = staticrt.compile(torch.nn.Linear(4, 2).eval())
    f = context.wrap(lambda x: model(x) + 1)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(3, 4)
            torch.testing.assert_close(f(x), model(x) + 1)
    report = context.explain()
    assert (report.captures, sum(skip.calls for skip in report.skips)) == (1, 1)
    assert report.replays > 0


def test_what_was_compared_once_is_trusted_at_other_places(context):
    """A parameter that moves is another capture, of the same function."""
    runs = 0

    def f(w, x):
        nonlocal runs
        runs += 1
        return w * x * closed_over

    wrapped = context.wrap(f, static_inputs=("w",))
    places = [torch.full((4,), 2.0), torch.full((4,), 3.0)]
    for which in (0, 0, 0, 1, 1, 1, 0, 1):
        x = torch.rand(4)
        torch.testing.assert_close(wrapped(places[which], x), places[which] * x * closed_over)
    assert runs == 3  # captured, compared, captured for the other place
