"""CPU graphs read and write where they are told, and leave no trace else."""

import gc

import pytest
import torch

from staticrt.errors import InputError
from tests.support.graph_harness import Captured


def test_inputs_are_rebound_not_copied():
    x = torch.randn(3, 4)
    captured = Captured(lambda a: (a.t()[1:] * 2 + a[0, 1], a.view(-1)[2:5]), x)
    y = torch.randn(3, 4)
    before = y.clone()
    got = captured(y)
    assert torch.equal(got[0], y.t()[1:] * 2 + y[0, 1])
    assert torch.equal(y, before)
    assert captured.graph.stats["shadow_copied_bytes"] == 0
    # The second output is a view of the input of the capture: it is the tree's to rebuild.
    assert torch.equal(captured.outputs[1], x.view(-1)[2:5])


def test_a_rebound_input_may_lie_anywhere_in_its_storage():
    x = torch.randn(2, 3)
    captured = Captured(lambda a: a + 1, x)
    big = torch.randn(10, 3)
    assert torch.equal(captured(big[4:6])[0], big[4:6] + 1)
    tail = torch.randn(20, 3)[3:5]
    captured_tail = Captured(lambda a: a.sum(1), tail)
    assert torch.equal(captured_tail(x)[0], x.sum(1))


def test_inputs_of_one_storage_stay_together():
    base = torch.arange(12.0)
    captured = Captured(lambda a, b: a * b, base[:6], base[6:])
    other = torch.randn(12)
    assert torch.equal(captured(other[:6], other[6:])[0], other[:6] * other[6:])
    with pytest.raises(InputError, match="0 and 1 shared a storage"):
        captured(torch.randn(6), torch.randn(6))
    assert torch.equal(captured(base[:6], base[6:])[0], base[:6] * base[6:])


@pytest.mark.parametrize(
    "wrong",
    [torch.randn(2, 4), torch.randn(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64)],
    ids=["sizes", "strides", "dtype"],
)
def test_another_metadata_is_refused(wrong):
    x = torch.randn(2, 3)
    captured = Captured(lambda a: a.exp(), x)
    with pytest.raises(InputError, match="input 0 has other sizes, strides or dtype"):
        captured(wrong)
    assert torch.equal(captured(x)[0], x.exp())
    with pytest.raises(InputError, match="1 inputs were declared, got 2"):
        captured(x, x)


def test_addresses_stay_and_outputs_can_be_placed_elsewhere():
    x = torch.randn(4, 4)
    captured = Captured(lambda a: (a @ a, (a * 2).relu()), x)
    addresses = [t.data_ptr() for t in captured.outputs]
    assert set(addresses) == captured.pool.live_ptrs()
    for _ in range(3):
        captured.graph.replay([torch.randn(4, 4)])
        assert [t.data_ptr() for t in captured.outputs] == addresses
    kept = [t.clone() for t in captured.outputs]
    captured.graph.bind_outputs(captured.outputs)
    fresh = [torch.empty(4, 4), torch.empty(4, 4)]
    captured.graph.replay([x], fresh)
    assert torch.equal(fresh[0], x @ x)
    assert torch.equal(fresh[1], (x * 2).relu())
    assert all(torch.equal(a, b) for a, b in zip(kept, captured.outputs, strict=True))
    captured.graph.replay([x])
    assert torch.equal(captured.outputs[0], x @ x)  # back at the capture's places
    with pytest.raises(InputError, match="did not make the storage of output 0"):
        captured.graph.bind_outputs([x])
    with pytest.raises(InputError, match="shares its storage"):
        captured.graph.bind_outputs([captured.outputs[0], captured.outputs[0].t()])


def test_replays_neither_allocate_in_the_pool_nor_leave_anything_live():
    x = torch.randn(8, 8)
    captured = Captured(lambda a: (a @ a).softmax(-1).sum(), x)
    live, stats = captured.pool.live_ptrs(), captured.pool.stats()
    for _ in range(3):
        captured.graph.replay([x])
    assert captured.pool.live_ptrs() == live == {captured.outputs[0].data_ptr()}
    assert captured.pool.stats() == stats
    captured.outputs = ()
    assert captured.pool.live_ptrs() == set()
    captured.graph.replay([x])  # its places are free blocks of the pool: they stay mapped
    assert captured.pool.trim() == 0
    captured.graph = None
    gc.collect()
    assert captured.pool.trim() > 0
