"""Arenas come from staticrt's own allocator: counted, limited, given back."""

import gc

import pytest
import torch

import staticrt
from staticrt.errors import OutOfMemoryError

MIB = 1 << 20


def allocated() -> int:
    staticrt.memory.empty_cache(device="cpu")  # small blocks that a thread keeps count as allocated
    return staticrt.memory.stats("cpu")["allocated_bytes.all.current"]


def requested() -> int:
    """Without what the allocator rounds up to, or leaves in a block that it does not split."""
    staticrt.memory.empty_cache(device="cpu")
    return staticrt.memory.stats("cpu")["requested_bytes.all.current"]


class Wide(torch.nn.Module):
    """Needs an arena of several times its input's size."""

    def __init__(self):
        super().__init__()
        self.up = torch.nn.Linear(64, 512)
        self.down = torch.nn.Linear(512, 64)

    def forward(self, x):
        return self.down(torch.softmax(self.up(x), 1))


@pytest.fixture
def model():
    gc.collect()  # what other tests left would be given back in the middle of this one
    with torch.no_grad():
        yield Wide().eval()
    gc.collect()


def arena_bytes(fast) -> int:
    (native,) = fast._executor.natives()
    return max(stats["arena_bytes"] for stats in native.prepared_stats)


def test_an_arena_is_the_allocators_and_as_large_as_planned(model):
    fast = staticrt.compile(model)
    before = requested()
    x = torch.randn(1024, 64)  # an arena too large for a thread's cache, which counts whole size classes
    for _ in range(3):
        torch.testing.assert_close(fast(x), model(x))
    planned = arena_bytes(fast)
    assert planned >= 1024 * 512 * 4
    assert planned <= requested() - before < planned + 4096
    fast.trim()
    assert requested() == before
    torch.testing.assert_close(fast(x), model(x))


def test_steady_state_makes_no_allocation(model):
    fast = staticrt.compile(model)
    x = torch.randn(32, 64)
    for _ in range(3):
        fast(x)
    before = staticrt.memory.stats("cpu")["allocation.all.allocated"]
    for _ in range(50):
        fast(x)
    assert staticrt.memory.stats("cpu")["allocation.all.allocated"] == before


def error_of(fast, x, expected) -> str:
    """The OutOfMemoryError of a call, or "" if it gave the right answer."""
    try:
        torch.testing.assert_close(fast(x), expected)
    except OutOfMemoryError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("prepared", [True, False])
def test_out_of_memory_names_the_arena_and_loses_nothing(model, prepared):
    fast = staticrt.compile(model, prepared=prepared)
    small, large = torch.randn(2, 64), torch.randn(4096, 64)
    for _ in range(3):
        fast(small)
    staticrt.memory.empty_cache(device="cpu")
    reserved = staticrt.memory.stats("cpu")["reserved_bytes.all.current"]
    staticrt.memory.set_limit(bytes=reserved, device="cpu")
    try:
        failures = [message for _ in range(4) if (message := error_of(fast, large, model(large)))]
        assert failures  # on the path that `prepared` leaves, once its sizes are known
        assert all("out of memory" in m and "arena of a compiled program" in m for m in failures)
        torch.testing.assert_close(fast(small), model(small))
    finally:
        staticrt.memory.set_limit(device="cpu")
    for _ in range(3):
        torch.testing.assert_close(fast(large), model(large))


@pytest.mark.parametrize("limit", [0, 3 * MIB, 6 * MIB])
def test_an_arena_that_cannot_grow_stays(model, limit):
    """Even under a limit below what is held: sizes that ran before need no new memory."""
    fast = staticrt.compile(model)
    small, large = torch.randn(1000, 64), torch.randn(4096, 64)
    for _ in range(2):
        fast(small)
    staticrt.memory.set_limit(bytes=limit, device="cpu")
    try:
        for _ in range(2):  # sizes of their own are seen, and prepared for
            error_of(fast, large, model(large))
        for _ in range(3):
            torch.testing.assert_close(fast(small), model(small))
            assert "arena of a compiled program" in error_of(fast, large, model(large))
    finally:
        staticrt.memory.set_limit(device="cpu")
    for _ in range(3):
        torch.testing.assert_close(fast(large), model(large))


def test_a_dropped_model_gives_its_arena_back(model):
    before = allocated()
    fast = staticrt.compile(model)
    for rows in (8, 64, 512):
        for _ in range(2):
            fast(torch.randn(rows, 64))
    assert allocated() > before
    del fast
    gc.collect()
    assert allocated() == before


@pytest.mark.parametrize("cleanup", [False, True])
def test_the_general_path_keeps_its_memory_unless_told_otherwise(model, cleanup):
    before = allocated()
    fast = staticrt.compile(model, prepared=False, cleanup_activations=cleanup)
    x = torch.randn(256, 64)
    for _ in range(4):
        torch.testing.assert_close(fast(x), model(x))
        kept = allocated() - before
    assert kept < 4096 if cleanup else kept >= 256 * 512 * 4
