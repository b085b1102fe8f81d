"""Scenarios in which PyTorch 2.11's allocator fails (rules U1 to U7 of docs/design/allocator.md), on the simulated device."""

import pytest

from staticrt.errors import AllocatorError, OutOfMemoryError

MIB = 1 << 20
FIXED = "expandable_segments:False"
EXPANDABLE = "expandable_segments:True"
BOTH = pytest.mark.parametrize("config", [FIXED, EXPANDABLE])


@BOTH
def test_u1_memory_freed_by_a_sync_is_used_before_growing_again(device, config):
    sim = device(100, config=config)
    side = sim.stream()
    sim.free(sim.allocate(100 * MIB))
    a = sim.allocate(60 * MIB)
    sim.allocate(40 * MIB)
    sim.touch(a, 60 * MIB, side)
    sim.record_stream(a, side)
    sim.free(a)
    assert sim.pending(side) == 1
    b = sim.allocate(60 * MIB)
    assert b == a
    assert sim.pending(side) == 0
    sim.touch(b, 60 * MIB)


@BOTH
def test_u2_routing_to_a_pool_alone_keeps_every_way_out(device, config):
    sim = device(100, config=config)
    sim.free(sim.allocate(60 * MIB))
    with sim.pool() as p:
        a = sim.allocate(70 * MIB)
    assert sim.stats(p)["allocated_bytes.all.current"] == 70 * MIB
    sim.free(a)


@BOTH
def test_u3_idle_memory_of_another_stream_serves_without_a_race(device, config):
    sim = device(100, config=config)
    side = sim.stream()
    a = sim.allocate(100 * MIB, side)
    sim.write(a, 100 * MIB, 1, side)
    sim.free(a)
    sim.allocate(10 * MIB, side)
    b = sim.allocate(60 * MIB)
    sim.write(b, 60 * MIB, 2)
    sim.verify(b, 60 * MIB, 2)
    sim.synchronize()  # the late write of `side` would show here


@BOTH
def test_u4a_idle_memory_of_an_uncaptured_pool_serves_the_default_pool(device, config):
    sim = device(100, config=config)
    p = sim.pool()
    with p:
        a = sim.allocate(70 * MIB)
        sim.touch(a, 70 * MIB)
        sim.free(a)
    sim.allocate(60 * MIB)
    assert p.use_count() == 1


def test_u4b_memory_of_a_captured_graph_is_named_and_hibernates(device):
    sim = device(100, config=EXPANDABLE)
    with sim.capture() as graph:
        live = sim.allocate(30 * MIB, graph.stream)
        a = sim.allocate(70 * MIB, graph.stream)
        sim.touch(live, 30 * MIB, graph.stream)
        sim.touch(a, 70 * MIB, graph.stream)
        sim.free(a)
    graph.replay()
    with pytest.raises(OutOfMemoryError) as error:
        sim.allocate(60 * MIB)
    first, second = graph.pool
    assert f"70.00 MiB idle in pool {first}_{second} (captured)" in str(error.value)
    assert f"hibernate pool {first}_{second}" in str(error.value)

    assert sim._handle.pool_hibernate(graph.pool) >= 60 * MIB
    b = sim.allocate(60 * MIB)
    with pytest.raises(AllocatorError, match="hibernat"):
        graph.replay()
    sim.touch(b, 60 * MIB)
    sim.free(b)
    sim._handle.pool_wake(graph.pool)
    graph.replay()  # at the same addresses: the oracle would see unmapped bytes
    graph.close()
    sim.free(live)


def test_u5_growth_takes_no_more_than_there_is(device):
    sim = device(100, config=EXPANDABLE)
    sim.set_limit(bytes=50 * MIB)
    sim.allocate(40 * MIB)
    before = sim.stats()["reserved_bytes.all.current"]
    sim.allocate(MIB + 512)
    assert sim.stats()["reserved_bytes.all.current"] - before <= 2 * MIB
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 20.00 MiB on sim:0"):
        sim.allocate(20 * MIB)


def test_u6_a_released_graph_pool_can_be_made_again(device):
    sim = device(200, config=EXPANDABLE)
    for _ in range(2):
        with sim.capture(pool=(0, 9)) as graph:
            blocks = [sim.allocate(20 * MIB, graph.stream) for _ in range(4)]
        for block in blocks:
            sim.free(block)
        graph.close()
        sim.empty_cache()
        assert sim.used_bytes == 0
        assert not sim._handle.pool_exists((0, 9))


def test_u7_a_pool_with_live_memory_ends_with_that_memory(device):
    sim = device(1000, config=EXPANDABLE)
    p = sim.pool()
    with p:
        sim.free(sim.allocate(120 * MIB))
        x, y = sim.allocate(40 * MIB), sim.allocate(40 * MIB)
        sim.free(x)
    p.close()
    sim.empty_cache()
    assert sim.used_bytes == 40 * MIB
    sim.free(y)
    sim.empty_cache()
    assert sim.used_bytes == 0
    assert not sim._handle.pool_exists(p.id)
