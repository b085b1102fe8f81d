"""Scenarios in which PyTorch's allocator fails (rules U1 to U7 of docs/design/allocator.md), with tensors on `sim`.

Each runs in a process of its own, because the size of devices and the allocator's options are the process'.
"""

import pytest
import torch

from staticrt import memory
from tests.support import run_fresh

MIB = 1 << 20
ORDERS_OF_THEIR_OWN = True  # processes of their own


def tensor(mib, value=None):
    made = torch.empty(int(mib * MIB), dtype=torch.uint8, device="sim:0")
    return made if value is None else made.fill_(value)


def side_stream():
    """A stream that comes after what the current one has been given."""
    side = torch.Stream("sim:0")
    side.wait_stream(torch.accelerator.current_stream())
    return side


def u1(sim):
    tensor(100)
    a, _b = tensor(60, 1), tensor(40)
    side, address = side_stream(), a.data_ptr()
    with side:
        a.add_(1)
    a.record_stream(side)
    del a
    assert sim.pending(side.stream_id) > 0
    c = tensor(60, 3)
    assert c.data_ptr() == address
    assert sim.pending(side.stream_id) == 0
    assert c[-1:].cpu().item() == 3


def u2(sim):
    tensor(60)
    with sim.pool() as p:
        a = tensor(70, 1)
    assert sim.stats(p)["allocated_bytes.all.current"] == 70 * MIB
    assert a[-1:].cpu().item() == 1


def u3(sim):
    with side_stream():
        tensor(100, 1)
        _kept = tensor(10)
    b = tensor(60, 2)
    torch.accelerator.synchronize()  # the late write of the other stream would show
    assert b.cpu().eq(2).all()


def u4a(sim):
    with sim.pool() as p:
        tensor(70, 1)
    b = tensor(60, 2)
    assert p.use_count() == 1
    assert b.cpu().eq(2).all()


def u4b(sim):
    side = side_stream()
    with side, sim.capture(side.stream_id) as graph:
        live = tensor(30, 1)
        tensor(70, 2)
    with side:
        graph.replay()
    with pytest.raises(torch.OutOfMemoryError) as error:
        tensor(60)
    first, second = graph.pool
    assert f"70.00 MiB idle in pool {first}_{second} (captured)" in str(error.value)
    torch.accelerator.synchronize()
    assert sim._handle.pool_hibernate(graph.pool) >= 60 * MIB
    b = tensor(60, 3)
    assert b.cpu().eq(3).all()
    del b
    sim._handle.pool_wake(graph.pool)
    with side:
        graph.replay()  # at the same addresses
        assert live.cpu().eq(1).all()
    del live
    graph.close()
    sim.empty_cache()


def u5(sim):
    sim.set_limit(bytes=50 * MIB)
    _a = tensor(40, 1)
    before = sim.stats()["reserved_bytes.all.current"]
    b = tensor(1 + 512 / MIB, 2)
    assert sim.stats()["reserved_bytes.all.current"] - before <= 2 * MIB
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 20.00 MiB on sim:0"):
        tensor(20)
    assert b.cpu().eq(2).all()


def u6(sim):
    for _ in range(2):
        side = side_stream()
        with side, sim.capture(side.stream_id, pool=(0, 9)) as graph:
            _blocks = [tensor(20, number) for number in range(4)]
        del _blocks
        graph.close()
        sim.empty_cache()
        assert sim.used_bytes == 0
        assert not sim._handle.pool_exists((0, 9))


def u7(sim):
    p = sim.pool()
    with p:
        tensor(120, 1)
        x, y = tensor(40, 2), tensor(40, 3)
    del x
    p.close()
    torch.accelerator.synchronize()
    sim.empty_cache()
    assert sim.used_bytes == 40 * MIB
    assert y.cpu().eq(3).all()
    del y
    sim.empty_cache()
    assert not sim._handle.pool_exists(p.id)


def run(name, total_mib, config):
    memory.simulated.enable(total_bytes=total_mib * MIB, config=config)
    sim = memory.device("sim:0")
    globals()[name](sim)
    torch.accelerator.synchronize()
    sim.check()
    sim.empty_cache()
    assert sim.stats()["allocated_bytes.all.current"] == 0
    assert sim.used_bytes == 0


EITHER = ["u1", "u2", "u3", "u4a"]  # the others are about expandable segments


@pytest.mark.parametrize(
    ("name", "expandable"),
    [(name, False) for name in EITHER] + [(name, True) for name in [*EITHER, "u4b", "u5", "u6", "u7"]],
)
def test_scenario(name, expandable):
    total = {"u6": 200, "u7": 1000}.get(name, 100)
    call = f"run({name!r}, {total}, 'expandable_segments:{expandable}')"
    code = f"from tests.device.test_memory_scenarios import run; {call}"
    run_fresh(code)
