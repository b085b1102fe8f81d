"""The allocator of one device, and how devices are named."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union

import torch

from staticrt.errors import AllocatorError, DeviceError
from staticrt.memory import checks as check
from staticrt.memory.pools import Pool
from staticrt.native import _C

DeviceLike = Union["Device", torch.device, str, int, None]
PoolLike = Pool | tuple[int, int] | None
# Left out of the stacks that a history records.
_OWN_FILES = ("__init__.py", "devices.py", "simulated_device.py")
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "snapshot", "oom",
)  # fmt: skip


# Device types of torch that came later, by name: what makes their devices. -1 is the current one.
other_devices: dict[str, Callable[[int], Device]] = {}


class Device:
    """The allocator of one device. Addresses are integers, sizes bytes, streams numbers (a `CUstream`)."""

    def __init__(self, handle: _C.MemoryDevice) -> None:
        self._handle = handle

    def __repr__(self) -> str:
        return f"<staticrt.memory.Device {self.name}>"

    @property
    def name(self) -> str:
        """As in messages: "cpu", "cuda:0", "sim:0"."""
        return self._handle.name

    @property
    def index(self) -> int:
        return self._handle.index

    @property
    def total_bytes(self) -> int:
        return self._handle.total_bytes

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device now, other processes included."""
        return self._handle.memory_info()

    def allocate(self, size: int, stream: int = 0, *, address: int | None = None) -> int:
        """Address of `size` bytes for use on `stream`; 0 for 0 bytes.

        Args:
            address: allocate exactly there, as the replay of a checkpoint needs.

        Raises:
            OutOfMemoryError: the allocator is unchanged; the message lists what was tried.
            AllocatorError: the size or the stream is negative.
        """
        wanted = 0 if address is None else check.count("address", address)
        return self._handle.allocate(check.count("size", size), check.stream_number(stream), wanted)

    def free(self, address: int) -> None:
        """Free memory; 0 does nothing.

        Raises:
            InvalidPointerError: this allocator did not allocate the address, or it is already free.
        """
        self._handle.release(check.count("address", address))

    def record_stream(self, address: int, stream: int, device: DeviceLike = None) -> None:
        """Mark the memory as used by `stream`: after `free` it is reused only once the stream's work so far is done.

        Args:
            device: the device whose stream it is, if not this one.
        """
        other = None if device is None else _device(device)._handle
        self._handle.record_use(check.count("address", address), check.stream_number(stream), other)

    def can_access(self, owner: DeviceLike) -> bool:
        """Whether work of this device can use the memory of `owner`, once `enable_peer_access` was called."""
        return _device(owner)._handle.reached_by(self._handle)

    def has_access(self, owner: DeviceLike) -> bool:
        """Whether work of this device may use the memory of `owner` now."""
        return _device(owner)._handle.has_peer(self._handle)

    def enable_peer_access(self, owner: DeviceLike) -> None:
        """Let work of this device use the memory of `owner` at its addresses: all that its allocator has and will get.

        It cannot be taken back. Enabling it twice changes nothing, nor does a failure.

        Raises:
            DeviceError: the devices cannot reach each other, or the driver refused.
            OutOfMemoryError: the driver has no memory for it.
        """
        _device(owner)._handle.add_peer(self._handle)

    def stats(self, pool: PoolLike = None) -> dict[str, int]:
        """Statistics under torch's flat keys, sorted: "allocated_bytes.all.peak" and so on.

        Args:
            pool: only this pool's statistics, all 0 if it does not exist. Counters (`num_…`) are always the device's.
        """
        nested = dict(self._handle.stats(pool_id(pool, self._handle)))
        if pool is None:
            nested["reserved_bytes_by_private_pools"] = {
                f"{first}_{second}": self._handle.stats((first, second))["reserved_bytes"]
                for first, second in self._handle.pools()
                if (first, second) != (0, 0)
            }
        return dict(sorted(_flatten("", nested)))

    def reset_peak(self) -> None:
        """Reset peaks to the current values."""
        self._handle.reset_peak()

    def reset_accumulated(self) -> None:
        """Reset `allocated`, `freed` and the counters to 0."""
        self._handle.reset_accumulated()

    def snapshot(self, pool: PoolLike = None, include_traces: bool = True) -> dict[str, Any]:
        """Segments, blocks and recorded history, in the schema of `torch.cuda.memory._snapshot`.

        Returns:
            `segments`: by address; each with `blocks` by address that tile it. `device_traces`: per device
            number the recorded history. Also `allocator_settings` and `external_annotations`.
        """
        return self._handle.snapshot(
            pool_id(pool, self._handle), check.flag("include_traces", include_traces)
        )

    def record_history(
        self,
        enabled: Literal["state", "all"] | None = "all",
        *,
        context: Literal["state", "alloc", "all"] | None = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        skip_actions: tuple[str, ...] | list[str] = (),
    ) -> None:
        """Record what the allocator does, for `snapshot`.

        Args:
            enabled: "all" keeps the newest `max_entries` actions, "state" only the allocations of live memory,
                None stops recording and clears the history.
            context: which actions keep their Python stack: "state" live memory, "alloc" also allocations in
                the history, "all" also frees; None none.
            clear_history: clear what was recorded before.
            skip_actions: names of actions to leave out: "alloc", "free_requested", …

        Raises:
            AllocatorError: an argument has another value.
        """
        check.one_of("enabled", enabled, ("state", "all", None))
        check.one_of("context", context, ("state", "alloc", "all", None))
        skipped = check.several_of("skip_actions", skip_actions, ACTIONS)
        entries, clear = check.count("max_entries", max_entries), check.flag("clear_history", clear_history)
        if enabled == "state":
            entries, context = 1, None if context is None else "state"
        self._handle.record_history(
            on=enabled is not None,
            level=context or "never",
            max_entries=entries,
            clear=clear or enabled is None,
            skip_actions=skipped,
            skip_files=[str(Path(__file__).with_name(name)) for name in _OWN_FILES],
        )

    def annotate(self, text: str) -> None:
        """Add a text with the current time to `external_annotations` of snapshots."""
        self._handle.annotate(check.text("the annotation", text))

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        """The Python stack that allocated the live block at `address`; None if it was not recorded."""
        block = self._handle.find_block(check.count("address", address))
        return block["frames"] or None if block else None

    def set_limit(self, *, fraction: float | None = None, bytes: int | None = None) -> None:
        """Limit the device memory that the allocator holds; without arguments, remove the limit.

        Memory above a new limit stays until it is freed. Growth past the limit raises OutOfMemoryError.

        Raises:
            AllocatorError: the fraction is not in [0, 1], the bytes are negative, or both are given.
        """
        if fraction is not None and bytes is not None:
            raise AllocatorError("set_limit takes fraction= or bytes=, not both")
        if fraction is not None:
            if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
                raise AllocatorError(f"fraction is {fraction!r}", fix="give a number from 0 to 1")
            bytes = int(fraction * self.total_bytes)
        self._handle.set_limit(None if bytes is None else check.count("bytes", bytes))

    def empty_cache(self, pool: PoolLike = None) -> int:
        """Return free memory to the device: of one pool, or of all pools except open private ones.

        Returns:
            Bytes returned.
        """
        return self._handle.empty_cache(pool_id(pool, self._handle))

    def configure(self, options: str) -> list[str]:
        """Set allocator options, as in PYTORCH_ALLOC_CONF: "max_split_size_mb:64,expandable_segments:True".

        Returns:
            Warnings, one for each option without effect here.

        Raises:
            AllocatorError: an unknown option or value; the message lists the known ones.
        """
        return self._handle.configure(check.text("options", options))

    def largest_free(self) -> int:
        """Size in bytes of the largest allocation that would succeed now."""
        return self._handle.largest_free()

    def pool(self, use_on_oom: bool = False, no_split: bool = False) -> Pool:
        """A private pool; see `Pool`."""
        return Pool(self._handle, check.flag("use_on_oom", use_on_oom), check.flag("no_split", no_split))

    def validate(self) -> None:
        """Check every invariant of the allocator's tables.

        Raises:
            InternalError: names the first one broken.
        """
        self._handle.validate()


def device(which: DeviceLike = None) -> Device:
    """The allocator of a device.

    Raises:
        DeviceError: there is no such device, or no CUDA.
        AllocatorError: not a device of staticrt's allocator.
    """
    if isinstance(which, Device):
        return which
    if which is None:
        which = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    if isinstance(which, bool):
        raise AllocatorError(f"{which} is not a device", fix=_DEVICE_FIX)
    if isinstance(which, int):
        return Device(_C.cuda_memory(check.count("device", which)))
    try:
        wanted = torch.device(which)
    except (RuntimeError, TypeError) as error:
        raise AllocatorError(f"{which!r} is not a device", fix=_DEVICE_FIX) from error
    if wanted.type == "cpu":
        return Device(_C.host_memory())
    if wanted.type == "cuda":
        index = wanted.index if wanted.index is not None else _current_cuda()
        return Device(_C.cuda_memory(index))
    if wanted.type in other_devices:
        return other_devices[wanted.type](-1 if wanted.index is None else wanted.index)
    raise AllocatorError(f"{str(wanted)!r} has no allocator of staticrt", fix=_DEVICE_FIX)


_device = device  # methods above have a parameter named `device`
_DEVICE_FIX = 'give "cpu", "cuda", "cuda:N", N, "sim:N", a torch.device of these, or a Device'


def _current_cuda() -> int:
    if not torch.cuda.is_available():
        raise DeviceError(f"torch {torch.__version__} sees no CUDA device", fix='use "cpu" or simulated()')
    return torch.cuda.current_device()


def pool_id(pool: PoolLike, handle: _C.MemoryDevice) -> tuple[int, int] | None:
    """The id of a pool of the device; None for the whole device."""
    if pool is None:
        return None
    if isinstance(pool, Pool):
        if not pool.is_of(handle):
            raise AllocatorError(
                f"{pool!r} is on another device than {handle.name}", fix="give a pool made there"
            )
        return pool.id
    if isinstance(pool, tuple) and len(pool) == 2:
        return check.count("the pool's id", pool[0]), check.count("the pool's id", pool[1])
    raise AllocatorError(f"{pool!r} is not a pool", fix="give a Pool or its id, two numbers such as (1, 0)")


def _flatten(prefix: str, nested: dict[str, Any]) -> list[tuple[str, int]]:
    flat: list[tuple[str, int]] = []
    for key, value in nested.items():
        if isinstance(value, dict):
            flat += _flatten(f"{prefix}{key}.", value)
        else:
            flat.append((prefix + key, value))
    return flat
