"""Pools, limits, options, and the errors of wrong use."""

import gc

import pytest
import torch

import staticrt.memory
from staticrt.errors import AllocatorError, DeviceError, InvalidPointerError, OutOfMemoryError

MIB = 1 << 20


def test_a_pool_counts_its_contexts(sim):
    p = sim.pool()
    assert p.use_count() == 1
    with p:
        assert p.use_count() == 2
    assert p.use_count() == 1
    p.close()
    p.close()
    assert p.use_count() == 0
    with pytest.raises(AllocatorError, match="is closed"):
        p.__enter__()
    with pytest.raises(AllocatorError, match="is closed"):
        p.hibernate()


def test_pools_nest_innermost_first(sim):
    with sim.pool() as outer:
        sim.allocate(2 * MIB)
        with sim.pool() as inner:
            sim.allocate(3 * MIB)
        sim.allocate(4 * MIB)
    sim.allocate(5 * MIB)
    held = [sim.stats(pool)["allocated_bytes.all.current"] // MIB for pool in (outer, inner, (0, 0))]
    assert held == [6, 3, 5]


def test_a_pool_is_left_when_its_block_raises(sim):
    p = sim.pool()
    with pytest.raises(KeyError), p:
        raise KeyError
    assert p.use_count() == 1
    sim.allocate(MIB)
    assert sim.stats(p)["allocated_bytes.all.current"] == 0


def test_a_pool_cannot_be_entered_twice(sim):
    with sim.pool() as p:
        with pytest.raises(AllocatorError, match="routed already"):
            p.__enter__()
        assert p.use_count() == 2


def test_a_dropped_pool_gives_its_memory_back(sim):
    p = sim.pool()
    with p:
        sim.free(sim.allocate(30 * MIB))
    assert sim.used_bytes >= 30 * MIB
    del p
    gc.collect()
    assert sim.used_bytes == 0


def test_live_memory_outlives_its_pool(sim):
    p = sim.pool()
    with p:
        a = sim.allocate(30 * MIB)
    p.close()
    sim.view(a, 8)[:] = b"12345678"
    assert bytes(sim.view(a, 8)) == b"12345678"
    sim.free(a)
    sim.empty_cache()
    assert sim.used_bytes == 0


def test_use_on_oom_lends_free_blocks(device):
    sim = device(100, config="expandable_segments:False")
    p = sim.pool(use_on_oom=True)
    with p:
        a = sim.allocate(80 * MIB)
        sim.free(a)
    assert sim.allocate(80 * MIB) == a


def test_no_split_gives_each_block_its_segment(device):
    sim = device(200, config="expandable_segments:False")
    with sim.pool(no_split=True) as p:
        addresses = [sim.allocate(3 * MIB) for _ in range(3)]
    segments = sim.snapshot(p)["segments"]
    assert [len(s["blocks"]) for s in segments] == [1, 1, 1]
    sim.free(addresses[0])
    sim.empty_cache(p)
    assert len(sim.snapshot(p)["segments"]) == 2


def test_hibernate_keeps_addresses(sim):
    p = sim.pool()
    with p:
        a, b = sim.allocate(20 * MIB), sim.allocate(40 * MIB)
        sim.free(b)
    assert p.hibernate() == 40 * MIB
    assert sim.used_bytes == 20 * MIB
    p.wake()
    with p:
        assert sim.allocate(40 * MIB) == b
    sim.free(a)


def test_limits(sim):
    sim.set_limit(fraction=0.5)
    a = sim.allocate(50 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"limit 50.00 MiB"):
        sim.allocate(2 * MIB)
    sim.set_limit(bytes=60 * MIB)
    sim.allocate(8 * MIB)
    sim.set_limit()
    sim.allocate(30 * MIB)
    sim.free(a)
    for wrong in (
        {"fraction": 1.5},
        {"fraction": -0.1},
        {"fraction": float("nan")},
        {"fraction": "half"},
        {"bytes": -1},
    ):
        with pytest.raises(AllocatorError, match=r"fraction is|bytes is"):
            sim.set_limit(**wrong)
    with pytest.raises(AllocatorError, match="not both"):
        sim.set_limit(fraction=0.5, bytes=5)


def test_empty_cache_says_what_it_released(sim):
    a = sim.allocate(30 * MIB)
    assert sim.empty_cache() == 0
    sim.free(a)
    assert sim.empty_cache() == 30 * MIB
    assert sim.used_bytes == 0


def test_allocation_at_an_address(sim):
    a = sim.allocate(4 * MIB)
    sim.free(a)
    assert sim.allocate(MIB * 2, address=a + MIB * 2) == a + MIB * 2
    with pytest.raises(OutOfMemoryError, match="at address"):
        sim.allocate(MIB * 2, address=a + MIB * 2)


def test_nothing_is_null(sim):
    assert sim.allocate(0) == 0
    sim.free(0)
    assert sim.stats()["allocation.all.allocated"] == 0


def test_wrong_pointers(sim):
    a = sim.allocate(1024)
    sim.free(a)
    for wrong in (a, a + 8, 12345):
        with pytest.raises(InvalidPointerError, match=r"invalid device pointer 0x"):
            sim.free(wrong)


@pytest.mark.parametrize("size", [-1, 1.5, "9", None, True, 1 << 64])
def test_wrong_sizes(sim, size):
    with pytest.raises(AllocatorError, match="size is"):
        sim.allocate(size)


def test_more_than_an_exabyte(sim):
    with pytest.raises(OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        sim.allocate(1 << 60)


def test_options(device):
    sim = device(100, config="expandable_segments:False,max_split_size_mb:20")
    with pytest.raises(AllocatorError, match=r"unknown key 'foo'; known: .*expandable_segments"):
        sim.configure("foo:1")
    with pytest.raises(ValueError, match="max_split_size_mb"):
        sim.configure("max_split_size_mb:1")
    with pytest.raises(AllocatorError, match="unknown key 'bar'"):
        device(100, config="bar:1")
    assert any("pinned" in warning for warning in sim.configure("pinned_use_cuda_host_register:True"))


def test_unknown_pools(sim):
    for wrong in ((1,), "0_1", 7):
        with pytest.raises(AllocatorError, match="is not a pool"):
            sim.stats(wrong)
    with pytest.raises(AllocatorError, match="the pool's id is -1"):
        sim.stats((-1, 0))


def test_host_memory_is_the_device_without_cuda():
    if torch.cuda.is_available():
        pytest.skip("the default is the CUDA device here")
    cpu = staticrt.memory.device()
    assert cpu.name == "cpu"
    before = staticrt.memory.stats()["allocated_bytes.all.current"]
    a = cpu.allocate(5 * MIB)
    assert staticrt.memory.stats("cpu")["allocated_bytes.all.current"] == before + 5 * MIB
    cpu.free(a)
    staticrt.memory.reset_peak()
    staticrt.memory.reset_accumulated()
    staticrt.memory.empty_cache()
    staticrt.memory.device("cpu").validate()
    with staticrt.memory.pool() as p:
        cpu.free(cpu.allocate(1024))
    p.close()


def test_devices_that_are_none():
    for wrong in ("gpu", "meta", True, 1.5):
        with pytest.raises(AllocatorError, match=r"device|allocator"):
            staticrt.memory.device(wrong)
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="no CUDA"):
            staticrt.memory.device("cuda")
        with pytest.raises(DeviceError, match="CUDA"):
            staticrt.memory.stats(0)


def test_torch_pool_needs_cuda(sim):
    with pytest.raises(DeviceError, match=r"has no CUDA|not on a CUDA device"):
        sim.pool().torch()


def test_simulated_devices_are_made_again_and_again():
    """A module of the function's name took its place after the first call."""
    for _ in range(2):
        device = staticrt.memory.simulated(MIB * 10)
        device.free(device.allocate(MIB))
