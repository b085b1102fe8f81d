"""Use that nobody should make: after close, twice, from other threads, in copies, forks and at the very end."""

import copy
import gc
import os
import pickle
import textwrap
import threading

import pytest
import torch

import staticrt.memory
from staticrt.errors import AllocatorError, InvalidPointerError
from tests.support import run_fresh
from tests.support.threads import beside, in_threads

MIB = 1 << 20


def _in_child(child):
    """What `child` returns in a forked process, as text; fails if it hangs or dies."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(child()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        got = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0
    return got


def test_pools_can_be_neither_copied_nor_pickled(sim):
    """A copy's end was the end of the original's memory."""
    pool = sim.pool()
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(AllocatorError, match="cannot be"):
            call(pool)
    gc.collect()
    assert pool.use_count() == 1


def test_memory_is_freed_once_whoever_frees_it(sim):
    addresses = [sim.allocate(1 << 10) for _ in range(200)]
    outcomes = []

    def free_all(_thread):
        for a in addresses:
            try:
                sim.free(a)
                outcomes.append("freed")
            except InvalidPointerError:
                outcomes.append("not ours")

    in_threads(free_all, range(4))
    assert outcomes.count("freed") == 200
    assert outcomes.count("not ours") == 600
    assert sim.stats()["allocated_bytes.all.current"] == 0
    sim.validate()


def test_a_pool_that_ends_in_work_is_given_back_later(sim):
    """The garbage collector may run anywhere, also where the allocator may not be called."""
    pool = sim.pool()
    with pool:
        sim.free(sim.allocate(30 * MIB))
    box = [pool]
    del pool
    sim.enqueue(0, box.clear)
    sim.synchronize()
    assert not box
    assert not sim.reports
    sim.pool().close()
    assert sim._handle.pools() == [(0, 0)]
    assert sim.used_bytes == 0


def test_streams_run_while_other_threads_ask_the_device(sim):
    """`create_stream`, `fail`, `calls` waited for work with the GIL held, and work for the GIL."""
    side = sim.stream()
    started, go_on = threading.Event(), threading.Event()

    def work():
        started.set()
        go_on.wait(10)

    sim.enqueue(side, work)
    runner = threading.Thread(target=sim.advance, args=(side,))
    runner.start()
    assert started.wait(10)
    asked = []
    calls = (sim.stream, lambda: sim.calls("map"), lambda: sim.fail("map", 5), sim.mend_device)
    askers = [threading.Thread(target=lambda c=call: asked.append(c()), daemon=True) for call in calls]
    for asker in askers:
        asker.start()
    go_on.set()
    runner.join(20)
    for asker in askers:
        asker.join(20)
    assert len(asked) == len(calls)


def test_a_child_process_leaves_its_parents_device_alone(sim):
    """The pages are shared: what a child gave back was zeros in the parent."""
    a = sim.allocate(4 * MIB)
    sim.view(a, 8)[:] = b"12345678"

    def child():
        def attempt(call):
            try:
                call()
            except Exception as error:
                return type(error).__name__
            return "no error"

        return [
            attempt(lambda: sim.free(a)),
            attempt(sim.empty_cache),
            attempt(lambda: sim.allocate(64 * MIB)),
        ]

    seen = _in_child(child)
    assert "DeviceError" in seen
    assert bytes(sim.view(a, 8)) == b"12345678"
    sim.check()
    sim.free(a)


def test_a_child_process_uses_the_host_allocator_whatever_other_threads_did():
    """A thread that held the allocator's lock at the fork is not there to let go of it."""
    device = staticrt.memory.device("cpu")

    def busy(_thread):
        device.free(device.allocate(3 * MIB))
        device.free(device.allocate(1 << 10))
        device.empty_cache()

    def child():
        for _ in range(20):
            device.free(device.allocate(5 * MIB))
            device.free(device.allocate(512))
        device.empty_cache()
        device.validate()
        return "ok"

    with beside(busy, range(3)):
        for _ in range(10):
            assert _in_child(child) == "ok"
    device.validate()


@pytest.mark.parametrize(
    "last_words",
    [
        """
        p = sim.pool(); p.__enter__(); a = sim.allocate(3 << 20)
        sim.enqueue(0, lambda: print("never")); ref = [sim]; ref.append(ref)
        sys.keep = memory.simulated(100 << 20); sys.keep.enqueue(1, print); b = sys.keep.allocate(1 << 20)
        c = sys.keep.capture(); g = c.__enter__(); d = sys.keep.allocate(3 << 20, g.stream)
        memory.record_history(device="cpu"); f = staticrt.compile(torch.relu); y = f(torch.ones(100, 100))
        """,
        """
        busy = lambda: [sim.free(sim.allocate(512)) for _ in range(10**7)]
        threading.Thread(target=busy, daemon=True).start()
        """,
        """
        atexit.register(lambda: sim.free(sim.allocate(5 << 20)))
        class Last:
            def __del__(self): sim.allocate(512)
        last = Last()
        """,
    ],
    ids=["everything open", "a thread inside", "used at the very end"],
)
def test_a_process_ends_with_all_of_it_alive(last_words):
    code = "import atexit, sys, threading, torch, staticrt\nfrom staticrt import memory\n"
    code += "sim = memory.simulated(100 << 20)\n" + textwrap.dedent(last_words)
    done = run_fresh(code, flags=("-X", "faulthandler"))
    assert done.stdout == ""
    assert "Fatal" not in done.stderr
    assert "terminate" not in done.stderr


def test_snapshots_while_others_allocate(sim):
    sim.record_history(context=None, max_entries=100)

    def busy(stream):
        a, b = sim.allocate(1 << 12, stream), sim.allocate(3 << 20, stream)
        sim.free(a)
        sim.free(b)

    with beside(busy, [sim.stream() for _ in range(3)]):
        for _ in range(60):
            snapshot = sim.snapshot()
            for segment in snapshot["segments"]:
                at = segment["address"]
                for block in segment["blocks"]:
                    assert block["address"] == at
                    at += block["size"]
                assert at == segment["address"] + segment["total_size"]
            torch.cuda._memory_viz.segment_plot(snapshot)
            pickle.dumps(snapshot)
    sim.validate()


def test_a_limit_below_what_is_used_stops_growth_only(sim):
    held = [sim.allocate(10 * MIB) for _ in range(4)]
    for limit in (0, 1, 5 * MIB, 39 * MIB):
        sim.set_limit(bytes=limit)
        with pytest.raises(staticrt.errors.OutOfMemoryError, match="over limit"):
            sim.allocate(10 * MIB)
        sim.check()
    sim.free(held.pop())
    held.append(sim.allocate(10 * MIB))  # what it has may be used
    sim.set_limit()
    held.append(sim.allocate(10 * MIB))
    for a in held:
        sim.free(a)
    sim.set_limit(fraction=0.0)
    assert sim.empty_cache() > 0
    assert sim.used_bytes == 0
    with pytest.raises(staticrt.errors.OutOfMemoryError):
        sim.allocate(1)


def test_live_views_survive_hibernation(sim):
    pool = sim.pool()
    with pool:
        a, b, c = (sim.allocate(10 * MIB) for _ in range(3))
    sim.view(a, 4)[:], sim.view(c, 4)[:] = b"aaaa", b"cccc"
    first, last = sim.view(a, 4), sim.view(c, 4)
    sim.free(b)
    assert pool.hibernate() > 0
    assert (bytes(first), bytes(last)) == (b"aaaa", b"cccc")
    with pytest.raises(AllocatorError, match="hibernated"), pool:
        sim.allocate(MIB)
    with pytest.raises(AllocatorError, match="already is"):
        pool.hibernate()
    pool.wake()
    pool.wake()
    with pool:
        assert sim.allocate(10 * MIB) == b
    assert (bytes(first), bytes(last)) == (b"aaaa", b"cccc")
    sim.check()


def test_a_capture_that_ends_in_the_middle_leaves_nothing(sim):
    def broken_off(stop):
        with sim.capture() as graph:
            graphs.append(graph)
            sim.free(sim.allocate(8 * MIB, graph.stream))
            sim.touch(sim.allocate(4 * MIB, graph.stream), 4 * MIB, graph.stream)
            raise stop

    graphs = []
    for stop in (KeyboardInterrupt, ValueError, SystemExit):
        with pytest.raises(stop):
            broken_off(stop)
        graph = graphs.pop()
        with pytest.raises(AllocatorError, match="not captured, or is closed"):
            graph.replay()
    manager = sim.capture()
    graph = manager.__enter__()
    sim.allocate(MIB, graph.stream)
    del manager  # never left: the garbage collector closes the generator
    gc.collect()
    with sim.capture(graph.stream) as again:
        sim.allocate(MIB, again.stream)
    again.close()
    again.close()
    assert sim._handle.pools()[0] == (0, 0)
    sim.check()
