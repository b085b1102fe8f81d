"""The allocator on the device: the same traces as torch's own, pools, limits."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import torch

import staticrt
from staticrt.errors import OutOfMemoryError
from staticrt.models.bench.kit.checks import Skip, check, synchronize

_CALLS = 4000


def trace(seed: int, large: bool) -> list[tuple[bool, int]]:
    """Allocations (True, bytes) and frees (False, number of the live block), as a model with changing sizes makes them."""
    pick = random.Random(seed)
    live, calls = 0, []
    sizes = [pick.randrange(1, 2**22 if large else 2**14) for _ in range(40)]
    for _ in range(_CALLS):
        if live > 60 or (live and pick.random() < 0.48):
            calls.append((False, pick.randrange(live)))
            live -= 1
        else:
            calls.append((True, pick.choice(sizes)))
            live += 1
    return calls


def play(calls: list[tuple[bool, int]], allocate: Callable[[int], Any], free: Callable[[Any], None]) -> float:
    """Seconds that the calls take; everything is freed at the end."""
    live: list[Any] = []
    begin = time.perf_counter()
    for is_new, number in calls:
        if is_new:
            live.append(allocate(number))
        else:
            free(live.pop(number))
    seconds = time.perf_counter() - begin
    while live:
        free(live.pop())
    return seconds


def _against_torch(device: torch.device, large: bool) -> str:
    ours = staticrt.memory.device(device)
    calls = trace(7, large)
    torch.accelerator.empty_cache()
    ours.empty_cache()
    base = torch.accelerator.memory_reserved(device.index)
    ours.reset_peak()
    before = ours.stats()["reserved_bytes.all.current"]
    own_seconds = min(play(calls, ours.allocate, ours.free) for _ in range(3))
    own_bytes = ours.stats()["reserved_bytes.all.peak"] - before
    ours.validate()
    ours.empty_cache()
    torch.accelerator.reset_peak_memory_stats(device.index)

    def tensor(size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device)

    def drop(_tensor: torch.Tensor) -> None:
        pass

    torch_seconds = min(play(calls, tensor, drop) for _ in range(3))
    torch_bytes = torch.accelerator.max_memory_reserved(device.index) - base
    torch.accelerator.empty_cache()
    # torch.empty also makes a tensor, so the two times only show that our allocator is not the slower part.
    return (
        f"reserved {own_bytes / 2**20:.0f} MiB, torch's {torch_bytes / 2**20:.0f} MiB; "
        f"{own_seconds / len(calls) * 1e9:,.0f} ns a call, torch.empty {torch_seconds / len(calls) * 1e9:,.0f} ns"
    )


@check("memory", "small blocks, beside torch's allocator")
def small_blocks(device: torch.device) -> str:
    return _against_torch(device, large=False)


@check("memory", "large blocks, beside torch's allocator")
def large_blocks(device: torch.device) -> str:
    return _against_torch(device, large=True)


@check("memory", "blocks used by a second stream wait for it")
def second_stream(device: torch.device) -> None:
    ours = staticrt.memory.device(device)
    side = torch.Stream(device=device)
    native = getattr(side, "native_handle", None) if device.type == "cuda" else side.stream_id
    if native is None:
        raise Skip(f"torch {torch.__version__} does not give the handle of a stream")
    address = ours.allocate(2**20)
    ours.record_stream(address, int(native))
    ours.free(address)
    synchronize(device)
    other = ours.allocate(2**20)
    ours.free(other)
    ours.validate()


@check("memory", "a limit is an error that says what was tried")
def limit(device: torch.device) -> None:
    ours = staticrt.memory.device(device)
    ours.empty_cache()
    ours.set_limit(bytes=ours.stats()["reserved_bytes.all.current"] + 2**22)
    try:
        ours.free(ours.allocate(2**16))
        try:
            ours.allocate(2**26)
        except OutOfMemoryError as error:
            said = str(error)
        else:
            said = "64 MiB were given"
        if "limit" not in said:
            raise AssertionError(f"under a limit of 4 MiB: {said}")
    finally:
        ours.set_limit()
    ours.free(ours.allocate(2**26))


@check("memory", "a pool hibernates and keeps its addresses")
def hibernation(device: torch.device) -> str:
    ours = staticrt.memory.device(device)
    with ours.pool() as pool:
        addresses = [ours.allocate(2**22) for _ in range(4)]
    for address in addresses:
        ours.free(address)
    synchronize(device)
    released = pool.hibernate()
    pool.wake()
    with pool:
        again = [ours.allocate(2**22) for _ in range(4)]
    assert set(again) == set(addresses), f"{again} are not {addresses}"
    for address in again:
        ours.free(address)
    pool.close()
    ours.validate()
    return f"{released / 2**20:.0f} MiB released"
