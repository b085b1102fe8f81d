"""The CPU's graph pool: routed allocations, owners, checkpoints."""

import gc
import subprocess
import sys
import threading

import pytest
import torch

import staticrt.memory
from staticrt.errors import InputError
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.protocol import LeakInfo, PoolDelta
from staticrt.native import _C
from tests.support.threads import in_threads


def storage_ptr(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_route_gives_pool_memory_and_only_inside_it():
    pool = CpuGraphPool()
    before = torch.zeros(10)
    with pool.route():
        x = torch.zeros(10)
        y = torch.rand(3, 3) @ torch.rand(3, 3)
    after = torch.zeros(10)
    assert {storage_ptr(x), storage_ptr(y)} <= pool.live_ptrs()
    assert not {storage_ptr(before), storage_ptr(after)} & pool.live_ptrs()
    assert pool.check_live({storage_ptr(x), storage_ptr(y)}) is None
    del x, y
    assert pool.live_ptrs() == set()


def test_an_exception_ends_the_route():
    pool = CpuGraphPool()
    with pytest.raises(ValueError, match="oh"), pool.route():
        raise ValueError("oh")
    assert torch.zeros(1).data_ptr() not in pool.live_ptrs()
    assert pool.live_ptrs() == set()


def test_routes_nest_and_close_in_order():
    a, b = CpuGraphPool(), CpuGraphPool()
    with a.route():
        with b.route():
            x = torch.zeros(4)
        y = torch.zeros(4)
    assert b.live_ptrs() == {x.data_ptr()}
    assert a.live_ptrs() == {y.data_ptr()}
    outer, inner = a.route(), b.route()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(InputError, match="reverse order"):
        outer.__exit__()
    with pytest.raises(InputError, match="open already"):
        outer.__enter__()
    inner.__exit__()
    outer.__exit__()
    assert a.id != b.id


def test_a_route_is_of_one_thread():
    pool = CpuGraphPool()
    seen = []
    with pool.route():
        other = threading.Thread(target=lambda: seen.append(torch.zeros(4)))
        other.start()
        other.join()
        assert pool.live_ptrs() == set()
        route = pool.route()
    failures = []

    def leave():
        try:
            route.__exit__()
        except InputError as error:
            failures.append(str(error))

    with route:
        other = threading.Thread(target=leave)
        other.start()
        other.join()
    assert "thread that entered it" in failures[0]


def test_memory_outlives_the_pool():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.arange(100.0)
    del pool
    gc.collect()
    assert x.sum() == 4950
    y = x[3:]
    del x
    assert y[0] == 3


def test_a_resized_storage_finds_memory_in_and_out_of_routes():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(10)
    x.resize_(5000).fill_(1)
    assert pool.live_ptrs() == set()
    with pool.route():
        x.resize_(20000)
    assert pool.live_ptrs() == {x.data_ptr()}
    assert (x[:5000] == 1).all()


def test_allocate_and_free():
    pool = CpuGraphPool()
    a = pool.allocate(100)
    b = pool.allocate(5 << 20, align=512)
    assert pool.live_ptrs() == {a, b}
    assert a % 512 == b % 512 == 0
    stats = pool.stats()
    assert (stats.live_blocks, stats.live_bytes) == (2, 512 + (5 << 20))
    assert stats.reserved_bytes >= stats.live_bytes
    pool.free(a)
    with pytest.raises(InputError, match="not a live block"):
        pool.free(a)
    with pytest.raises(InputError, match="power of two"):
        pool.allocate(8, align=4096)
    pool.free(b)
    assert pool.stats().live_blocks == 0
    assert pool.allocate(0) == 0
    pool.free(0)


def test_a_block_of_a_storage_is_not_the_callers_to_free():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(4)
    with pytest.raises(InputError, match="owned by a storage"):
        pool.free(x.data_ptr())
    with pytest.raises(InputError, match="not a live block"):
        CpuGraphPool().free(x.data_ptr())


def test_adopt_gives_a_block_an_owner():
    pool = CpuGraphPool()
    ptr = pool.allocate(64)
    x = _C.tensor_at((ptr, 64, torch.float32, torch.device("cpu"), (16,), (1,), 0))
    _C.adopt(_C.storage_ref(x), pool)
    _C.adopt(_C.storage_ref(x), pool)  # once is enough
    x.fill_(2)
    del x
    assert pool.live_ptrs() == set()
    foreign = torch.zeros(4)
    with pytest.raises(InputError, match="not a live block"):
        _C.adopt(_C.storage_ref(foreign), pool)


def test_check_live_names_what_differs():
    pool = CpuGraphPool()
    a, b = pool.allocate(100), pool.allocate(200)
    assert pool.check_live({a, b}) is None
    assert pool.check_live({a, 4096}) == LeakInfo((4096,), ((b, 200, ""),))
    pool.free(a)
    pool.free(b)


def test_checkpoint_and_restore_round_trip():
    """
    image:   x live, y live
    later:   y dies, z appears       restore: x owned again, y a block without owner, z's block gone
    """
    pool = CpuGraphPool()
    with pool.route():
        x = torch.full((300,), 1.0)
        y = torch.full((300,), 2.0)
    x_ptr, y_ptr = x.data_ptr(), y.data_ptr()
    image = pool.checkpoint()
    assert image.live() == sorted([x_ptr, y_ptr])
    del y
    with pool.route():
        z = torch.zeros(1_000_000)
    z_ptr = z.data_ptr()
    _C.rehome(_C.storage_ref(z))
    with pool.route():
        stale = torch.zeros(1_000_000)
    assert stale.data_ptr() == z_ptr
    delta = pool.restore(image, [_C.storage_ref(x)])
    assert delta == PoolDelta(freed=(z_ptr,), created=(y_ptr,))
    assert pool.check_live({x_ptr, y_ptr}) is None
    assert (x == 1).all()
    pool.free(y_ptr)
    del x
    assert pool.live_ptrs() == set()
    with pool.route():
        fresh = torch.ones(1_000_000)
    assert fresh.data_ptr() == z_ptr
    del stale  # owned the address before the restore: it must not free the new owner's block
    assert pool.live_ptrs() == {z_ptr}
    with pool.route():
        another = torch.zeros(1_000_000)
    assert another.data_ptr() != z_ptr
    assert (fresh == 1).all()
    del fresh, another
    assert pool.live_ptrs() == set()


def test_restore_gives_non_owning_tensors_their_blocks():
    pool = CpuGraphPool()
    with pool.route():
        x = torch.arange(8.0)
    spec, image = _C.TensorSpec.of(x), pool.checkpoint()
    del x
    assert pool.live_ptrs() == set()
    replayed = _C.tensor_at(spec)  # what a replay hands out: the allocator does not know of it
    delta = pool.restore(image, [_C.storage_ref(replayed)])
    assert delta == PoolDelta((), (spec.data_ptr,))
    assert pool.live_ptrs() == {spec.data_ptr}
    del replayed
    assert pool.live_ptrs() == set()


def test_restore_ignores_dead_storages_and_refuses_those_outside_the_image():
    pool = CpuGraphPool()
    image = pool.checkpoint()
    with pool.route():
        x = torch.arange(8.0)
    ref = _C.storage_ref(x)
    with pytest.raises(InputError, match="no live block in the image"):
        pool.restore(image, [ref])
    assert pool.live_ptrs() == {x.data_ptr()}
    ptr = x.data_ptr()
    del x
    assert pool.restore(image, [ref]) == PoolDelta((), ())
    with pytest.raises(InputError, match="image is of pool"):
        CpuGraphPool().restore(image, [])
    assert ptr not in pool.live_ptrs()


def test_restore_of_the_same_state_is_identity():
    pool = CpuGraphPool()
    with pool.route():
        kept = [torch.zeros(n) for n in (1, 100, 10_000, 1_000_000)]
        del kept[1]
    image = pool.checkpoint()
    refs = [_C.storage_ref(t) for t in kept]
    assert pool.restore(image, refs + refs) == PoolDelta((), ())
    assert pool.checkpoint() == image
    kept.clear()
    assert pool.live_ptrs() == set()


def test_memory_of_a_freed_block_serves_the_next_and_trim_gives_it_back():
    pool = CpuGraphPool()
    pool.free(pool.allocate(10 << 20))
    reserved = pool.stats().reserved_bytes
    assert reserved >= 10 << 20
    with pool.route():
        x = torch.empty(9 << 20, dtype=torch.uint8)
    assert pool.stats().reserved_bytes == reserved
    del x
    assert pool.trim() == reserved
    assert pool.stats() == (0, 0, 0, 0)


def test_a_dropped_pool_gives_everything_back():

    def reserved() -> int:
        return staticrt.memory.stats(device="cpu")["reserved_bytes.all.current"]

    gc.collect()
    staticrt.memory.empty_cache(device="cpu")
    before = reserved()
    pool = CpuGraphPool()
    with pool.route():
        x = torch.zeros(1 << 20)
    del pool
    gc.collect()
    assert reserved() > before
    del x
    assert reserved() == before
    _C.host_memory().validate()


def test_threads_route_to_their_own_pools_and_free_each_others_memory():
    pools = [CpuGraphPool() for _ in range(4)]
    kept: list[list[torch.Tensor]] = [[] for _ in pools]

    def work(i: int) -> None:
        for step in range(100):
            with pools[i].route():
                x = torch.full((50 + step,), float(i))
                assert x.data_ptr() in pools[i].live_ptrs()
            kept[i].append(x)
            other = kept[(i + 1) % 4]
            if len(other) > 10:
                assert (other.pop(0) == (i + 1) % 4).all()

    in_threads(work, range(4))
    for i, pool in enumerate(pools):
        assert len(pool.live_ptrs()) == len(kept[i])
        kept[i].clear()
    assert [pool.live_ptrs() for pool in pools] == [set()] * 4
    _C.host_memory().validate()


def test_process_exit_with_pool_memory_alive_is_clean():
    code = """
import torch
from staticrt.graphs.cpu_pool import CpuGraphPool
pool = CpuGraphPool()
route = pool.route()
route.__enter__()
keep = torch.ones(1000)
torch.nn.Linear(4, 4)(torch.rand(2, 4)).sum().backward()
globals()["also"] = keep[1:]
print("end")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "end", "")
