"""`staticrt.graphs.cuda` against a simulated torch.cuda that holds it to the rules of torch's C++.

The rules are those of torch/csrc/cuda/Module.cpp (`_cuda_setCheckpointPoolState`, removeStorageDeleterFns,
addStorageDeleterFns) and of torch/cuda/graphs.py. This is not a GPU: it shows that calls are made as torch demands.
"""

import contextlib
import types

import pytest
import torch

from staticrt.errors import DeviceError
from staticrt.graphs import cuda


class Storage:
    """A storage that owns the block at `ptr`, or only points there."""

    def __init__(self, ptr, owner):
        self.ptr, self.owner = ptr, owner


class Simulated:
    """torch's side: one pool's live blocks, and the streams of this thread."""

    def __init__(self, monkeypatch):
        self.storages = {}
        self.live = set()
        self.log = []
        self.stream = "default"
        self.end_error = None
        for name in cuda._PRIVATE_NAMES:
            monkeypatch.setattr(torch._C, name, getattr(self, name, self.note(name)), raising=False)
        monkeypatch.setattr(cuda, "_snapshot", self.snapshot)
        monkeypatch.setattr(cuda._C, "own_address", self.own_address)
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *a: self.stream)
        monkeypatch.setattr(torch.cuda, "set_stream", self.set_stream)
        monkeypatch.setattr(torch.cuda, "graph", self.graph)

    def note(self, name):
        return lambda *args: self.log.append(name)

    def set_stream(self, stream):
        self.stream = stream

    def snapshot(self):
        return [
            {
                "device": 0,
                "segment_pool_id": (0, 1),
                "address": ptr,
                "total_size": 512,
                "blocks": [{"state": "active_allocated", "size": 512, "requested_size": 8}],
            }
            for ptr in self.live
        ]

    def _has_Standard_Deleter(self, impl):
        return self.storages[impl].owner

    def _cuda_setCheckpointPoolState(self, device, state, stale, add):
        freed, allocated = set(self.live), set(state)
        assert len(set(stale)) >= len(freed - allocated), "stale tensors must be passed"
        for impl in stale:
            storage = self.storages[impl]
            assert storage.ptr in freed
            assert storage.owner, "Unexpected deleter function on storage, could not swap function"
            storage.owner = "disarmed"
        self.live = allocated
        for impl in add:
            storage = self.storages[impl]
            if storage.ptr in allocated:
                assert not storage.owner, "Not expecting deleter function"
                storage.owner = True

    def own_address(self, ref):
        storage = self.storages[ref.impl]
        assert storage.owner in (False, "disarmed")
        assert storage.ptr in self.live
        storage.owner = True

    @contextlib.contextmanager
    def graph(self, graph, pool=None, stream=None, capture_error_mode="global"):
        assert capture_error_mode == "thread_local"
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.log.append("capture_end")
            if self.end_error is not None:
                raise self.end_error  # torch does not get to its own stream's end
        self.stream = before

    def ref(self, ptr, owner):
        impl = len(self.storages) + 1000
        self.storages[impl] = Storage(ptr, owner)
        if owner:
            self.live.add(ptr)
        return types.SimpleNamespace(impl=impl, storage_impl=lambda: impl, use_count=lambda: 1)


@pytest.fixture
def simulated(monkeypatch):
    return Simulated(monkeypatch)


@pytest.fixture
def pool(simulated):
    made = cuda.CudaGraphPool.__new__(cuda.CudaGraphPool)  # its constructor captures an empty graph
    made._index, made._id, made._stream = 0, (0, 1), "side"
    return made


def image(*live):
    return cuda.CudaPoolImage(set(live), list(live))


def test_what_replays_gave_out_owns_its_block_after_a_restore(simulated, pool):
    replayed, other = simulated.ref(512, owner=False), simulated.ref(1024, owner=False)
    delta = pool.restore(image(512, 1024), [replayed, other])
    assert delta == ((), (512, 1024))
    assert all(storage.owner is True for storage in simulated.storages.values())


def test_an_owner_stays_one(simulated, pool):
    captured, replayed = simulated.ref(512, owner=True), simulated.ref(1024, owner=False)
    delta = pool.restore(image(512, 1024), [captured, replayed])
    assert delta == ((), (1024,))
    assert all(storage.owner is True for storage in simulated.storages.values())


def test_outputs_that_share_a_storage_name_it_once(simulated, pool):
    captured = simulated.ref(512, owner=True)
    pool.restore(image(512), [captured, captured])
    assert simulated.storages[captured.impl].owner is True


def test_dead_storages_are_left_alone(simulated, pool):
    dead = types.SimpleNamespace(impl=1, storage_impl=lambda: 1, use_count=lambda: 0)
    delta = pool.restore(image(512), [dead])
    assert delta == ((), (512,))


def graph_of(pool):
    made = cuda.CudaGraphCapture.__new__(cuda.CudaGraphCapture)
    made._pool, made._graph = pool, object()
    return made


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()])
@pytest.mark.parametrize("ends_badly", [True, False])
def test_the_functions_own_error_is_raised_and_the_stream_is_as_before(simulated, pool, error, ends_badly):
    if ends_badly:
        simulated.end_error = RuntimeError("operation failed due to a previous error during capture")

    def function():
        assert simulated.stream == "side"
        raise error

    with pytest.raises(type(error)) as raised, graph_of(pool).capture():
        function()
    assert raised.value is error
    assert simulated.stream == "default"
    assert simulated.log == ["_cuda_clearCublasWorkspaces", "capture_end", "_cuda_clearCublasWorkspaces"]


def test_an_error_of_the_capture_alone_is_raised(simulated, pool):
    simulated.end_error = RuntimeError("capture broke")
    with pytest.raises(RuntimeError, match="capture broke"), graph_of(pool).capture():
        pass
    assert simulated.stream == "default"


class Stream:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def wait_stream(self, other):
        self.log.append(f"{self.name} waits for {other.name}")


def test_a_pools_users_take_turns(simulated, pool, monkeypatch):
    """Inputs are written and graphs replayed after all that another stream does with the pool, and only then."""
    a, b, side = (Stream(name, simulated.log) for name in ("a", "b", "side"))
    pool._stream = side
    graph = graph_of(pool)
    graph._graph = types.SimpleNamespace(replay=lambda: simulated.log.append("replay"))

    def take_log():
        said = list(simulated.log)
        simulated.log.clear()
        return said

    simulated.stream = a
    graph.replay()
    graph.replay()
    assert take_log() == ["replay", "replay"]
    simulated.stream = b
    graph.take_turn()  # inputs are copied next
    assert take_log() == ["b waits for a"]
    graph.replay()
    assert take_log() == ["replay"]
    simulated.stream = a
    graph.replay()
    assert take_log() == ["a waits for b", "replay"]
    simulated.stream = b
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    with pool.route():
        assert take_log()[:2] == ["b waits for a", "side waits for b"]
    assert take_log()[-1] == "b waits for side"
    simulated.stream = a
    with graph.capture():
        assert "a waits for b" in take_log()


def test_an_allocator_without_checkpoints_turns_the_backend_off(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    with pytest.raises(DeviceError, match="no checkpoints of pools"):
        cuda.make_backend()
