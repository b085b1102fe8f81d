"""What is not a number, flag, text, stream, pool or device of ours is refused by name, and nothing changes."""

import pytest
import torch

import staticrt.memory
from staticrt.errors import AllocatorError, InvalidPointerError, StaticRuntimeError

MIB = 1 << 20
NOT_NUMBERS = [
    None,
    1.5,
    float("nan"),
    "7",
    b"7",
    [],
    {},
    (1, 2),
    object(),
    True,
    1j,
    torch.tensor(2.5),
    torch.ones(2),
]
BAD_COUNTS = [*NOT_NUMBERS, -1, 1 << 64, 1 << 100]
NOT_FLAGS = [None, 0, 1, "no", [], torch.tensor(True)]
NOT_TEXTS = [None, 3, 1.5, b"x", [], object(), "\udc80"]


def _number_calls(sim, a):
    return {
        "size": lambda x: sim.allocate(x),
        "stream": lambda x: sim.allocate(512, x),
        "address of free": lambda x: sim.free(x),
        "address of record_stream": lambda x: sim.record_stream(x, 1),
        "stream of record_stream": lambda x: sim.record_stream(a, x),
        "traceback": lambda x: sim.traceback(x),
        "max_entries": lambda x: sim.record_history(max_entries=x),
        "enqueue": lambda x: sim.enqueue(x),
        "touch address": lambda x: sim.touch(x, 512),
        "touch size": lambda x: sim.touch(a, x),
        "touch stream": lambda x: sim.touch(a, 512, x),
        "write address": lambda x: sim.write(x, 512, 1),
        "write size": lambda x: sim.write(a, x, 1),
        "write value": lambda x: sim.write(a, 512, x),
        "write stream": lambda x: sim.write(a, 512, 1, x),
        "verify value": lambda x: sim.verify(a, 512, x),
        "advance": lambda x: sim.advance(x),
        "advance count": lambda x: sim.advance(0, x),
        "pending": lambda x: sim.pending(x),
        "fail nth": lambda x: sim.fail("map", x),
        "fail times": lambda x: sim.fail("map", times=x),
        "other bytes": lambda x: sim.set_other_bytes(x),
        "view address": lambda x: sim.view(x, 16),
        "view size": lambda x: sim.view(a, x),
        "event record": lambda x: sim.event().record(x),
        "event wait": lambda x: sim.event(0).wait(x),
        "total_bytes": lambda x: staticrt.memory.simulated(x),
        "index": lambda x: staticrt.memory.simulated(MIB, index=x),
        "va_bytes": lambda x: staticrt.memory.simulated(MIB, va_bytes=x),
        "pool id": lambda x: sim.stats((x, 0)),
    }


def test_what_is_no_number_is_refused(sim):
    a = sim.allocate(MIB)
    before = sim.stats()
    for name, call in _number_calls(sim, a).items():
        for value in BAD_COUNTS:
            print(name, repr(value))
            with pytest.raises(AllocatorError, match=r"(?s) is .*fix: give a (whole )?number"):
                call(value)
    assert sim.stats() == before
    sim.check()


def test_what_is_no_flag_or_text_is_refused(sim):
    flags = [
        lambda x: sim.snapshot(include_traces=x),
        lambda x: sim.record_history(clear_history=x),
        lambda x: sim.pool(use_on_oom=x),
        lambda x: sim.pool(no_split=x),
        lambda x: staticrt.memory.simulated(MIB, virtual_memory=x),
        lambda x: staticrt.memory.simulated(MIB, backed=x),
        lambda x: staticrt.memory.simulated(MIB, eager=x),
    ]
    for call in flags:
        for value in NOT_FLAGS:
            with pytest.raises(AllocatorError, match="give True or False"):
                call(value)
    texts = [
        sim.annotate,
        sim.configure,
        staticrt.memory.set_metadata,
        sim.fail,
        sim.calls,
        sim.break_device,
        lambda x: sim.fail("map", 1, x),
        lambda x: sim.fail("map", text=x),
        lambda x: staticrt.memory.simulated(MIB, config=x),
    ]
    for call in texts:
        for value in NOT_TEXTS:
            with pytest.raises(AllocatorError, match="give a string"):
                call(value)
    for value in (None, 3, "alloc", 1.5, object(), torch.tensor(3)):
        with pytest.raises(AllocatorError, match="give a list of names"):
            sim.record_history(skip_actions=value)
    for value in (3, [], torch.ones(2), "everything"):
        with pytest.raises(AllocatorError, match="give one of"):
            sim.record_history(value)
        with pytest.raises(AllocatorError, match="give one of"):
            sim.record_history(context=value)
    sim.check()


def test_what_prints_itself_wrongly_is_still_refused_clearly(sim):
    class Strange:
        def __repr__(self):
            raise RuntimeError("no")

    class Bad:
        def __index__(self):
            raise TypeError("no")

    with pytest.raises(AllocatorError, match="size is a Strange"):
        sim.allocate(Strange())
    with pytest.raises(AllocatorError, match="size is"):
        sim.allocate(Bad())
    with pytest.raises(AllocatorError, match=r"size is \[0, 0, .*\.\.\."):
        sim.allocate([0] * 1000)


def test_huge_numbers_cost_nothing(sim):
    """`times` was one entry of a table each: 2**63 of them ended the process."""
    a = sim.allocate(MIB)
    sim.fail("map", times=1 << 63)
    sim.fail("map", nth=1 << 63, times=1 << 63)
    sim.clear_faults()
    sim.allocate(8 * MIB)
    for size in (1 << 59, 1 << 60, 1 << 63, (1 << 64) - 1):
        with pytest.raises(staticrt.errors.OutOfMemoryError):
            sim.allocate(size)
    assert sim.advance(0, (1 << 64) - 1) == 0
    sim.touch(a, (1 << 64) - 1)  # wraps around: beyond the block, not inside
    sim.touch(a, (1 << 64) - a)
    assert len(sim.reports) >= 2
    sim.clear_reports()
    with pytest.raises(InvalidPointerError, match="in no live block"):
        sim.view(a, (1 << 64) - 1)
    sim.validate()


def test_faults_in_ranges_fail_the_calls_they_name(sim):
    sim.fail("map", nth=2, times=2)
    sim.fail("map", nth=3, fault="error", text="later")  # made last: counts for the third
    handle = sim._sim
    assert sim.calls("map") == 0
    outcomes = []
    for size in (2, 4, 8, 16, 32):
        calls = sim.calls("map")
        try:
            sim.allocate(size * MIB)
            outcomes.append("ok")
        except StaticRuntimeError as error:
            outcomes.append("later" if "later" in str(error) else "oom")
        assert sim.calls("map") > calls or outcomes[-1] == "ok"
    assert outcomes.count("later") == 1
    assert handle.calls("map") >= 3
    sim.clear_faults()


def test_a_pool_of_another_device_is_none_of_this_one(sim):
    other = staticrt.memory.simulated(100 * MIB)
    pool = other.pool()
    calls = [sim.stats, sim.snapshot, sim.empty_cache, lambda p: sim.capture(pool=p).__enter__()]
    for call in calls:
        with pytest.raises(AllocatorError, match="is on another device than sim:0"):
            call(pool)
    assert sim._handle.pools() == [(0, 0)]


def test_a_closed_pool_is_not_captured_into(sim):
    pool = sim.pool()
    pool.close()
    with pytest.raises(AllocatorError, match="is closed"), sim.capture(pool=pool):
        pass
    assert sim._handle.pools() == [(0, 0)]


def test_views_are_of_live_memory_only(sim):
    a = sim.allocate(MIB)
    for address, size in ((0, 8), (a - 8, 8), (a + 512, MIB), (a + MIB, 1), (1 << 40, 8)):
        with pytest.raises(InvalidPointerError, match="in no live block"):
            sim.view(address, size)
    sim.view(a + 512, MIB - 512)[:1] = b"x"
    sim.free(a)
    with pytest.raises(InvalidPointerError, match="in no live block"):
        sim.view(a, 8)


def test_work_must_be_callable(sim):
    for work in (3, "x", [], torch.ones(1)):
        with pytest.raises(AllocatorError, match="cannot be called"):
            sim.enqueue(0, work)
    assert sim.pending(0) == 0
