"""Compiled programs whose tensors lie on simulated devices: arenas from our allocator, answers as on the CPU."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from tests.support.threads import in_threads


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.narrow = nn.Linear(32, 8)

    def forward(self, x):
        h = self.norm(torch.tanh(self.wide(x)))
        h = h.view(x.shape[0], 4, 8).transpose(1, 2).reshape(x.shape[0], -1)
        return torch.softmax(self.narrow(torch.sigmoid(h) * h + h.exp()), -1)


@pytest.fixture
def pair():
    """A model on the CPU, and the same on sim:0."""
    torch.manual_seed(0)
    model = Net().eval()
    return model, copy.deepcopy(model).to("sim:0")


def check(compiled, model, rows, device="sim:0"):
    x = torch.randn(rows, 16)
    y = compiled(x.to(device))
    assert y.device == torch.device(device)
    torch.testing.assert_close(y.cpu(), model(x))


@torch.no_grad()
def test_sizes_change_and_the_arena_lies_on_the_device(pair, order):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim)
    for rows in (4, 4, 4, 7, 1, 4, 7, 7, 33):
        check(compiled, model, rows)
    report = compiled.explain()
    assert report.eager == ()
    for signature in report.traces[0].signatures:
        ((device, size_bytes),) = signature.arenas
        assert device == "sim:0"
        assert size_bytes > 0


@torch.no_grad()
def test_weights_change_and_move(pair, order):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim)
    for _ in range(3):
        check(compiled, model, 4)
    for each in (model, on_sim):
        each.wide.weight.add_(1)
    check(compiled, model, 4)
    on_sim.to("sim:1")
    for rows in (4, 4, 5):
        check(compiled, model, rows, "sim:1")


@torch.no_grad()
def test_results_stay_when_later_calls_reuse_the_arena(pair, order):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim)
    inputs = [torch.randn(4, 16) for _ in range(8)]
    results = [compiled(x.to("sim:0")) for x in inputs]
    for x, y in zip(inputs, results, strict=True):
        torch.testing.assert_close(y.cpu(), model(x))


@torch.no_grad()
def test_kernels_that_resize_what_they_write(order):
    """The CPU's losses hold all terms in their output before they sum them."""
    compiled = staticrt.compile(lambda x, y: F.mse_loss(x * 2, y) + F.smooth_l1_loss(x, y))
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    for _ in range(3):
        loss = compiled(x.to("sim:0"), y.to("sim:0"))
        torch.testing.assert_close(loss.cpu(), F.mse_loss(x * 2, y) + F.smooth_l1_loss(x, y))


@pytest.mark.parametrize("gradients", [False, True])
def test_results_in_channels_last(gradients, order):
    """Convolutions, a broadcast product and views lie as on the CPU, whatever the layout of the weights."""
    conv, narrow = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), nn.Conv2d(6, 5, 1)
    model = nn.Sequential(conv, nn.BatchNorm2d(6), nn.Hardswish(), narrow).eval()
    on_sim = copy.deepcopy(model).to("sim:0")

    def forward(model, x):
        y = model(x)
        return y, y * torch.sigmoid(y.mean((2, 3), keepdim=True)), y.permute(0, 2, 3, 1)

    compiled = staticrt.compile(lambda x: forward(on_sim, x))
    with torch.set_grad_enabled(gradients):
        for rows in (2, 2, 1, 3):
            x = torch.randn(rows, 4, 6, 8).to(memory_format=torch.channels_last)
            for mine, other in zip(compiled(x.to("sim:0")), forward(model, x), strict=True):
                assert mine.stride() == other.stride()
                torch.testing.assert_close(mine.cpu(), other)


def test_traces_leave_nothing_on_the_engines_threads():
    """A step's trace runs operators of its backward on the device's thread of autograd."""
    x, y = torch.randn(8, 8, device="sim:0"), torch.randn(8, 8, device="sim:0")
    for _ in range(6):
        model = nn.Linear(8, 8).to("sim:0")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def run(x, y, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step = staticrt.compile_step(run)
        for _ in range(4):
            step(x, y)
        del step
        gc.collect()
        expected = nn.Linear(8, 8)
        expected.load_state_dict({name: p.cpu() for name, p in model.state_dict().items()})
        model.zero_grad()
        F.mse_loss(model(x), x).backward()
        F.mse_loss(expected(x.cpu()), x.cpu()).backward()
        torch.testing.assert_close(model.weight.grad.cpu(), expected.weight.grad)


def test_checkpoint_draws_the_same_numbers_again():
    weight = torch.ones(64, device="sim:0", requires_grad=True)
    y = checkpoint(lambda v: F.dropout(v * 1, 0.5), weight, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y.detach().cpu(), weight.grad.cpu())


@torch.no_grad()
def test_two_devices_in_one_program(order):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(16, 16).to("sim:0")
            self.second = nn.Linear(16, 64).to("sim:1")

        def forward(self, x):
            return torch.tanh(self.second(torch.tanh(torch.exp(self.first(x))).to("sim:1"))) * 2 + 1

    model = Two().eval()
    compiled = staticrt.compile(model)
    for rows in (4, 4, 4, 6, 6):
        x = torch.randn(rows, 16).to("sim:0")
        y = compiled(x)
        assert y.device == torch.device("sim:1")
        torch.testing.assert_close(y.cpu(), model(x).cpu())
    for signature in compiled.explain().traces[0].signatures:
        arenas = dict(signature.arenas)
        assert arenas["sim:0"] <= 2 * 512 < arenas["sim:1"]  # two values, and more


@torch.no_grad()
@pytest.mark.parametrize("prepared", [True, False])
def test_streams_take_turns(pair, prepared, order):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim, prepared=prepared)
    check(compiled, model, 4)
    torch.accelerator.synchronize(0)
    streams = [torch.Stream("sim:0") for _ in range(3)]
    kept = []
    for i in range(9):
        with streams[i % 3]:
            x = torch.randn(4, 16)
            kept.append((x, compiled(x.to("sim:0"))))
    torch.accelerator.synchronize(0)
    for x, y in kept:
        torch.testing.assert_close(y.cpu(), model(x))


@torch.no_grad()
@pytest.mark.parametrize("plan_graphs", [False, True])
def test_streams_that_are_made_for_each_request_keep_little_memory(plan_graphs, order):
    model = nn.Sequential(nn.Linear(16, 4096), nn.Tanh(), nn.Linear(4096, 4), nn.Tanh()).eval()
    on_sim = copy.deepcopy(model).to("sim:0")
    compiled = staticrt.compile(on_sim, plan_graphs=plan_graphs)
    kept, held_bytes = [], []
    for number in range(24):
        with torch.Stream("sim:0"):
            for _ in range(3):
                x = torch.randn(8, 16)
                kept.append((x, compiled(x.to("sim:0"))))
        if number in (5, 23):
            torch.accelerator.synchronize(0)
            held_bytes.append(torch.accelerator.memory_stats(0)["allocated_bytes.all.current"])
    for x, y in kept:
        torch.testing.assert_close(y.cpu(), model(x))
    # An arena has at least the 4096 columns of 8 rows. Results are kept here, each of one block.
    assert held_bytes[1] - held_bytes[0] < 4096 * 8 * 4 + 18 * 3 * 512


@torch.no_grad()
def test_constants_are_written_before_other_streams_read_them(order):
    """The first call makes them, on its stream."""

    def function(x):
        y = x * torch.arange(4.0, device=x.device)
        y[0] = 0.5
        return y

    compiled = staticrt.compile(function)
    x = torch.randn(3, 4)
    there = x.to("sim:0")
    kept = []
    for _ in range(4):
        with torch.Stream("sim:0"):
            kept.append(compiled(there))
    torch.accelerator.synchronize(0)
    for y in kept:
        torch.testing.assert_close(y.cpu(), function(x))


def test_threads_with_a_stream_each(pair):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim)

    def work(_thread):
        with torch.no_grad(), torch.Stream("sim:0"):
            for rows in (4, 4, 7, 4, 7):
                check(compiled, model, rows)

    in_threads(work, range(4))


def test_gradients(pair):
    model, on_sim = pair
    compiled = staticrt.compile(on_sim)
    for rows in (4, 4, 6):
        x = torch.randn(rows, 16)
        model.zero_grad()
        on_sim.zero_grad()
        model(x).square().sum().backward()
        compiled(x.to("sim:0")).square().sum().backward()
        for p, q in zip(model.parameters(), on_sim.parameters(), strict=True):
            torch.testing.assert_close(q.grad.cpu(), p.grad)


@pytest.mark.parametrize("gradients", [False, True])
def test_nested_tensors_of_the_jagged_layout_run_eagerly(pair, gradients):
    model, on_sim = (nn.Sequential(net.wide, nn.ReLU(), net.narrow) for net in pair)
    compiled = staticrt.compile(on_sim)
    with torch.set_grad_enabled(gradients):
        for lengths in ((2, 3, 5), (2, 3, 5), (1, 4)):
            rows = [torch.randn(n, 16) for n in lengths]
            nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
            there = torch.nested.nested_tensor([x.to("sim:0") for x in rows], layout=torch.jagged)
            result = compiled(there)
            torch.testing.assert_close(result.values().cpu(), model(nested).values())
            assert result.offsets().tolist() == nested.offsets().tolist()
    assert "an argument is a tensor subclass, NestedTensor   (3 calls)" in str(compiled.explain())


def test_a_partial_graph_that_fails_after_it_drew_numbers_does_not_draw_them_twice(sim):
    """Eager would draw the next ones: the call raises instead."""

    def draws(x):
        drawn = torch.bernoulli(x * 0.5)
        return drawn[: int(x.sum()) % 3].square() + drawn.cumsum(0)[:1]

    x = torch.ones(2, device="sim:0")
    torch.manual_seed(0)
    expected = [draws(x), torch.rand(2, device="sim:0")]
    errors = []
    for nth in range(1, 8):
        compiled = staticrt.compile(draws, graphs=True)
        torch.manual_seed(0)
        sim.fail("event_record", nth, "error")
        try:
            result = compiled(x)
        except RuntimeError as error:
            errors.append(str(error))
        else:
            torch.testing.assert_close([result, torch.rand(2, device="sim:0")], expected)
        sim.clear_faults()
    assert len(errors) < 7
    assert all("planned fault" in error for error in errors)


def test_a_view_at_an_offset_of_an_empty_tensor_has_no_bytes():
    """Operators that clone a whole storage would read behind its end."""

    def function(a):
        return (a * 1.5)[:, 1:].t().unbind(0)[-1].div_(2)

    compiled = staticrt.compile(function)
    for _ in range(3):
        y = compiled(torch.ones(0, 4, dtype=torch.long, device="sim:0"))
        torch.accelerator.synchronize(0)
        assert y.shape == (0,)
        assert y.dtype == torch.float32


def test_a_call_in_parts_runs_where_the_generator_does_not_tell_its_state(monkeypatch):
    """CUDA's does not while a graph is captured."""

    def refuse(device=None):
        raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture")

    def splits(x):
        y = x.square() + 1
        print(end="")
        return y.cumsum(0)

    x = torch.arange(4.0, device="sim:0")
    compiled = staticrt.compile(splits)
    monkeypatch.setattr(torch.sim, "get_rng_state", refuse)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), splits(x))
    assert "graph break" in str(compiled.explain())
