"""The simulated device as Python sees it: streams, events, captures, faults, and what the oracle finds."""

import pytest

from staticrt.errors import (
    AllocatorError,
    DeviceError,
    InputError,
    InternalError,
    OutOfMemoryError,
)

MIB = 1 << 20


def test_streams_move_only_when_told(sim):
    order = []
    side = sim.stream()
    for name in "abc":
        sim.enqueue(side, lambda name=name: order.append(name))
    event = sim.event(side)
    assert not event.done()
    assert sim.advance(side, 2) == 2
    assert order == ["a", "b"]
    event.synchronize()
    assert order == ["a", "b", "c"]
    assert event.done()
    assert sim.pending(side) == 0


def test_a_wait_orders_streams(sim):
    first, second = sim.stream(), sim.stream()
    a = sim.allocate(1024, first)
    sim.touch(a, 1024, first)
    sim.event(first).wait(second)
    sim.touch(a, 1024, second)
    assert sim.advance(second) == 0
    sim.advance(first)
    assert sim.advance(second) == 1


def test_the_oracle_finds_what_the_program_does_wrong(sim):
    a = sim.allocate(1024)
    sim.free(a)
    sim.touch(a, 1024)
    assert len(sim.reports) == 1
    assert "free bytes: stream 0 touches" in sim.reports[0]
    with pytest.raises(InternalError, match="free bytes"):
        sim.check()
    sim.clear_reports()


def test_a_missing_record_stream_is_found(sim):
    """Without record_stream the allocator cannot know of `side`: the reuse races, and the oracle says so."""
    side = sim.stream()
    a = sim.allocate(1024)
    sim.touch(a, 1024, side)
    sim.free(a)
    assert sim.allocate(1024) == a
    assert "race: allocation #2" in sim.reports[0]
    sim.clear_reports()


def test_device_bytes_are_bytes(sim):
    a = sim.allocate(1024)
    view = sim.view(a, 1024)
    view[:4] = b"abcd"
    assert bytes(sim.view(a, 4)) == b"abcd"


def test_an_unbacked_device_may_be_huge(device):
    sim = device(16 << 20, backed=False)  # 16 TiB
    a = sim.allocate(10 << 40)
    with pytest.raises(AllocatorError, match="no bytes"):
        sim.view(a, 8)
    with pytest.raises(InputError, match="backed=true"):
        sim.write(a, 8, 1)
    sim.free(a)


def test_planned_faults(sim):
    sim.fail("physical_create", text="planned", times=1)
    a = sim.allocate(10 * MIB)  # the reclaim steps try again
    sim.free(a)
    sim.empty_cache()
    before = sim.used_bytes
    sim.fail("physical_create", times=1000)
    sim.fail("segment_alloc", times=1000)
    with pytest.raises(OutOfMemoryError, match="out of memory"):
        sim.allocate(10 * MIB)
    assert sim.used_bytes == before
    sim.clear_faults()
    sim.allocate(10 * MIB)
    with pytest.raises(
        InputError, match=r"unknown driver call 'malloc'; known: memory_info, .*segment_alloc"
    ):
        sim.fail("malloc")
    with pytest.raises(InputError, match="unknown fault 'lost'"):
        sim.fail("map", fault="lost")


def test_a_broken_device_is_not_out_of_memory(sim):
    sim.break_device("an illegal memory access was encountered")
    with pytest.raises(DeviceError, match="illegal memory access"):
        sim.allocate(10 * MIB)
    sim.mend_device()
    sim.allocate(10 * MIB)


def test_other_processes_are_named_in_the_message(device):
    sim = device(100, other_bytes=70 * MIB)
    assert sim.memory_info() == (30 * MIB, 100 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"100.00 MiB total, 30.00 MiB free.*70.00 MiB"):
        sim.allocate(40 * MIB)
    sim.set_other_bytes(0)
    sim.allocate(40 * MIB)


def test_capture_records_and_replay_runs(sim):
    ran = []
    side = sim.stream()
    with sim.capture() as graph:
        a = sim.allocate(MIB, graph.stream)
        sim.enqueue(graph.stream, lambda: ran.append("main"))
        sim.event(graph.stream).wait(side)
        b = sim.allocate(MIB, side)  # a forked stream is in the capture, and in its pool
        sim.enqueue(side, lambda: ran.append("side"))
        sim.event(side).wait(graph.stream)
        sim.touch(a, MIB, graph.stream)
    assert ran == []
    assert graph.edges == [[], [0], [0, 1]]
    assert sim.stats(graph.pool)["allocated_bytes.all.current"] == 2 * MIB
    graph.replay()
    graph.replay(side)
    sim.synchronize()
    assert ran == ["main", "side"] * 2
    c = sim.allocate(MIB)
    assert sim.stats()["allocated_bytes.all.current"] == 3 * MIB
    assert sim.stats(graph.pool)["allocated_bytes.all.current"] == 2 * MIB
    for address in (a, b, c):
        sim.free(address)
    graph.close()
    sim.empty_cache()
    assert sim.used_bytes == 0
    with pytest.raises(AllocatorError, match="not captured, or is closed"):
        graph.replay()


@pytest.mark.parametrize("how", ["raise", "break", "unjoined"])
def test_a_failed_capture_leaves_nothing(sim, how):
    side, stream = sim.stream(), sim.stream()
    held = []

    def attempt():
        with sim.capture(stream, pool=(0, 77)) as graph:
            held.append(sim.allocate(8 * MIB, graph.stream))
            if how == "raise":
                raise KeyError("the model failed")
            if how == "break":
                sim.synchronize(graph.stream)
            sim.event(graph.stream).wait(side)
            sim.enqueue(side)

    expected = {"raise": KeyError, "break": DeviceError, "unjoined": DeviceError}[how]
    with pytest.raises(expected):
        attempt()
    sim.clear_reports()  # "break" is a misuse, on purpose
    for address in held:
        sim.free(address)
    sim.empty_cache()
    assert sim.used_bytes == 0
    assert not sim._handle.pool_exists((0, 77))
    with sim.capture(stream, pool=(0, 77)) as graph:  # the id works again
        a = sim.allocate(8 * MIB, graph.stream)
    graph.close()
    sim.free(a)


def test_work_that_raises_is_reported(sim):
    side = sim.stream()
    sim.enqueue(side, lambda: 1 // 0)
    sim.advance(side)
    assert "ZeroDivisionError" in sim.reports[0]
    sim.clear_reports()


def test_work_may_use_streams_but_not_the_allocator(sim):
    """The allocator may be waiting for the work, and holds its locks meanwhile: this hung."""
    side, other = sim.stream(), sim.stream()
    seen = []
    sim.enqueue(side, lambda: sim.enqueue(other, lambda: seen.append("other")))
    sim.enqueue(side, lambda: sim.allocate(1024))
    a = sim.allocate(60 << 20)
    sim.touch(a, 60 << 20, side)
    sim.record_stream(a, side)
    sim.free(a)
    assert sim.allocate(60 << 20) == a  # waits for side, whose work would need what this call holds
    sim.synchronize()
    assert seen == ["other"]
    (report,) = sim.reports
    assert "called the allocator" in report
    assert "AllocatorError" in report
    sim.clear_reports()
