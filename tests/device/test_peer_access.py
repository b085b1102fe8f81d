"""Two devices that use each other's memory: who may, since when, and how long it is held for the other."""

import pytest
import torch
from torch import nn

import staticrt
from staticrt import memory
from staticrt.errors import AllocatorError
from tests.support import run_fresh

ENABLE = """
import torch, staticrt
from staticrt import memory
from staticrt.errors import DeviceError
def enable(**options):
    memory.simulated.enable(**options)
    return memory.device("sim:0"), memory.device("sim:1")
def found(*devices):
    torch.accelerator.synchronize(0), torch.accelerator.synchronize(1)
    reports = [report for each in devices for report in each.reports]
    for each in devices: each.clear_reports()
    return reports
"""


def process(code):
    """Access cannot be taken back, so what is true before it needs a process of its own."""
    run_fresh(ENABLE + code, flags=("-W", "ignore"))


def test_access_is_off_until_it_is_enabled_for_present_and_later_memory():
    process("""
zero, one = enable(devices=2)
x = torch.ones(1000, device="sim:0")
torch.accelerator.synchronize(0)
assert memory.can_access("sim:1", "sim:0") and not memory.has_access("sim:1", "sim:0")
one.touch(x.data_ptr(), 4000)
(report,) = found(zero, one)
assert report == (f"peer access: work on stream 0 of sim:1 uses [{x.data_ptr():#x}, +4000 bytes) of sim:0, "
                  "to which sim:1 has no access; enable peer access first"), report
for _ in range(2):
    memory.enable_peer_access("sim:1", "sim:0")
assert memory.has_access("sim:1", "sim:0") and not memory.has_access("sim:0", "sim:1")
one.touch(x.data_ptr(), 4000)
y = torch.ones(1 << 23, device="sim:0")
torch.accelerator.synchronize(0)
one.touch(y.data_ptr(), 4 << 23)
assert found(zero, one) == []
""")


def test_the_first_copy_enables_access_as_torchs_does():
    process("""
zero, one = enable(devices=2)
x = torch.arange(12.0, device="sim:0").view(3, 4)
y = torch.empty(4, 3, device="sim:1", dtype=torch.float64)
y.copy_(x.t())
assert y.tolist() == x.t().tolist()
assert zero.has_access("sim:1") and not one.has_access("sim:0")
one.fail("set_access", fault="error", text="planned")
try:
    torch.ones(3, device="sim:0").to("sim:1")  # has access
    memory.device("sim:0").fail("set_access", fault="error", text="no path")
    torch.ones(3, device="sim:1").to("sim:0")
except RuntimeError as error:
    assert "sim:0: its memory stays closed to sim:1: no path" in str(error), error
else:
    raise SystemExit("nothing was raised")
assert not one.has_access("sim:0")
assert torch.ones(3, device="sim:1").to("sim:0").tolist() == [1, 1, 1]
assert one.has_access("sim:0")
assert found(zero, one) == []
zero.validate(), one.validate()
""")


def test_memory_that_a_copy_came_back_to_is_given_away_after_that_copy():
    """The wait for another device's stream runs that stream, and what it waits for, but not the waiting one's next work."""
    process("""
zero, one = enable(devices=2)
for order in ("needed", "others_first", "random"):
    memory.simulated.order(order, 3)
    x, few = torch.ones(4, device="sim:0"), torch.ones(2, dtype=torch.uint8, device="sim:0")
    there_and_back = x.to("sim:1").neg().to("sim:0")
    address = there_and_back.data_ptr()
    del there_and_back
    smaller = torch.empty_like(few)  # its redzone is filled in the stream's order
    assert smaller.data_ptr() == address
    smaller.copy_(few)
    assert found(zero, one) == [], order
    assert smaller.tolist() == [1, 1], order
""")


def test_devices_that_cannot_reach_each_other_copy_through_the_host():
    process("""
zero, one = enable(devices=3, unreachable=[(1, 0)])
for device, peer in (("sim:0", "sim:1"), ("sim:1", "sim:0")):
    assert not memory.can_access(device, peer)
    try:
        memory.enable_peer_access(device, peer)
    except DeviceError as error:
        assert f"{device} cannot reach the memory of {peer}" in str(error), error
    else:
        raise SystemExit("nothing was raised")
for order in ("needed", "others_first", "random"):
    memory.simulated.order(order, 3)
    x = torch.randn(6, 5, device="sim:0")
    y = torch.zeros(5, 6, device="sim:1", dtype=torch.float64)
    y[:, 1:].copy_(x.t()[:, 1:])
    before = x.cpu()
    x.zero_()  # after the copy has read it
    assert torch.equal(y.cpu()[:, 1:], before.t()[:, 1:].double()), order
    z = torch.view_as_complex(before.view(15, 2)).to("sim:1").conj()
    assert torch.equal(z.to("sim:0").cpu(), torch.view_as_complex(before.view(15, 2)).conj())
    memory.simulated.clear_waits(0)
    z = before.to("sim:0").to("sim:1")
    assert memory.simulated.waits(0) == {} and torch.equal(z.cpu(), before)
assert not memory.has_access("sim:0", "sim:1")
torch.ones(3, device="sim:2").to("sim:1")
assert memory.has_access("sim:2", "sim:1")
assert found(zero, one) == []

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16).to("sim:0"), torch.nn.Linear(16, 16).to("sim:1")
    def forward(self, x):
        return self.second(torch.tanh(self.first(x)).to("sim:1")).to("sim:0") * 2

model = Two().eval()
compiled = staticrt.compile(model)
with torch.no_grad():
    for rows in (4, 4, 6):
        x = torch.randn(rows, 16).to("sim:0")
        torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())
assert found(zero, one) == [] and not memory.has_access("sim:0", "sim:1")
""")


@torch.no_grad()
def test_a_program_of_two_devices_reads_and_writes_both(order):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16).to("sim:0"), nn.Linear(16, 16).to("sim:1")

        def forward(self, x):
            there = torch.tanh(self.first(x)).t().to("sim:1")
            return self.second(there.t().contiguous()).to("sim:0") * 2 + x

    model = Two().eval()
    compiled = staticrt.compile(model)
    for rows in (4, 4, 4, 600, 600):
        x = torch.randn(rows, 16).to("sim:0")
        torch.testing.assert_close(compiled(x).cpu(), model(x).cpu())
    assert memory.has_access("sim:0", "sim:1")
    assert memory.has_access("sim:1", "sim:0")
    assert "1 traced graph" in str(compiled.explain())


@pytest.mark.parametrize("recorded", [True, False])
def test_a_peers_stream_holds_the_memory_until_it_is_past_it(recorded):
    memory.enable_peer_access("sim:1", "sim:0")
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    torch.accelerator.synchronize(0)
    x = torch.ones(1000, device="sim:0")
    there = torch.Stream("sim:1")
    there.wait_stream(torch.accelerator.current_stream(0))
    one.touch(x.data_ptr(), 4000, there.stream_id)
    if recorded:
        x.record_stream(there)
    address = x.data_ptr()
    del x
    y = torch.zeros(1000, device="sim:0")
    assert (y.data_ptr() == address) != recorded
    reports = zero.reports
    zero.clear_reports()
    if recorded:
        assert reports == []
        there.synchronize()
        free = [torch.zeros(1000, device="sim:0") for _ in range(64)]  # earlier tests left some
        assert address in [each.data_ptr() for each in free]
    else:
        assert reports[0].startswith("race: allocation #"), reports
        assert f"of stream {there.stream_id} of sim:1" in reports[0], reports
        there.synchronize()


def test_a_race_between_devices_is_reported_unless_an_event_orders_them():
    memory.enable_peer_access("sim:1", "sim:0")
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    x = torch.ones(1000, device="sim:0")
    there = torch.Stream("sim:1")
    x.record_stream(there)
    for ordered in (True, False):
        x.add_(1)
        if ordered:
            there.wait_stream(torch.accelerator.current_stream(0))
        one.touch(x.data_ptr(), 4000, there.stream_id)
        if ordered:
            torch.accelerator.current_stream(0).wait_stream(there)
    x.mul_(2)
    y = x.to("sim:1")
    assert y[0].item() == 6
    assert zero.reports == []  # it does not say whether it writes


def test_a_touch_that_says_what_it_does_races_with_the_owners_work():
    memory.enable_peer_access("sim:1", "sim:0")
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    x = torch.ones(1000, device="sim:0")
    there = torch.Stream("sim:1")
    there.wait_stream(torch.accelerator.current_stream(0))
    x.record_stream(there)
    one.touch(x.data_ptr(), 4000, there.stream_id, writes=False)
    x + 1
    assert zero.reports == []
    one.touch(x.data_ptr(), 4000, there.stream_id, writes=True)
    reports = zero.reports
    zero.clear_reports()
    assert reports[0].startswith(f"race: work on stream {there.stream_id} of sim:1 writes"), reports
    assert "which aten::add on stream 0 reads" in reports[0], reports
    with pytest.raises(AllocatorError, match="writes is 1"):
        one.touch(x.data_ptr(), 4000, writes=1)


def test_a_copy_between_devices_races_like_any_operator():
    zero = memory.device("sim:0")
    x = torch.ones(1000, device="sim:0")
    y = torch.zeros(1000, device="sim:1")
    y.to("sim:0")
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    side = torch.Stream("sim:0")
    with side:
        x.add_(1)  # missing after it: the current stream waits for it
    x.record_stream(side)
    y.copy_(x)
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    reports = zero.reports
    zero.clear_reports()
    assert reports[0].startswith("race: aten::copy_ on stream 0 reads"), reports
    # The copy writes the other device's memory: an operator there that nothing orders with it is found too.
    one = memory.device("sim:1")
    other = torch.Stream("sim:1")
    y.record_stream(other)
    y.copy_(x)
    with other:
        y.add_(1)
    torch.accelerator.synchronize(0)
    torch.accelerator.synchronize(1)
    reports = one.reports
    one.clear_reports()
    assert reports[0].startswith(f"race: aten::add on stream {other.stream_id} writes"), reports
    assert "which aten::copy_ on stream 0 of sim:0 writes" in reports[0], reports


def test_a_copy_that_no_stream_waits_for_is_over_when_its_error_is_raised():
    process("""
zero, one = enable(devices=2)
there = torch.ones(1000, device="sim:1")
here = there.to("sim:0")
one.fail("event_record", fault="error", text="dead")
try:
    here.copy_(there)
except RuntimeError as error:
    assert "dead" in str(error), error
else:
    raise AssertionError("it does not raise")
del here
again = torch.ones(1000, device="sim:0")
assert found(zero, one) == []
""")


def test_a_captured_graph_reads_the_other_devices_memory():
    memory.enable_peer_access("sim:1", "sim:0")
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    x = torch.ones(1000, device="sim:0")
    torch.accelerator.synchronize(0)
    with one.capture() as graph:
        one.touch(x.data_ptr(), 4000, graph.stream)
    graph.replay()
    one.synchronize(graph.stream)
    assert zero.reports == one.reports == []
    x.record_stream(torch.Stream("sim:1"))
    del x
    y = torch.zeros(1000, device="sim:0")
    graph.replay()
    reports = zero.reports
    zero.clear_reports()
    one.clear_reports()
    assert any("graph" in report and "of sim:1" in report for report in reports), reports
    one.synchronize(graph.stream)
    graph.close()
    del y


def test_arguments_that_name_no_device_are_refused():
    with pytest.raises(AllocatorError, match="'gpu' is not a device"):
        memory.enable_peer_access("sim:0", "gpu")
    for device, peer in (("cpu", "sim:0"), ("sim:0", "cpu")):
        assert not memory.can_access(device, peer)
    assert memory.can_access("sim:0", "sim:0")
    assert memory.has_access("sim:0", "sim:0")
    with pytest.raises(staticrt.errors.DeviceError, match="cpu cannot reach the memory of sim:0"):
        memory.enable_peer_access("cpu", "sim:0")


def test_a_use_by_a_peer_while_the_owner_captures_holds_the_block():
    process("""
zero, one = enable(devices=2)
memory.enable_peer_access("sim:1", "sim:0")
stream, block = one.stream(), zero.allocate(4096)
with zero.capture():
    zero.record_stream(block, stream, one)
    one.touch(block, 4096, stream)
    zero.free(block)
assert zero.allocate(4096) != block
assert found(zero, one) == []
""")


def test_waiting_for_a_peer_breaks_no_capture_there():
    process("""
zero, one = enable(devices=2, config="expandable_segments:True")
stream, block = one.stream(), zero.allocate(4096)
zero.record_stream(block, stream, "sim:1")
zero.free(block)
pool, held = zero.pool(), one.allocate(4096)
with one.capture() as graph:
    one.touch(held, 4096, graph.stream)
    pool.hibernate()
""")


@pytest.mark.parametrize("call", ["capture_state", "event_create", "event_record", "event_query"])
def test_a_peer_that_fails_holds_its_own_blocks_alone(call):
    process(f"""
zero, one = enable(devices=2)
memory.enable_peer_access("sim:1", "sim:0")
stream, other = one.stream(), zero.stream()
block, own = zero.allocate(4096), zero.allocate(1 << 20)
zero.record_stream(block, stream, "sim:1")
zero.free(block)
one.fail("{call}", fault="error", text="dead", times=10**6)
zero.record_stream(own, other)
zero.touch(own, 1 << 20, other)
zero.free(own)
zero.synchronize()
assert own in [zero.allocate(1 << 20) for _ in range(4)]
""")


def test_wrong_devices_and_pairs_are_named():
    with pytest.raises(AllocatorError, match="sim:7 does not exist\n  fix: give a number from 0 to 1"):
        memory.device("sim:7")
    process("""
from staticrt.errors import AllocatorError
for wrong, text in ((5, "unreachable is 5\\n  fix: give a list of pairs"), ("01", "unreachable is '01'"),
                    ([5], "5 is not a pair"), ([(0, 0)], "(0, 0) is not a pair"), ([(0, 9)], "a device's number is 9")):
    try:
        enable(devices=2, unreachable=wrong)
    except AllocatorError as error:
        assert text in str(error), error
    else:
        raise SystemExit("nothing was raised")
""")


def test_a_graph_holds_copies_between_devices():
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    x, y = torch.ones(1000, device="sim:0"), torch.zeros(1000, device="sim:1")
    x.to("sim:1"), y.to("sim:0")  # access
    torch.accelerator.synchronize(0), torch.accelerator.synchronize(1)
    here, there = torch.Stream("sim:0"), torch.Stream("sim:1")
    with zero.capture(here.stream_id) as graph, here:
        there.wait_stream(here)
        with there:
            y.copy_(x).mul_(3)
            with pytest.raises(
                RuntimeError, match="cannot allocate 4000 bytes of sim:1 in a capture that began on another"
            ):
                y + 1
            x.copy_(y)
        here.wait_stream(there)
    assert graph.num_kernels == 3
    for _ in range(2):
        graph.replay(0)
    torch.accelerator.current_stream(1).wait_stream(torch.accelerator.current_stream(0))
    assert y[7].item() == 9 == x[7].item()
    assert zero.reports == one.reports == []
    graph.close()


def test_a_copy_to_a_stream_outside_of_the_capture_is_refused_and_breaks_nothing():
    zero, one = memory.device("sim:0"), memory.device("sim:1")
    x, y = torch.ones(1000, device="sim:0"), torch.zeros(1000, device="sim:1")
    torch.accelerator.synchronize(0), torch.accelerator.synchronize(1)
    here = torch.Stream("sim:0")
    with zero.capture(here.stream_id) as graph, here:
        for to, source in ((y, x), (x, y)):
            with pytest.raises(RuntimeError, match="not in one capture; let the one wait for an event"):
                to.copy_(source)
        x.add_(1)
    graph.replay(0)
    assert x[0].item() == 2
    assert zero.reports == one.reports == []
    graph.close()
