"""Streams of "sim": work is late, memory is not kept alive by it, and mistakes between streams are reported."""

import pytest
import torch

import staticrt
from tests.support.threads import in_threads


def test_work_runs_when_somebody_waits(sim):
    x = torch.ones(4, device="sim")
    y = x + x
    assert sim.pending(0) == 2
    assert y.tolist() == [2, 2, 2, 2]
    assert sim.pending(0) == 0


def test_a_stream_that_nobody_waits_for_stays_behind(sim, order):
    side = torch.Stream("sim")
    x = torch.ones(4, device="sim")
    torch.accelerator.synchronize()
    with side:
        y = x + x
    z = x * 3
    z.cpu()
    if not order.startswith("random"):
        assert sim.pending(side.stream_id) == (1 if order == "needed" else 0)
    side.synchronize()
    assert y.tolist() == [2, 2, 2, 2]
    y.record_stream(torch.accelerator.current_stream())


def test_values_pass_between_streams_by_events(order):
    side = torch.Stream("sim")
    main = torch.accelerator.current_stream()
    x = torch.arange(1000.0, device="sim")
    side.wait_stream(main)
    with side:
        y = (x + 1) * 2
    x.record_stream(side)
    main.wait_stream(side)
    y.record_stream(main)
    torch.testing.assert_close((y + 1).cpu(), torch.arange(1000.0) * 2 + 3)


def reuse_while_side_reads(record):
    """Frees memory that `side` still reads, and reuses it on the default stream."""
    side = torch.Stream("sim")
    x = torch.ones(1 << 18, device="sim")
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        total = x.sum()
    if record:
        x.record_stream(side)
    address = x.data_ptr()
    del x
    y = torch.full((1 << 18,), 5.0, device="sim")
    reused = y.data_ptr() == address
    total.record_stream(torch.accelerator.current_stream())
    side.synchronize()
    return reused, total.item()


def test_a_missing_record_stream_is_reported(sim, order):
    reused, _ = reuse_while_side_reads(record=False)
    torch.accelerator.synchronize()
    found = sim.reports
    sim.clear_reports()
    assert reused
    assert found
    assert all(report.startswith("race: ") for report in found)


def test_a_missing_record_stream_changes_values(sim):
    """The default stream waits first: the other one, which read too late, sums the new values."""
    staticrt.memory.simulated.order("needed")
    side = torch.Stream("sim")
    x = torch.ones(1 << 18, device="sim")
    torch.accelerator.synchronize()
    with side:
        total = x.sum()
    del x
    torch.full((1 << 18,), 5.0, device="sim").cpu()
    assert sim.reports
    sim.clear_reports()
    side.synchronize()
    assert total.item() == 5 * (1 << 18)


def test_record_stream_keeps_the_memory(order):
    assert reuse_while_side_reads(record=True)[1] == 1 << 18


def test_pending_work_keeps_no_memory_alive(sim):
    before = torch.accelerator.memory_allocated()
    x = torch.ones(1 << 20, device="sim")
    y = x + 1
    assert torch.accelerator.memory_allocated() - before == 8 << 20
    assert sim.pending(0) > 0
    del x, y
    assert torch.accelerator.memory_allocated() == before


def test_errors_of_operators_come_with_the_next_wait(order):
    table = torch.nn.Embedding(4, 2).to("sim")
    torch.accelerator.synchronize()
    with torch.no_grad():
        table(torch.tensor([9], device="sim"))
    torch.ones(2, device="sim").add_(1)
    with pytest.raises(IndexError, match=r"(?s)out of range.*ran on stream 0 of sim:0"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()  # reported once
    assert torch.ones(2, device="sim").tolist() == [1, 1]


def test_the_queue_is_bounded(sim):
    x = torch.zeros(1, device="sim")
    for _ in range(3000):
        x += 1
    assert sim.pending(0) <= 1024
    assert x.item() == 3000


def test_loops_that_ask_end(order):
    side = torch.Stream("sim")
    event = torch.Event("sim")
    x = torch.ones(3, device="sim")
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        y = ((x + 1) * 2).exp()
    x.record_stream(side)
    event.record(side)
    asked = 0
    while not event.query():
        asked += 1
    assert asked > 0
    while not torch.accelerator.current_stream().query():
        asked += 1
    torch.accelerator.current_stream().wait_event(event)
    y.record_stream(torch.accelerator.current_stream())
    torch.testing.assert_close(y.cpu(), torch.full((3,), 4.0).exp())


def test_copies_between_devices_are_ordered_with_both(order):
    x = torch.arange(6.0, device="sim:0") + 1
    y = x.to("sim:1")
    x.zero_()  # after the copy
    z = (y * 2).to("sim:0")
    y.zero_()
    assert z.tolist() == [2, 4, 6, 8, 10, 12]
    assert staticrt.memory.simulated.waits() == {"copy to the host": 1}


def test_host_values_are_taken_when_the_copy_is_enqueued():
    host = torch.ones(3)
    x = torch.empty(3, device="sim")
    x.copy_(host, non_blocking=True)
    host.zero_()
    assert x.tolist() == [1, 1, 1]


def test_work_has_the_state_of_the_thread_that_enqueued_it(sim):
    """Sums in an order that depends on the number of threads; deterministic algorithms raise where there are none."""
    x = torch.rand(1 << 20)
    one = torch.get_num_threads()
    y = x.to("sim").sum()
    torch.set_num_threads(one + 1)
    try:
        late = y.cpu()
    finally:
        torch.set_num_threads(one)
    assert torch.equal(late, x.sum())
    index, values = torch.tensor([0, 0]), torch.ones(2)
    with torch.inference_mode():
        z = torch.zeros(2, device="sim").index_put_((index.to("sim"),), values.to("sim"), accumulate=True)
    assert z.is_inference()
    assert sim.pending(0) > 0
    assert z.tolist() == [2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_equal_the_cpus(sim, seed):
    """Three streams, tensors passed and freed at random, with the events and records that a program needs."""
    staticrt.memory.simulated.order("random", seed)
    rng = torch.Generator().manual_seed(seed)
    pick = lambda count: int(torch.randint(count, (), generator=rng))  # noqa: E731
    streams = [torch.accelerator.current_stream(), torch.Stream("sim"), torch.Stream("sim")]
    values = []
    for _ in range(60):
        stream = streams[pick(3)]
        with stream:
            if len(values) < 4 or pick(3) == 0:
                size = 1 + pick(5000)
                start = torch.rand(size, generator=rng)
                values.append((start.to("sim", non_blocking=True), start, stream))
                continue
            at = pick(len(values))
            mine, theirs, made_on = values[at]
            stream.wait_stream(made_on)
            mine.record_stream(stream)
            values[at] = (mine.mul(1.5).cumsum(0).sub_(1), theirs.mul(1.5).cumsum(0).sub_(1), stream)
            if pick(4) == 0:
                values.pop(pick(len(values)))
    torch.accelerator.synchronize()
    for mine, theirs, _ in values:
        torch.testing.assert_close(mine.cpu(), theirs, rtol=0, atol=0)


class Chosen(torch.nn.Module):
    """Rows that data decides: its results get memory after the host has waited."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 5, 1)
        )

    def forward(self, x):
        best = self.body(x).softmax(1).flatten(2)[0, 1:].amax(0)
        rows = (best > best.mean()).nonzero().squeeze(1)
        return rows, best[rows]


@torch.no_grad()
def test_threads_on_one_stream_get_the_results_of_operators_that_wait():
    torch.manual_seed(0)
    model = Chosen().eval()
    inputs = [torch.randn(1, 3, side, side) for side in (16, 24, 32, 40)]
    wanted = [model(x) for x in inputs]
    model.to("sim")
    there = [x.to("sim") for x in inputs]
    wrong = []

    def call(thread):
        with torch.no_grad():
            for step in range(40):
                index = (thread + step) % len(inputs)
                found = [result.cpu() for result in model(there[index])]
                for result, value in zip(found, wanted[index], strict=True):
                    if result.shape != value.shape or not torch.allclose(result, value, rtol=1e-4, atol=1e-5):
                        wrong.append((thread, step, index))

    in_threads(call, range(8))
    assert not wrong
