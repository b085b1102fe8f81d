"""`plan_graphs=True`: programs, calls and options that have no graph, and drivers that refuse one."""

import copy

import pytest
import torch

import staticrt
from staticrt.errors import OptionError
from tests.device.test_compiled_graphs import MODELS
from tests.device.test_plan_graphs import SIM, check, graphs_of, pair


@torch.no_grad()
def test_what_prevents_a_graph_is_told(order):
    def random(x):
        return torch.nn.functional.dropout(x, 0.5) + 1

    def data(x):
        return x[x > 0].sum() + x

    def prints(x):
        torch.ops.aten._linalg_check_errors(
            torch.zeros((), device=x.device, dtype=torch.int), "f", is_matrix=True
        )
        return x + 1

    def beyond(x):
        return torch.as_strided_copy(x[:2], (6,), (1,), 0)

    def lifted(x):
        return torch.ops.aten.lift(x)

    def elsewhere(x):
        return (x + 1).to("sim:1") * 2

    told = {
        random: "it draws random numbers",
        data: "data decides what it gives",
        prints: "it acts on more than tensors",
        beyond: "it may read past the elements of an input",
        lifted: "each run decides what 'lift_default' is",
        elsewhere: "does not lie on the same device as the rest",
    }
    for function, reason in told.items():
        compiled = staticrt.compile(function, plan_graphs=True)
        for _ in range(5):
            torch.manual_seed(0)
            got = compiled(torch.linspace(-1, 2, 6, device=SIM))
            torch.manual_seed(0)
            expected = function(torch.linspace(-1, 2, 6, device=SIM))
            torch.testing.assert_close(got.cpu(), expected.cpu())
        captures, launches, reasons = graphs_of(compiled)
        assert captures == launches == 0
        assert len(reasons) == 1
        assert reason in reasons[0]
        assert reason in str(compiled.explain())


@torch.no_grad()
@pytest.mark.parametrize(
    "call",
    [
        "stream_create",
        "capture_begin",
        "capture_copy",
        "capture_end",
        "graph_instantiate",
        "exec_set_copy",
        "graph_launch",
    ],
)
@pytest.mark.parametrize("fault", ["oom", "error"])
def test_a_driver_that_refuses_costs_a_graph_and_no_result(sim, call, fault):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for number in range(10):
        sim.fail(call, fault=fault)
        check(compiled, twin, torch.randn(4, 8))
        if number % 2:
            sim.clear_faults()
            check(compiled, twin, torch.randn(4, 8))
    sim.clear_faults()
    sim.clear_reports()
    check(compiled, twin, torch.randn(4, 8))
    _, launches, reasons = graphs_of(compiled)
    assert launches > 0 or reasons


@torch.no_grad()
def test_operators_of_other_libraries_run_in_every_call(order):
    """No launch repeats what they do besides work of the device."""
    calls = []
    with torch.library._scoped_library("plan_graphs", "FRAGMENT") as library:
        library.define("counted(Tensor x) -> Tensor")

        def counted(x):
            calls.append(len(x))
            return x + 1

        library.impl("counted", counted, "CompositeExplicitAutograd")
        torch.library.register_fake("plan_graphs::counted", torch.empty_like, lib=library)

        def model(x):
            return torch.ops.plan_graphs.counted(x * 2) * 3

        compiled = staticrt.compile(model, plan_graphs=True)
        for number in range(6):
            x = torch.randn(4, 8)
            torch.testing.assert_close(compiled(x.to(SIM)).cpu(), (x * 2 + 1) * 3)
            assert len(calls) == number + 1
        captures, launches, reasons = graphs_of(compiled)
        assert captures == launches == 0
        assert len(reasons) == 1
        assert "it may do more than enqueue work" in reasons[0]


@torch.no_grad()
def test_a_driver_that_makes_no_graph_is_asked_a_few_times(sim):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    captures = sim.calls("capture_begin")
    sim.fail("graph_instantiate", fault="error", times=1000)
    for _ in range(30):
        check(compiled, twin, torch.randn(4, 8))
    sim.clear_faults()
    assert 1 < sim.calls("capture_begin") - captures <= 4


@torch.no_grad()
def test_calls_in_a_capture_of_the_callers_run_step_by_step(sim):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(4):
        check(compiled, twin, torch.randn(3, 8))
    x = torch.zeros(3, 8, device=SIM)
    y = torch.zeros(3, there[-1].out_features, device=SIM)
    stream = torch.Stream(SIM)
    stream.wait_stream(torch.accelerator.current_stream(0))
    with stream:
        y.copy_(compiled(x))  # the stream has a plan
        torch.accelerator.synchronize(0)
        launches = graphs_of(compiled)[1]
        with sim.capture(stream.stream_id, mode="thread_local") as graph:
            y.copy_(compiled(x))
        assert graphs_of(compiled)[1] == launches
        fresh = torch.randn(3, 8)
        x.copy_(fresh)
        graph.replay()
    torch.accelerator.synchronize(0)
    torch.testing.assert_close(y.cpu(), twin(fresh))
    graph.close()


@torch.no_grad()
def test_on_the_cpu_it_changes_nothing():
    twin = copy.deepcopy(MODELS["perceptron"][0]).eval()
    compiled = staticrt.compile(copy.deepcopy(twin), plan_graphs=True)
    for _ in range(4):
        x = torch.randn(3, 8)
        torch.testing.assert_close(compiled(x), twin(x))
    assert graphs_of(compiled)[:2] == (0, 0)


@pytest.mark.parametrize(
    "other",
    [
        *({"graphs": True}, {"donate": "x"}, {"manage_outputs": True}, {"verify": True}),
        *({"prepared": False}, {"executor": "reference"}),
    ],
)
def test_options_that_exclude_it(other):
    with pytest.raises(OptionError, match=f"cannot be combined with {next(iter(other))}"):
        staticrt.compile(lambda x: x + 1, plan_graphs=True, **other)
