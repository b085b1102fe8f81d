"""Stage 5: devices, memory pools and the memory planner, from Python.

Each function takes `device`: a CUDA index, "cuda:1", a `torch.device`, "cpu", or a `Device` such as the one
that `simulated()` makes. `None` is the current CUDA device if CUDA is available, else "cpu". The allocator of
a CUDA device can also serve `torch.cuda.MemPool`: see `Pool.torch`.

Dictionaries have the keys of `torch.cuda.memory_stats` and `torch.cuda.memory._snapshot`, so that torch's own
tools (`torch.cuda._memory_viz`, pytorch.org/memory_viz) read them.

Example:
    staticrt.memory.record_history()
    ...
    staticrt.memory.dump_snapshot("run.pickle")        # then: staticrt memory run.pickle
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

from staticrt.memory import checks as check
from staticrt.memory.devices import Device, DeviceLike, PoolLike, device
from staticrt.memory.pools import Pool
from staticrt.memory.sharing import SharedTensor, open_shared, share
from staticrt.memory.simulated_torch import simulated
from staticrt.native import _C

__all__ = [
    "Device", "Pool", "SharedTensor", "can_access", "device", "dump_snapshot", "empty_cache",
    "enable_peer_access", "has_access", "open_shared", "pool", "record_history", "reset_accumulated",
    "reset_peak", "set_limit", "set_metadata", "share", "simulated", "snapshot", "stats",
]  # fmt: skip


def stats(device: DeviceLike = None, pool: PoolLike = None) -> dict[str, int]:
    """`Device.stats` of a device."""
    return _device(device).stats(pool)


def reset_peak(device: DeviceLike = None) -> None:
    """`Device.reset_peak` of a device."""
    _device(device).reset_peak()


def reset_accumulated(device: DeviceLike = None) -> None:
    """`Device.reset_accumulated` of a device."""
    _device(device).reset_accumulated()


def snapshot(pool: PoolLike = None, include_traces: bool = True, device: DeviceLike = None) -> dict[str, Any]:
    """`Device.snapshot` of a device."""
    return _device(device).snapshot(pool, include_traces)


def dump_snapshot(path: str | Path, device: DeviceLike = None) -> None:
    """Write a snapshot as torch does (a pickle), for `staticrt memory FILE` and pytorch.org/memory_viz."""
    Path(path).write_bytes(pickle.dumps(_device(device).snapshot()))


def record_history(
    enabled: Literal["state", "all"] | None = "all", *, device: DeviceLike = None, **options: Any
) -> None:
    """`Device.record_history` of a device."""
    _device(device).record_history(enabled, **options)


def set_metadata(text: str) -> None:
    """Attach a text to every action of this thread in the history from now on; "" ends it.

    Histories keep up to a million such texts, or 64 MiB, after their threads changed them; the oldest are dropped first.

    Raises:
        AllocatorError: not a string.
    """
    _C.set_memory_metadata(check.text("the metadata", text))


def set_limit(*, fraction: float | None = None, bytes: int | None = None, device: DeviceLike = None) -> None:
    """`Device.set_limit` of a device."""
    _device(device).set_limit(fraction=fraction, bytes=bytes)


def empty_cache(pool: PoolLike = None, device: DeviceLike = None) -> int:
    """`Device.empty_cache` of a device: bytes released."""
    return _device(device).empty_cache(pool)


def can_access(device: DeviceLike, owner: DeviceLike) -> bool:
    """`Device.can_access` of a device: whether its work can use the memory of `owner`."""
    return _device(device).can_access(owner)


def has_access(device: DeviceLike, owner: DeviceLike) -> bool:
    """`Device.has_access` of a device: whether its work may use the memory of `owner` now."""
    return _device(device).has_access(owner)


def enable_peer_access(device: DeviceLike, owner: DeviceLike) -> None:
    """`Device.enable_peer_access` of a device: let its work use the memory of `owner`."""
    _device(device).enable_peer_access(owner)


def pool(use_on_oom: bool = False, no_split: bool = False, device: DeviceLike = None) -> Pool:
    """A private pool of a device: `with staticrt.memory.pool() as p:`."""
    return _device(device).pool(use_on_oom, no_split)


_device = device  # the functions above have a parameter named `device`
