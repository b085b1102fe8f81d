"""CUDA graphs. Those marked `cuda` need a GPU and have not run on one yet."""

import gc

import pytest
import torch

from staticrt.errors import DeviceError, InputError
from staticrt.graphs import cuda
from staticrt.graphs.backend import get_backend
from staticrt.native import _C

needs_gpu = pytest.mark.cuda


def test_without_a_gpu_the_backend_is_off_with_a_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees no CUDA device"):
        cuda.make_backend()


def test_a_missing_private_name_turns_the_backend_off(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    for name in cuda._PRIVATE_NAMES:
        monkeypatch.setattr(torch._C, name, object(), raising=False)
    assert isinstance(cuda.make_backend(), cuda.CudaBackend)
    monkeypatch.delattr(torch._C, "_cuda_getCheckpointState")
    assert cuda.missing_names() == ["_cuda_getCheckpointState"]
    with pytest.raises(DeviceError, match=r"lacks torch\._C\._cuda_getCheckpointState"):
        cuda.make_backend()


@pytest.fixture
def pool():
    pool = get_backend("cuda").new_pool(0)
    yield pool
    gc.collect()
    torch.cuda.synchronize()
    assert pool.live_ptrs() == set()


def captured(pool, function, *inputs):
    backend = get_backend("cuda")
    stream = backend.new_stream(0)
    with backend.warmup_scope(pool, stream):
        function(*inputs)
    graph = backend.new_graph(pool)
    with graph.capture(stream=stream, inputs=inputs):
        outputs = function(*inputs)
    return graph, outputs


@needs_gpu
def test_capture_computes_nothing_and_a_replay_does(pool):
    x = torch.ones(16, device="cuda")
    graph, y = captured(pool, lambda a: a * 2 + 1, x)
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 3).all()
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert (y == 11).all()


@needs_gpu
def test_rebinding_is_refused(pool):
    x = torch.ones(4, device="cuda")
    graph, _y = captured(pool, torch.exp, x)
    with pytest.raises(InputError, match="the addresses of the capture"):
        graph.replay([x])
    with pytest.raises(InputError, match="the addresses of the capture"):
        graph.bind_outputs([x])


@needs_gpu
def test_outputs_lie_in_the_pool(pool):
    x = torch.randn(64, 64, device="cuda")
    _graph, y = captured(pool, lambda a: (a @ a).relu(), x)
    assert pool.live_ptrs() == {y.untyped_storage().data_ptr()}
    assert pool.check_live({y.untyped_storage().data_ptr()}) is None
    leak = pool.check_live(set())
    assert leak is not None
    assert leak.unexpected[0][0] == y.untyped_storage().data_ptr()
    assert pool.stats().live_blocks == 1


@needs_gpu
def test_routed_memory_is_the_pools_and_only_inside(pool):
    with pool.route():
        x = torch.zeros(100, device="cuda")
    y = torch.zeros(100, device="cuda")
    assert pool.live_ptrs() == {x.data_ptr()}
    assert y.data_ptr() not in pool.live_ptrs()


@needs_gpu
def test_allocate_and_free(pool):
    pool.free(pool.allocate(8 << 20))
    assert pool.stats().reserved_bytes >= 8 << 20
    ptr = pool.allocate(1000)
    assert pool.live_ptrs() == {ptr}
    pool.free(ptr)
    assert pool.live_ptrs() == set()


@needs_gpu
def test_checkpoint_and_restore(pool):
    with pool.route():
        x = torch.arange(256.0, device="cuda")
    spec, image = _C.TensorSpec.of(x), pool.checkpoint()
    assert image.live() == [x.data_ptr()]
    del x
    replayed = _C.tensor_at(spec)
    delta = pool.restore(image, [_C.storage_ref(replayed)])
    assert delta.created == (spec.data_ptr,)
    assert pool.live_ptrs() == {spec.data_ptr}
    del replayed
    assert pool.live_ptrs() == set()


@needs_gpu
def test_a_live_owner_keeps_its_block_through_a_restore(pool):
    with pool.route():
        x = torch.arange(256.0, device="cuda")
    image = pool.checkpoint()
    pool.restore(image, [_C.storage_ref(x)])
    assert pool.live_ptrs() == {x.data_ptr()}
    assert x.sum() == 255 * 128
    del x
    assert pool.live_ptrs() == set()


@needs_gpu
def test_storage_primitives(pool):
    with pool.route():
        x = torch.arange(8.0, device="cuda")
    view, ptr = x[2:], x.data_ptr()
    assert _C.rehome(_C.storage_ref(x)) == 32
    assert x.data_ptr() != ptr
    assert view.tolist() == [2, 3, 4, 5, 6, 7]
    assert pool.live_ptrs() == set()
    _C.poison(_C.storage_ref(x), "overwritten")
    with pytest.raises(RuntimeError, match="overwritten"):
        (x + 1).cpu()


@needs_gpu
def test_adopt_frees_with_the_storage(pool):
    ptr = pool.allocate(64)
    x = _C.tensor_at((ptr, 64, torch.float32, torch.device("cuda", 0), (16,), (1,), 0))
    _C.adopt(_C.storage_ref(x), pool)
    del x
    assert pool.live_ptrs() == set()


@needs_gpu
def test_random_numbers_of_a_registered_generator_go_on(pool):
    backend = get_backend("cuda")
    generator = torch.Generator("cuda")
    graph = backend.new_graph(pool)
    backend.register_generator(graph, generator)
    with graph.capture():
        y = torch.rand(4, device="cuda", generator=generator)
    generator.manual_seed(1)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y)
    generator.manual_seed(1)
    want = torch.rand(4, device="cuda", generator=generator)
    assert torch.equal(first, want)


@needs_gpu
def test_two_graphs_share_a_pool(pool):
    x = torch.ones(32, device="cuda")
    first, y = captured(pool, lambda a: a * 2, x)
    second, z = captured(pool, lambda a: a + 1, y)
    first.replay()
    second.replay()
    torch.cuda.synchronize()
    assert (z == 3).all()


@needs_gpu
def test_a_training_graph(pool):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    x = torch.randn(4, 8, device="cuda")

    def step(a):
        return torch.autograd.grad(model(a).sum(), list(model.parameters()))

    graph, grads = captured(pool, step, x)
    x.copy_(torch.randn(4, 8, device="cuda"))
    graph.replay()
    torch.testing.assert_close(grads, step(x))


@needs_gpu
def test_a_failed_capture_leaves_the_pool_usable(pool):
    graph = get_backend("cuda").new_graph(pool)
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError), graph.capture(inputs=[x]):
        (x * 2).sum().item()
    torch.cuda.synchronize()
    again, y = captured(pool, lambda a: a * 4, x)
    again.replay()
    torch.cuda.synchronize()
    assert (y == 4).all()


@needs_gpu
def test_dump_and_reset(pool, tmp_path):
    x = torch.ones(4, device="cuda")
    graph = get_backend("cuda").new_graph(pool, keep=True)
    with graph.capture(inputs=[x]):
        _y = x * 2
    graph.dump(str(tmp_path / "graph.dot"))
    assert "digraph" in (tmp_path / "graph.dot").read_text()
    graph.reset()


@needs_gpu
def test_streams_and_devices():
    backend = get_backend("cuda")
    assert backend.caps.has_streams
    side = backend.new_stream(0)
    with backend.device_scope(0), torch.cuda.stream(side):
        x = torch.ones(1 << 20, device="cuda").mul_(3)
    torch.cuda.current_stream(0).wait_stream(side)
    assert x.sum().item() == 3 << 20
    backend.synchronize(0)
    assert backend.owns(x)
    assert not backend.owns(torch.ones(1))
