"""Graph contexts on the simulated accelerator: what they promise, what they refuse, and their memory on streams."""

import contextlib
import gc
import threading

import pytest
import torch

from staticrt.errors import CaptureError, DeviceError, InputError
from staticrt.graphs import GraphContext
from staticrt.graphs.backend import get_backend
from staticrt.graphs.protocol import LeakInfo, PoolDelta
from staticrt.graphs.simulated import SimGraphPool
from staticrt.native import _C
from tests.support.threads import in_threads

SIM = torch.device("sim:0")


def ones(*size):
    return torch.ones(*size, device=SIM)


def ptr(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def pool():
    made = SimGraphPool(0)
    yield made
    gc.collect()
    assert made.live_ptrs() == set()
    made.trim()
    assert made.stats() == (0, 0, 0, 0)


@pytest.fixture
def context():
    with GraphContext("sim") as made:
        yield made
    gc.collect()
    assert made.memory() == (0, 0, 0, 0)


# -- the pool ------------------------------------------------------------------------------------------------------


def test_a_route_gives_pool_memory_and_only_inside_it(pool):
    before = ones(10)
    with pool.route():
        x, y = ones(10), ones(3, 3) @ ones(3, 3)
    after = ones(10)
    assert {ptr(x), ptr(y)} == pool.live_ptrs()
    assert not {ptr(before), ptr(after)} & pool.live_ptrs()
    del x, y
    assert pool.live_ptrs() == set()


def test_routes_of_several_pools_nest_and_are_of_one_thread(pool):
    other, seen = SimGraphPool(0), []
    with pool.route():
        with other.route():
            x = ones(4)
        y = ones(4)
        thread = threading.Thread(target=lambda: seen.append(ones(4)))
        thread.start()
        thread.join()
        with pytest.raises(InputError, match="routed already"), pool.route():
            pass
    assert (other.live_ptrs(), pool.live_ptrs()) == ({ptr(x)}, {ptr(y)})
    assert other.id != pool.id


def test_a_pool_allocates_frees_and_adopts(pool):
    address = pool.allocate(64)
    assert pool.check_live({address}) is None
    assert pool.check_live({4096}) == LeakInfo((4096,), ((address, 64, ""),))
    x = _C.tensor_at((address, 64, torch.float32, SIM, (16,), (1,), 0))
    _C.adopt(_C.storage_ref(x), pool)
    _C.adopt(_C.storage_ref(x), pool)  # once is enough
    assert x.fill_(2).sum().item() == 32
    with pytest.raises(InputError, match="owned by a storage"):
        pool.free(address)
    del x
    assert pool.live_ptrs() == set()
    with pytest.raises(InputError, match="not a live block"):
        pool.free(address)
    with pytest.raises(InputError, match="power of two"):
        pool.allocate(8, align=4096)
    foreign = ones(4)
    with pytest.raises(InputError, match="not a live block"):
        _C.adopt(_C.storage_ref(foreign), pool)


def test_a_restore_takes_blocks_from_owners_that_are_not_named(pool):
    """
    image:   x live, y live
    later:   y dies, z appears       restore: x owned again, y a block without owner, z's block gone
    """
    with pool.route():
        x, y = ones(300), ones(300)
    x_ptr, y_ptr = ptr(x), ptr(y)
    image = pool.checkpoint()
    assert image.live() == sorted([x_ptr, y_ptr])
    del y
    with pool.route():
        stale = torch.zeros(1_000_000, device=SIM)
    z_ptr = ptr(stale)
    assert pool.restore(image, [_C.storage_ref(x)]) == PoolDelta((z_ptr,), (y_ptr,))
    assert pool.check_live({x_ptr, y_ptr}) is None
    assert (x == 1).all().item()
    pool.free(y_ptr)
    del x
    with pool.route():
        fresh = ones(1_000_000)
    assert ptr(fresh) == z_ptr
    del stale  # owned the address before the restore: it must not free the new owner's block
    assert pool.live_ptrs() == {z_ptr}
    with pool.route():
        another = torch.zeros(1_000_000, device=SIM)
    assert ptr(another) != z_ptr
    assert (fresh == 1).all().item()


def test_a_restore_gives_results_of_replays_their_blocks(pool):
    with pool.route():
        x = torch.arange(8.0, device=SIM)
    spec, image = _C.TensorSpec.of(x), pool.checkpoint()
    del x
    replayed = _C.tensor_at(spec)
    assert pool.restore(image, [_C.storage_ref(replayed)]) == PoolDelta((), (spec.data_ptr,))
    del replayed
    assert pool.live_ptrs() == set()
    with pool.route():
        y = ones(8)
    with pytest.raises(InputError, match="image is of pool"):
        SimGraphPool(0).restore(image, [])
    foreign = ones(8)
    with pytest.raises(InputError, match="no live block in the image"):
        pool.restore(image, [_C.storage_ref(foreign)])
    assert pool.live_ptrs() == {ptr(y)}


def test_a_freed_block_that_another_stream_uses_is_at_rest_after_it(pool):
    side = torch.Stream("sim:0")
    with pool.route():
        x, kept = ones(100), ones(100)
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        total = x.sum()
    x.record_stream(side)
    del x
    assert pool.checkpoint().live() == [ptr(kept)]
    torch.accelerator.current_stream().wait_stream(side)
    assert total.item() == 100


def test_memory_outlives_its_pool(sim):
    pool = SimGraphPool(0)
    with pool.route():
        x = torch.arange(100.0, device=SIM)
    del pool
    gc.collect()
    assert x.sum().item() == 4950


# -- contexts ------------------------------------------------------------------------------------------------------


def test_results_are_the_callers_and_equal_the_cpus(context, order):
    """Each call's results keep their values while later calls capture and replay over their memory."""
    weight = torch.randn(3, 3)
    f = context.wrap(lambda x, w: (torch.relu(x @ w), x.sin() * 2), static_inputs=(1,))
    g = context.wrap(lambda y: y * 2 + 1)
    on_sim, kept = weight.to(SIM), []
    for number in range(8):
        x = torch.randn(4 + number % 2, 3)
        first, second = f(x.to(SIM), on_sim)
        kept.append((first, second, g(first), x))
    for first, second, third, x in kept:
        expected = torch.relu(x @ weight)
        assert torch.equal(first.cpu(), expected)
        assert torch.equal(second.cpu(), x.sin() * 2)
        assert torch.equal(third.cpu(), expected * 2 + 1)
    report = context.explain()
    assert report.captures == 4
    assert sum(node.replays for node in report.nodes) >= 6
    assert report.skips == ()


def test_graphs_share_the_memory_of_one_path(context):
    """The pool is as large as the largest path, not as the sum of all captures."""
    f = context.wrap(lambda x: (x * 2 + 1).relu().sum(0))
    for size in (1 << 18, 1 << 17, 1 << 16, 3 << 16) * 3:
        f(torch.ones(4, size, device=SIM))
    largest = 4 * (1 << 18) * 4
    assert context.explain().captures == 4
    # A buffer, three temporary results, rounding; all captures: 12.
    assert context.memory().reserved_bytes <= 6 * largest


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x * x.sum().item(), "aten::_local_scalar_dense makes the host wait"),
        (lambda x: torch.nonzero(x).sum(), "aten::nonzero makes the host wait"),
        (lambda x: x + x.cpu().sum().to(SIM), "a copy to the host makes the host wait"),
        (lambda x: x + torch.tensor([1.0, 2.0]).to(SIM), "a copy from the host makes the host wait"),
    ],
)
def test_what_no_replay_can_repeat_runs_uncaptured(context, function, reason):
    f = context.wrap(function)
    for number in range(4):
        x = torch.full((2,), number + 1.0)
        assert torch.equal(f(x.to(SIM)).cpu(), function(x.to(SIM)).cpu())
    report = context.explain()
    assert report.captures == 0
    for skip in report.skips:
        assert reason in skip.reason
        assert "CUDA_ERROR_STREAM_CAPTURE" in skip.reason
    assert sum(skip.calls for skip in report.skips) == 3  # all but the warmup


def test_or_error_says_what_cannot_be_captured():
    with GraphContext("sim", or_error=True) as context:
        f = context.wrap(lambda x: x * x.sum().item())
        f(ones(2))  # the warmup
        with pytest.raises((CaptureError, RuntimeError), match="_local_scalar_dense"):
            f(ones(2))


def test_weights_and_statistics_are_updated_in_place(context):
    model, twin = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    model.to(SIM)
    f = context.wrap(model)
    with torch.no_grad():
        for number in range(6):
            x = torch.randn(8, 4)
            if number == 4:
                model.weight.mul_(3)
                twin.weight.mul_(3)
            torch.testing.assert_close(f(x.to(SIM)).cpu(), twin(x))
    torch.testing.assert_close(model.running_mean.cpu(), twin.running_mean)
    assert model.num_batches_tracked.item() == 6
    assert sum(node.replays for node in context.explain().nodes) == 4


def test_replays_draw_the_numbers_that_eager_draws(context):
    generator, twin = torch.Generator("sim:0"), torch.Generator("sim:0")

    def noisy(x, generator):
        return x + torch.rand(3, device=SIM) * torch.rand(3, device=SIM, generator=generator)

    f = context.wrap(noisy)
    results = []
    for function, own in ((f, generator), (noisy, twin)):
        torch.sim.manual_seed(3)
        own.manual_seed(7)
        results.append([function(ones(3), own).tolist() for _ in range(6)])
    assert results[0] == results[1]
    assert len(set(map(tuple, results[0]))) == 6
    assert sum(node.replays for node in context.explain().nodes) == 4


def test_calls_on_several_streams_wait_for_each_other(context, order):
    """They share buffers and the memory of results; work of one call never meets that of another."""
    f = context.wrap(lambda x: (x.cos() + 1).cumsum(0))
    streams = [torch.Stream("sim:0") for _ in range(3)]
    results = []
    for number in range(9):
        with streams[number % 3]:
            x = torch.full((100,), float(number), device=SIM)
            out = f(x)
            results.append((out * 2).cpu())
    for number, result in enumerate(results):
        assert torch.equal(result, (torch.full((100,), float(number)).cos() + 1).cumsum(0) * 2)


@pytest.mark.parametrize("recorded", [True, False])
def test_a_result_that_another_stream_reads(context, sim, order, recorded):
    """`record_stream` makes the next replay wait, although a replay's result owns no memory. Without it: a race."""
    f = context.wrap(lambda x: x * 2)
    for _ in range(3):
        f(ones(1000))
    side = torch.Stream("sim:0")
    out = f(ones(1000))
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        total = out.sum()
    if recorded:
        out.record_stream(side)
    del out
    f(torch.zeros(1000, device=SIM))
    if recorded:
        assert sim.reports == []
        side.synchronize()
        assert total.item() == 2000
    else:
        assert any("race: " in report for report in sim.reports), sim.reports
        side.synchronize()
        sim.clear_reports()


def test_using_an_overwritten_result_is_found(sim):
    """With "reuse" results are the tree's: the detector knows when a later call has written over them."""
    with GraphContext("sim", live_outputs="reuse") as context:
        f = context.wrap(lambda x: x * 2, mode="inference")
        for _ in range(3):
            with context.step():
                f(ones(10))
        with context.step():
            out = f(ones(10))
        g = context.wrap(lambda x: x.exp() + 1)
        for _ in range(3):
            with context.step():
                g(ones(20))
        assert sim.reports == []
        try:
            out.sum()
        except RuntimeError:
            return  # poisoned
        (report,) = sim.reports
        assert report.startswith("use after free: ")
        sim.clear_reports()


def test_two_devices_have_a_tree_each():
    functions = []
    for index in (0, 1):
        context = GraphContext(f"sim:{index}")
        functions.append((context, context.wrap(lambda x: x.exp() - 1)))
    for number in range(4):
        for index, (_context, f) in enumerate(functions):
            x = torch.full((5,), float(number))
            out = f(x.to(f"sim:{index}"))
            assert out.device == torch.device(f"sim:{index}")
            assert torch.equal(out.cpu(), x.exp() - 1)
    for context, f in functions:
        assert context.explain().captures == 1
        other = 1 - context.device.index
        assert torch.equal(f(torch.ones(5, device=f"sim:{other}")).cpu(), torch.ones(5).exp() - 1)
        assert f"is on sim:{other}" in str(context.explain())
        context.close()


def test_threads_with_a_stream_each(order):
    """Each thread has a default context of its own; the shared one takes turns."""

    def work(number, shared):
        with GraphContext("sim") as own, torch.Stream("sim:0"):
            f, g = own.wrap(lambda x: x.sin() + number), shared
            for step in range(8):
                x = torch.full((50,), step + number / 8)
                out, other = f(x.to(SIM)), g(x.to(SIM))
                assert torch.equal(out.cpu(), x.sin() + number)
                assert torch.equal(other.cpu(), x * 3)
                torch.accelerator.current_stream().synchronize()

    with GraphContext("sim") as context:
        shared = context.wrap(lambda x: x * 3)
        in_threads(lambda number: work(number, shared), range(4))


def test_a_failed_allocation_leaves_the_context_usable(context, sim):
    f = context.wrap(lambda x: (x + 1).sum() * ones(1 << 20))
    f(ones(4))
    for nth in (1, 2):
        sim.fail("physical_create", nth)
        with contextlib.suppress(torch.OutOfMemoryError):
            f(ones(4))
        sim.clear_faults()
    for _ in range(3):
        assert f(ones(4))[0].item() == 8


def test_close_and_trim_give_memory_back(sim):
    context = GraphContext("sim")
    f = context.wrap(lambda x: x * 2)
    for _ in range(3):
        out = f(ones(1 << 20))
    assert context.memory().reserved_bytes > 0
    assert context.trim() > 0
    assert context.memory() == (0, 0, 0, 0)
    assert f(ones(1 << 20))[0].item() == 2
    context.close()
    assert out[0].item() == 2
    with pytest.raises(CaptureError, match="context was closed"):
        f(ones(4))


def test_a_graph_can_be_described(tmp_path):
    backend = get_backend("sim")
    pool = backend.new_pool(0)
    graph = backend.new_graph(pool)
    x = ones(4)
    with graph.capture(inputs=[x]):
        y = x * 2 + 1
    graph.dump(str(tmp_path / "graph.txt"))
    assert (tmp_path / "graph.txt").read_text().startswith("0: \n1: 0\n")
    assert graph.num_kernels == 2
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [11] * 4
    with pytest.raises(InputError, match="at the addresses of the capture"):
        graph.replay([x])
    graph.reset()
    with pytest.raises(InputError, match="not captured, or was reset"):
        graph.replay()


def test_unknown_devices_have_no_graphs():
    with pytest.raises(DeviceError, match="known: \\['cpu', 'cuda', 'sim'\\]"):
        get_backend("meta")
