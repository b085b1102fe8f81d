"""The CPU backend: graphs share pools, describe themselves, end."""

import gc

import pytest
import torch

from staticrt.errors import InputError
from staticrt.graphs.backend import get_backend
from staticrt.graphs.cpu import CpuGraphCapture
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.native import _C
from tests.support.graph_harness import Captured


def test_graphs_share_a_pool_and_replay_in_any_order():
    pool, backend = CpuGraphPool(), get_backend("cpu")
    x = torch.randn(4)
    first, second = backend.new_graph(pool), backend.new_graph(pool)
    with first.capture(inputs=[x]):
        y = x * 2
    with second.capture(inputs=[y]):
        z = (y + 1).exp()
    a = torch.randn(4)
    first.replay([a])
    second.replay([y])
    assert torch.equal(z, (a * 2 + 1).exp())
    second.replay([a])
    assert torch.equal(z, (a + 1).exp())
    assert torch.equal(y, a * 2)


def test_dump_names_what_runs(tmp_path):
    captured = Captured(lambda a: torch.fft.rfft(a).abs() + 1, torch.randn(8))
    path = tmp_path / "graph.txt"
    captured.graph.dump(str(path))
    text = path.read_text()
    assert "aten::_fft_r2c, " in text
    assert "aten::add.Tensor" in text
    assert captured.graph.num_kernels == text.count("step ")


def test_views_alone_run_nothing():
    captured = Captured(lambda a: a.t().reshape(-1)[:2].view(2, 1).expand(2, 3), torch.randn(1, 4))
    assert captured.graph.num_kernels == 0


def test_reset_drops_the_record():
    captured = Captured(lambda a: a + 1, torch.ones(2))
    captured.graph.reset()
    with pytest.raises(InputError, match="was reset"):
        captured(torch.ones(2))


def test_a_graph_keeps_constants_and_lets_inputs_go():
    x, found = torch.randn(3), [torch.randn(3)]
    ref, kept = _C.storage_ref(x), _C.storage_ref(found[0])
    captured = Captured(lambda a: a + found[0], x)
    del x
    found.clear()
    gc.collect()
    assert ref.use_count() == 0
    assert kept.is_alive()
    again = torch.zeros(3)
    captured.graph.replay([again])
    captured.graph.reset()
    assert not kept.is_alive()


def test_the_backend():
    backend = get_backend(torch.device("cpu"))
    assert backend is get_backend("cpu")
    assert backend.caps.capture_executes
    assert backend.caps.rebind_inputs
    with backend.device_scope(0):
        backend.synchronize(0)
    with pytest.raises(InputError, match="one CPU"):
        backend.synchronize(1)
    assert backend.owns(torch.ones(1))
    assert not backend.owns(torch.ones(1, device="meta"))
    pool = backend.new_pool(0)
    graph = backend.new_graph(pool)
    assert isinstance(graph, CpuGraphCapture)
    with backend.warmup_scope(pool, backend.new_stream(0)):
        x = torch.ones(3)
    assert pool.live_ptrs() == {x.data_ptr()}
    backend.register_generator(graph, torch.default_generator)
    with pytest.raises(InputError, match="CPU pool"):
        backend.new_graph(object())
