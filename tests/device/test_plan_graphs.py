"""`staticrt.compile(model, plan_graphs=True)`: a prepared program on a device is one launch of a driver's graph."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import OptionError
from tests.device.test_compiled_graphs import MODELS, compare_kept, flat
from tests.support.threads import in_threads

SIM = "sim:0"


class Stateful(nn.Module):
    """Writes a buffer, and gives a result, a view of it, the buffer, the argument and a view of the argument."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x):
        y = torch.tanh(self.linear(x))
        self.total.add_(y.sum(0))
        return y, y[0], self.total * 1, x, x.t(), y.sum(1)


def pair(model):
    twin = copy.deepcopy(model).eval()
    return copy.deepcopy(twin).to(SIM), twin


def check(compiled, twin, x, there=None):
    got, expected = flat(compiled(x.to(SIM) if there is None else there)), flat(twin(x))
    for one, other in zip(got, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.cpu(), other)
    return got


def graphs_of(compiled):
    """Captures, launches and reasons of all signatures."""
    found = [s.graph for trace in compiled.explain().traces for s in trace.signatures]
    return sum(f[0] for f in found), sum(f[1] for f in found), [f[2] for f in found if f[2]]


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_results_equal_the_cpus_and_are_the_callers(name, order):
    """Two sizes in turn; every result of every call keeps its value."""
    model, size = MODELS[name]
    there, twin = pair(model)
    compiled = staticrt.compile(there, plan_graphs=True)
    kept = []
    for number in range(12):
        x = torch.randn(size(3 + number % 2))
        kept.append((compiled(x.to(SIM)), twin(x)))
    compare_kept(kept)
    # A general run and one of the steps for each size, then launches.
    assert graphs_of(compiled) == (2, 8, [])
    assert "captured 1 times, launched 4 times" in str(compiled.explain())


class DrawsNothing(nn.Module):
    """Operators that draw random numbers in other calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
        self.recurrent = nn.GRU(16, 8, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x):
        y = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.0, is_causal=True)
        return self.recurrent(self.layer(x + y))[0], nn.functional.rrelu(y)


@torch.no_grad()
def test_operators_that_draw_nothing_are_launched(order):
    there, twin = pair(DrawsNothing())
    compiled = staticrt.compile(there, plan_graphs=True)
    torch.manual_seed(0)
    for _ in range(6):
        check(compiled, twin, torch.randn(2, 5, 16))
    assert graphs_of(compiled) == (1, 4, [])
    after = torch.rand(3, device=SIM)
    torch.manual_seed(0)
    for _ in range(6):
        there(torch.randn(2, 5, 16).to(SIM))
    torch.testing.assert_close(after.cpu(), torch.rand(3, device=SIM).cpu())


@torch.no_grad()
def test_a_call_is_one_launch(sim):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    x = torch.randn(4, 8)
    copies = sim.calls("capture_copy")
    for _ in range(4):
        check(compiled, twin, x)
    assert sim.calls("capture_copy") == copies + 2  # weights are read where they lie
    given = x.to(SIM)
    launches, kernels, captures = sim.calls("graph_launch"), sim.calls("launch"), sim.calls("capture_begin")
    result = compiled(given)
    assert sim.calls("graph_launch") == launches + 1
    assert sim.calls("launch") == kernels
    assert sim.calls("capture_begin") == captures
    torch.testing.assert_close(result.cpu(), twin(x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_buffers_views_and_arguments_as_results(mode, order):
    there, twin = pair(Stateful())
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(6):
        x = torch.randn(5, 8)
        given = x.to(SIM)
        with mode():
            got = check(compiled, twin, x, given)
            assert [one.is_inference() for one in got] == [one.is_inference() for one in twin(x)]
            twin.total.sub_(torch.tanh(twin.linear(x)).sum(0))
        assert got[3] is given
        assert got[4].data_ptr() == given.data_ptr()
        assert got[1].data_ptr() == got[0].data_ptr()
    assert graphs_of(compiled) == (1, 4, [])
    torch.testing.assert_close(there.total.cpu(), twin.total)


@torch.no_grad()
def test_a_result_lies_in_what_an_operator_allocated(order):
    """No out variant writes it, so that it is copied from the graph's own memory."""

    def model(x):
        whole = x.long()
        return whole[0].add_(whole[-1])

    compiled = staticrt.compile(model, plan_graphs=True)
    for _ in range(6):
        check(compiled, model, 9 * torch.randn(5, 8))
    assert graphs_of(compiled) == (1, 4, [])


@torch.no_grad()
def test_graphs_of_two_sizes_write_each_others_memory(order):
    """What the smaller one copies to its caller lies where the larger one has temporary values."""

    def model(x):
        return torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])

    compiled = staticrt.compile(model, plan_graphs=True)
    kept = []
    for rows in (5, 5, 5, 5, 5, 2, 2, 2, 5, 5, 2, 5):
        x = torch.randn(rows, 600)
        kept.append((compiled(x.to(SIM)), model(x)))
    compare_kept(kept)
    assert graphs_of(compiled) == (2, 8, [])


@torch.no_grad()
def test_weights_change_and_move(order):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    for number in range(16):
        if number in (5, 9):
            for model in (there, twin):
                model[0].weight.mul_(-1.5)
        if number == 7:  # other memory
            there[2].weight.data = there[2].weight.data.clone()
        if number == 11:  # the memory that the first one had, or any other
            for model in (there, twin):
                model[0].weight.data = model[0].weight.data * 2
        if number == 13:
            for model in (there, twin):
                model[0].bias = nn.Parameter(model[0].bias + 1)
        check(compiled, twin, torch.randn(3, 8))
    captures, launches, reasons = graphs_of(compiled)
    assert launches >= 12
    assert captures <= 4
    assert not reasons


@torch.no_grad()
def test_a_buffer_that_is_written_moves(order):
    there, twin = pair(Stateful())
    compiled = staticrt.compile(there, plan_graphs=True)
    for number in range(9):
        if number in (4, 6):
            there.total.data = there.total.data.clone()
        check(compiled, twin, torch.randn(5, 8))
    assert graphs_of(compiled)[0] == 3


@torch.no_grad()
def test_a_buffer_that_moves_in_every_call_ends_the_captures():
    there, twin = pair(Stateful())
    compiled = staticrt.compile(there, plan_graphs=True)
    for _ in range(40):
        there.total.data = there.total.data.clone()
        check(compiled, twin, torch.randn(2, 8))
    captures, launches, reasons = graphs_of(compiled)
    assert captures == launches < 35
    assert reasons == ["weights, or tensors that it writes, lie elsewhere in every call"]


@torch.no_grad()
@pytest.mark.parametrize(
    "lay",
    [
        lambda base: base[:4, :8].contiguous(),
        lambda base: base[5:9, :8].clone().t().contiguous().t(),
        lambda base: base[2:6, 3:11],
        lambda base: base[0, :8].expand(4, 8),
        lambda base: base[:0, :8].contiguous(),
        lambda base: base.view(-1)[7:39].view(4, 8),
    ],
)
def test_arguments_of_every_layout(lay, order):
    twin = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).eval()
    compiled = staticrt.compile(copy.deepcopy(twin).to(SIM), plan_graphs=True)
    for _ in range(6):
        base = torch.randn(9, 20)
        check(compiled, twin, lay(base), lay(base.to(SIM)))
    assert graphs_of(compiled) == (1, 4, [])


@torch.no_grad()
def test_an_argument_that_cannot_be_copied_by_element_runs_step_by_step(order):
    compiled = staticrt.compile(torch.tanh, plan_graphs=True)
    for _ in range(5):
        base = torch.randn(4, 200)
        x, there = (each[:, None, ::20].expand(4, 3, 10) for each in (base, base.to(SIM)))
        check(compiled, torch.tanh, x, there)
    assert graphs_of(compiled) == (0, 0, ["elements of an argument share bytes, and others lie between them"])


@torch.no_grad()
def test_bytes_between_the_elements_of_an_argument_are_not_copied(order):
    """Another stream writes them during the call."""
    compiled = staticrt.compile(torch.tanh, plan_graphs=True)
    base, other = torch.randn(6, 16), torch.randn(6, 8)
    there, other_there = base.to(SIM), other.to(SIM)
    current, side = torch.accelerator.current_stream(0), torch.Stream(SIM)
    kept = []
    for _ in range(6):
        side.wait_stream(current)
        with side:
            there[:, 8:].copy_(other_there)
        kept.append((compiled(there[:, :8]), torch.tanh(base[:, :8])))
    current.wait_stream(side)
    compare_kept(kept)
    assert graphs_of(compiled) == (1, 4, [])


@torch.no_grad()
def test_an_argument_that_shares_written_memory_runs_step_by_step(order):
    def forward(buffer, x):
        buffer.add_(1)
        return buffer * x

    compiled = staticrt.compile(forward, plan_graphs=True)
    whole, twin = torch.ones(16, device=SIM), torch.ones(16)
    ways = {
        "apart": lambda base: torch.full_like(base[:8], 3.0),
        "the same": lambda base: base[:8],
        "beside it": lambda base: base[8:],
    }
    for number, way in enumerate([*ways] * 4):
        got = compiled(whole[:8], ways[way](whole))
        torch.testing.assert_close(got.cpu(), forward(twin[:8], ways[way](twin)))
        if way == "beside it" and number > 3:  # the plan is there, and would be launched
            assert graphs_of(compiled)[2] == ["an argument shares memory with one that it writes"]
    assert graphs_of(compiled)[1] > 0
    torch.testing.assert_close(whole.cpu(), twin)


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
        lifted: "what 'lift_default' is, each run decides",
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
def test_each_stream_has_its_graph(order):
    there, twin = pair(MODELS["attention"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    streams = [torch.Stream(SIM) for _ in range(3)]
    torch.accelerator.synchronize(0)
    kept = []
    for number in range(15):
        with streams[number % 3]:
            x = torch.randn(2, 5, 16)
            kept.append((compiled(x.to(SIM)), twin(x)))
    torch.accelerator.synchronize(0)
    for got, expected in kept:
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other)
    captures, launches, reasons = graphs_of(compiled)
    assert (captures, reasons) == (3, [])
    assert launches == 13


def test_threads_with_a_stream_each():
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)

    def work(_):
        with torch.no_grad(), torch.Stream(SIM):
            for rows in (4, 4, 7, 4, 7, 4, 7, 4):
                check(compiled, twin, torch.randn(rows, 8))

    in_threads(work, range(4))
    assert graphs_of(compiled)[1] > 0


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
def test_arguments_that_nobody_reads_are_not_copied(sim):
    def forward(x, like, viewed):
        return x.expand(like.shape[0], -1) + 1, viewed.t(), like

    compiled = staticrt.compile(forward, plan_graphs=True)
    copies = sim.calls("capture_copy")
    for _ in range(6):
        like, viewed = torch.randn(3, 4, device=SIM), torch.randn(2, 5, device=SIM)
        x = torch.randn(1, 4)
        got, view, same = compiled(x.to(SIM), like, viewed)
        torch.testing.assert_close(got.cpu(), forward(x, like, viewed)[0])
        assert view.data_ptr() == viewed.data_ptr()
        assert same is like
    assert graphs_of(compiled) == (1, 4, [])
    assert sim.calls("capture_copy") == copies + 2  # the first argument, and a result


def test_training_equals_the_cpus(order):
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)
    optimizers = [torch.optim.SGD(m.parameters(), 0.05) for m in (there, twin)]
    for _ in range(6):
        x = torch.randn(3, 8)
        losses = []
        for run, optimizer, given in zip((compiled, twin), optimizers, (x.to(SIM), x), strict=True):
            optimizer.zero_grad()
            loss = run(given).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().cpu())
        torch.testing.assert_close(*losses)


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
    with pytest.raises(OptionError, match=f"does not go with {next(iter(other))}"):
        staticrt.compile(lambda x: x + 1, plan_graphs=True, **other)
