"""`staticrt.compile(model, plan_graphs=True)`: a prepared program on a device is one launch of a driver's graph."""

import copy
import gc

import pytest
import torch
from torch import nn

import staticrt
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
    # A general run (of the second size, two) and one of the steps for each size, then launches.
    assert graphs_of(compiled) == (2, 7, [])
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
    captures, launches, reasons = graphs_of(compiled)
    assert (captures, reasons) == (1, [])
    assert launches >= 3
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
    assert graphs_of(compiled) == (2, 7, [])


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
    assert reasons == ["the addresses of weights, or of tensors that it writes, change in every call"]


@torch.no_grad()
def test_a_buffer_that_stays_again_is_captured_again():
    there, twin = pair(Stateful())
    compiled = staticrt.compile(there, plan_graphs=True)
    x = torch.randn(2, 8).to(SIM)
    for _ in range(40):
        there.total.data = there.total.data.clone()
        compiled(x)
    launches = graphs_of(compiled)[1]
    for _ in range(270):
        compiled(x)
    assert graphs_of(compiled)[1] > launches + 5
    twin.total.copy_(there.total)
    check(compiled, twin, torch.randn(2, 8))


@torch.no_grad()
def test_more_streams_than_a_frame_has_graphs_of(order):
    """In turn: four have graphs, and the others leave them theirs. Later other four have them."""
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)

    def run(count, rounds):
        captures, launches, _ = graphs_of(compiled)
        streams = [torch.Stream(SIM) for _ in range(count)]
        torch.accelerator.synchronize(0)
        for _ in range(rounds):
            for stream in streams:
                with stream:
                    check(compiled, twin, torch.randn(4, 8))
        torch.accelerator.synchronize(0)
        return graphs_of(compiled)[0] - captures, graphs_of(compiled)[1] - launches

    captures, launches = run(6, rounds=20)
    assert captures == 4
    assert launches >= 4 * 18
    captures, launches = run(4, rounds=10)
    assert captures == 4
    assert launches >= 20
    captures, _ = run(40, rounds=3)
    assert captures < 12


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


@torch.no_grad()
@pytest.mark.parametrize("launches", [True, False])
def test_launches_of_models_that_share_a_capture_stream_come_one_after_another(launches, sim):
    """Kernels may have memory of their own for each stream, which graphs that were captured there share."""
    staticrt.memory.simulated.order("others_first")
    there, twin = pair(MODELS["perceptron"][0])
    first, second = (staticrt.compile(there, plan_graphs=True) for _ in range(2))
    streams = [torch.Stream(SIM) for _ in range(2)]
    x = torch.randn(4, 8)
    given = x.to(SIM)
    torch.accelerator.synchronize(0)
    with streams[1]:
        for _ in range(2):
            z = torch.empty_like(second(given))  # an allocation may wait for the stream whose block it takes
    with streams[0]:
        for _ in range(4):
            y = first(given)
    del first
    gc.collect()
    with streams[1]:
        if launches:
            second(given)
        torch.add(y, 1, out=z)  # without an event
    torch.accelerator.synchronize(0)
    assert bool(sim.reports) != launches
    sim.clear_reports()
    if launches:
        torch.testing.assert_close(z.cpu(), twin(x) + 1)


def test_threads_with_a_stream_each():
    there, twin = pair(MODELS["perceptron"][0])
    compiled = staticrt.compile(there, plan_graphs=True)

    def work(_):
        with torch.no_grad(), torch.Stream(SIM):
            for rows in (4, 4, 7, 4, 7, 4, 7, 4):
                check(compiled, twin, torch.randn(rows, 8))

    in_threads(work, range(4))
    assert graphs_of(compiled)[1] > 0


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
