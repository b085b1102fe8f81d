"""The C functions behind torch.cuda.MemPool: called here as torch calls them, on a simulated device."""

import ctypes
import threading

import pytest
import torch

import staticrt.memory
from staticrt.native import _C

MIB = 1 << 20


@pytest.fixture
def functions():
    """alloc(size, device, stream) and free(pointer, size, device, stream), found by name as torch does."""
    library = ctypes.CDLL(_C.allocator_library())
    library.staticrt_alloc.restype = ctypes.c_void_p
    library.staticrt_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.staticrt_free.restype = None
    library.staticrt_free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    return library.staticrt_alloc, library.staticrt_free


@pytest.fixture
def registered(sim):
    """A simulated device in the place of CUDA device 63."""
    _C.register_cuda_memory(63, sim._handle)
    yield sim
    _C.unregister_cuda_memory(63)


def test_segments_come_from_our_allocator(functions, registered):
    alloc, free = functions
    pointer = alloc(20 * MIB, 63, None)
    ctypes.memset(pointer, 1, 20 * MIB)
    assert registered.stats()["allocated_bytes.all.current"] == 20 * MIB
    free(pointer, 20 * MIB, 63, None)
    assert registered.stats()["allocated_bytes.all.current"] == 0
    assert alloc(20 * MIB, 63, None) == pointer  # cached


def test_null_is_out_of_memory(functions, registered):
    alloc, free = functions
    assert alloc(200 * MIB, 63, None) is None
    assert alloc(0, 63, None) is None
    assert alloc(-1, 63, None) is None
    free(None, 0, 63, None)
    free(0x1234, 5, 63, None)  # foreign: ignored
    assert alloc(50 * MIB, 63, None)


def test_no_such_device_is_null(functions):
    alloc, free = functions
    assert alloc(MIB, 62, None) is None
    free(0x1234, MIB, 62, None)


def test_a_thread_in_a_pool_gets_its_segments(functions, registered):
    alloc, _ = functions
    with registered.pool() as p:
        alloc(20 * MIB, 63, None)
        elsewhere = threading.Thread(target=alloc, args=(2 * MIB, 63, None))
        elsewhere.start()
        elsewhere.join()
    assert registered.stats(p)["allocated_bytes.all.current"] == 20 * MIB


def test_history_works_with_and_without_the_gil(functions, registered):
    """ctypes releases the GIL around a call; PyDLL keeps it. Neither may hang or crash."""
    registered.record_history()
    alloc, free = functions
    free(alloc(2 * MIB, 63, None), 2 * MIB, 63, None)
    held = ctypes.PyDLL(_C.allocator_library())
    held.staticrt_alloc.restype = ctypes.c_void_p
    held.staticrt_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    assert held.staticrt_alloc(2 * MIB, 63, None)
    allocs = [e for e in registered.snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert len(allocs) == 2
    assert allocs[0]["frames"] == []  # torch may hold a lock: nothing waits for the GIL
    assert allocs[1]["frames"]  # this thread has the GIL: its stack is read


def test_a_device_is_registered_once(registered):
    with pytest.raises(ValueError, match="cuda:63 has an allocator already"):
        _C.register_cuda_memory(63, registered._handle)


@pytest.mark.cuda
def test_torch_tensors_live_in_our_pool():
    p = staticrt.memory.pool(device="cuda")
    with p, torch.cuda.use_mem_pool(p.torch()):
        x = torch.full((1 << 20,), 2.0, device="cuda")
    assert staticrt.memory.stats("cuda", p)["allocated_bytes.all.current"] >= x.nbytes
    assert (x + 1).sum().item() == 3 * (1 << 20)


@pytest.mark.cuda
def test_cuda_memory_is_mapped_again_at_the_same_address():
    device = staticrt.memory.device("cuda")
    p = device.pool()
    with p:
        keep, idle = device.allocate(20 * MIB), device.allocate(60 * MIB)
        device.free(idle)
    assert p.hibernate() > 0
    p.wake()
    with p:
        assert device.allocate(60 * MIB) == idle
    device.free(keep)
    device.free(idle)
    p.close()
    device.validate()


@pytest.mark.cuda
def test_cuda_graph_runs_on_our_pool():
    p = staticrt.memory.pool(device="cuda")
    x = torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with p, torch.cuda.graph(graph, pool=p.torch().id):
        y = x * 2
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert y.sum().item() == 6 * (1 << 20)
