"""Memory of devices: statistics, snapshots, history, limits and private pools of staticrt's allocator.

Each function takes `device`: a CUDA index, "cuda:1", a `torch.device`, "cpu", or a `Device` such as the one
that `simulated()` makes. `None` is the current CUDA device where CUDA is there, else "cpu". The allocator of
a CUDA device also gives `torch.cuda.MemPool` its memory: see `Pool.torch`.

Dictionaries have the keys of `torch.cuda.memory_stats` and `torch.cuda.memory._snapshot`, so that torch's own
tools (`torch.cuda._memory_viz`, pytorch.org/memory_viz) read them.

Example:
    staticrt.memory.record_history()
    ...
    staticrt.memory.dump_snapshot("run.pickle")        # then: staticrt memory run.pickle
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

import torch

from staticrt import memory_checks as check
from staticrt.errors import AllocatorError, DeviceError
from staticrt.memory_pool import Pool
from staticrt.native import _C

if TYPE_CHECKING:
    from staticrt.simulated import SimulatedDevice

__all__ = [
    "Device",
    "Pool",
    "device",
    "dump_snapshot",
    "empty_cache",
    "pool",
    "record_history",
    "reset_accumulated",
    "reset_peak",
    "set_limit",
    "set_metadata",
    "simulated",
    "snapshot",
    "stats",
]

DeviceLike = Union["Device", torch.device, str, int, None]
PoolLike = Pool | tuple[int, int] | None
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)


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
            address: only there will do (as a checkpoint replay needs).

        Raises:
            OutOfMemoryError: nothing has changed; the message lists what was tried.
            AllocatorError: the size or the stream is negative.
        """
        wanted = 0 if address is None else check.count("address", address)
        return self._handle.allocate(check.count("size", size), check.stream_number(stream), wanted)

    def free(self, address: int) -> None:
        """Give memory back; 0 does nothing.

        Raises:
            InvalidPointerError: the address is not ours, or free already.
        """
        self._handle.release(check.count("address", address))

    def record_stream(self, address: int, stream: int) -> None:
        """Work of `stream` uses the memory too: after `free` it is reused only once that work is done."""
        self._handle.record_use(check.count("address", address), check.stream_number(stream))

    def stats(self, pool: PoolLike = None) -> dict[str, int]:
        """Statistics under torch's flat keys, sorted: "allocated_bytes.all.peak" and so on.

        Args:
            pool: of this pool only; 0 everywhere if there is none such. Counters (`num_…`) are the device's.
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
        """Peaks become the current values."""
        self._handle.reset_peak()

    def reset_accumulated(self) -> None:
        """`allocated`, `freed` and the counters become 0."""
        self._handle.reset_accumulated()

    def snapshot(self, pool: PoolLike = None, include_traces: bool = True) -> dict[str, Any]:
        """What is where, and how it came to be, in the schema of `torch.cuda.memory._snapshot`.

        Returns:
            `segments`: by address; each with `blocks` by address that tile it. `device_traces`: per device
            number the recorded history. `allocator_settings`, `external_annotations`.
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
            enabled: "all" keeps the newest `max_entries` actions, "state" only where live memory came from,
                None stops and forgets.
            context: which actions keep their Python stack: "state" live memory, "alloc" also allocations in
                the history, "all" also frees; None none.
            clear_history: forget what was recorded before.
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
            skip_files=[__file__, str(Path(__file__).with_name("simulated.py"))],
        )

    def annotate(self, text: str) -> None:
        """Put a text and the time into `external_annotations` of snapshots."""
        self._handle.annotate(check.text("the annotation", text))

    def traceback(self, address: int) -> list[dict[str, Any]] | None:
        """Python stack that allocated the live memory around `address`; None if unknown."""
        block = self._handle.find_block(check.count("address", address))
        return block["frames"] or None if block else None

    def set_limit(self, *, fraction: float | None = None, bytes: int | None = None) -> None:
        """Let the allocator have at most this much of the device; without arguments: all of it.

        What it has above a new limit stays until it is freed. Growth past the limit is an OutOfMemoryError.

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
        """Return free memory to the device: of all but open private pools, or of one pool.

        Returns:
            Bytes that the device has more now.
        """
        return self._handle.empty_cache(pool_id(pool, self._handle))

    def configure(self, options: str) -> list[str]:
        """Set allocator options, as in PYTORCH_ALLOC_CONF: "max_split_size_mb:64,expandable_segments:True".

        Returns:
            Warnings, one for each option that means nothing here.

        Raises:
            AllocatorError: an unknown option or value; it lists those known.
        """
        return self._handle.configure(check.text("options", options))

    def largest_free(self) -> int:
        """Bytes of the largest block that could be had, given or growing."""
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
        AllocatorError: it is no device of ours.
    """
    if isinstance(which, Device):
        return which
    if which is None:
        which = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"
    if isinstance(which, bool):
        raise AllocatorError(f"{which} is no device", fix=_DEVICE_FIX)
    if isinstance(which, int):
        return Device(_C.cuda_memory(check.count("device", which)))
    try:
        wanted = torch.device(which)
    except (RuntimeError, TypeError) as error:
        raise AllocatorError(f"{which!r} is no device", fix=_DEVICE_FIX) from error
    if wanted.type == "cpu":
        return Device(_C.host_memory())
    if wanted.type == "cuda":
        index = wanted.index if wanted.index is not None else _current_cuda()
        return Device(_C.cuda_memory(index))
    raise AllocatorError(f"{str(wanted)!r} has no allocator of staticrt", fix=_DEVICE_FIX)


_DEVICE_FIX = 'give "cpu", "cuda", "cuda:N", N, a torch.device of these, or a Device'


def _current_cuda() -> int:
    if not torch.cuda.is_available():
        raise DeviceError(f"torch {torch.__version__} sees no CUDA device", fix='use "cpu" or simulated()')
    return torch.cuda.current_device()


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
    """A text that every action of this thread carries in the history from now on; "" ends it.

    Histories keep texts that no thread carries any more up to a million, or 64 MiB; the oldest go first.

    Raises:
        AllocatorError: it is no text.
    """
    _C.set_memory_metadata(check.text("the metadata", text))


def set_limit(*, fraction: float | None = None, bytes: int | None = None, device: DeviceLike = None) -> None:
    """`Device.set_limit` of a device."""
    _device(device).set_limit(fraction=fraction, bytes=bytes)


def empty_cache(pool: PoolLike = None, device: DeviceLike = None) -> int:
    """`Device.empty_cache` of a device: bytes released."""
    return _device(device).empty_cache(pool)


def pool(use_on_oom: bool = False, no_split: bool = False, device: DeviceLike = None) -> Pool:
    """A private pool of a device: `with staticrt.memory.pool() as p:`."""
    return _device(device).pool(use_on_oom, no_split)


def simulated(total_bytes: int, **options: Any) -> SimulatedDevice:
    """A simulated device with streams, events, captures, faults and a race oracle; see `SimulatedDevice`."""
    from staticrt.simulated import SimulatedDevice

    return SimulatedDevice(total_bytes, **options)


_device = device  # the functions above have an argument of that name


def pool_id(pool: PoolLike, handle: _C.MemoryDevice) -> tuple[int, int] | None:
    """Id of a pool of the device, given as `Pool`, as its id, or None for the whole device."""
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
    raise AllocatorError(f"{pool!r} is no pool", fix="give a Pool or its id, two numbers such as (1, 0)")


def _flatten(prefix: str, nested: dict[str, Any]) -> list[tuple[str, int]]:
    flat: list[tuple[str, int]] = []
    for key, value in nested.items():
        if isinstance(value, dict):
            flat += _flatten(f"{prefix}{key}.", value)
        else:
            flat.append((prefix + key, value))
    return flat
