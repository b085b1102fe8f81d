"""A simulated device: the real allocator on a simulated GPU. For tests, and to try memory scenarios on any machine.

    sim = staticrt.memory.simulated(total_bytes=100 << 20)
    side = sim.stream()
    a = sim.allocate(60 << 20)
    sim.touch(a, 60 << 20, side)      # work on `side` uses a; side is busy until advanced
    sim.record_stream(a, side)
    sim.free(a)
    b = sim.allocate(60 << 20)        # waits for side, and gets a's address
    sim.check()                       # no race, no broken invariant

Streams advance only by `advance` or a call that waits. The race detector tracks which stream uses which bytes, and reports
memory that is reused, unmapped or overwritten by a replay too early.
"""

from __future__ import annotations

import ctypes
import itertools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from staticrt.errors import AllocatorError, InternalError, InvalidPointerError
from staticrt.memory import checks as check
from staticrt.memory.devices import Device, PoolLike, pool_id
from staticrt.memory.pools import Pool
from staticrt.native import _C

_graph_pools = itertools.count(1)
MOST_DEVICES = 1024


class SimulatedDevice(Device):
    """The allocator on a simulated device. Streams are numbers; 0 is the default stream.

    Args:
        total_bytes: physical memory. A memory-backed file that grows as it is written.
        index: the device is called "sim:<index>".
        other_bytes: memory of other processes.
        va_bytes: size of the address space; 0 for a large default.
        max_handles: physical handles that can exist at a time; None for no limit.
        virtual_memory: False: fixed segments only, as on an old GPU.
        backed: False: bookkeeping only, for devices larger than this machine.
        eager: run work as soon as it is enqueued.
        config: allocator options, as in PYTORCH_ALLOC_CONF. Per-thread caches are off unless it enables
            them: their blocks count as live, so statistics are exact only without them.

    Raises:
        InputError: no device can have these sizes.
        AllocatorError: the options are wrong.
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        index: int = 0,
        other_bytes: int = 0,
        va_bytes: int = 0,
        max_handles: int | None = None,
        virtual_memory: bool = True,
        backed: bool = True,
        eager: bool = False,
        config: str = "",
    ) -> None:
        options = check.text("config", config)
        self._sim = _C.simulated_device(
            total_bytes=check.count("total_bytes", total_bytes),
            index=check.count("index", index, MOST_DEVICES - 1),
            other_bytes=check.count("other_bytes", other_bytes),
            va_bytes=check.count("va_bytes", va_bytes),
            max_handles=None if max_handles is None else check.count("max_handles", max_handles),
            virtual_memory=check.flag("virtual_memory", virtual_memory),
            backed=check.flag("backed", backed),
            oracle=True,
            eager=check.flag("eager", eager),
            config=options if "thread_cache" in options else f"thread_cache:False,{options}",
        )
        self._backed = backed
        super().__init__(self._sim)

    @classmethod
    def of_torch(cls, index: int) -> SimulatedDevice:
        """The device "sim:<index>" that tensors are on, after `staticrt.memory.simulated.enable`."""
        made = cls.__new__(cls)
        made._sim = _C.simulated_memory(index)
        made._backed = True
        Device.__init__(made, made._sim)
        return made

    def allocate(self, size: int, stream: int = 0, *, address: int | None = None) -> int:
        got = super().allocate(size, stream, address=address)
        self._sim.allocated(got, operator.index(size), operator.index(stream))
        return got

    def free(self, address: int) -> None:
        # Before the allocator frees them: afterwards another thread may already have the bytes.
        self._sim.freed(check.count("address", address))
        super().free(address)

    # --- streams and events

    def stream(self) -> int:
        """A new stream."""
        return self._sim.create_stream()

    def enqueue(self, stream: int, work: Callable[[], object] | None = None) -> None:
        """Enqueue work on `stream`, which is busy until it advances past the work; `work` is called then."""
        if work is not None and not callable(work):
            raise AllocatorError(
                f"the work is {type(work).__name__}, which cannot be called", fix="give a function"
            )
        self._sim.enqueue(check.stream_number(stream), work)

    def touch(self, address: int, size: int, stream: int = 0, *, writes: bool | None = None) -> None:
        """Enqueue work on `stream` that uses these bytes; the race detector checks the access.

        Args:
            writes: whether the work writes them or only reads them. Then an access that nothing orders with another
                one is reported as well, if one of the two writes. None: only the owner of the bytes is checked.
        """
        self._sim.touch(
            check.stream_number(stream),
            check.count("address", address),
            check.count("size", size),
            None if writes is None else check.flag("writes", writes),
        )

    def write(self, address: int, size: int, value: int, stream: int = 0) -> None:
        """Enqueue a `touch` that writes `value` every 64 KiB and at the end when it runs."""
        at, bytes = check.count("address", address), check.count("size", size)
        self._sim.write(check.stream_number(stream), at, bytes, check.count("value", value))

    def verify(self, address: int, size: int, value: int, stream: int = 0) -> None:
        """Enqueue a `touch` that reports bytes that differ from what `write` wrote."""
        at, bytes = check.count("address", address), check.count("size", size)
        self._sim.verify(check.stream_number(stream), at, bytes, check.count("value", value))

    def advance(self, stream: int, count: int = 1) -> int:
        """Run up to `count` pieces of work, fewer if the stream is empty or waits for another one. Returns how many."""
        return self._sim.advance(check.stream_number(stream), check.count("count", count))

    def pending(self, stream: int) -> int:
        """Number of pieces of work that are not done yet."""
        return self._sim.pending(check.stream_number(stream))

    def synchronize(self, stream: int | None = None) -> None:
        """Run all work of a stream, or of all streams, and synchronise the host with it."""
        if stream is None:
            self._sim.device_sync()
        else:
            self._sim.stream_sync(check.stream_number(stream))

    def event(self, stream: int | None = None) -> SimulatedEvent:
        """A new event, recorded on `stream` if one is given."""
        event = SimulatedEvent(self._sim)
        if stream is not None:
            event.record(stream)
        return event

    # --- captures

    @contextmanager
    def capture(
        self,
        stream: int | None = None,
        pool: PoolLike = None,
        *,
        mode: str = "global",
        is_trial: bool = False,
    ) -> Iterator[SimulatedGraph]:
        """Record the work of `stream` (a new one if None) into a graph instead of doing it.

        Allocations of the captured streams come from `pool`, or from a pool of the graph's own. Streams that
        wait for an event of the capture join it, and must be waited for again before it ends.

        Args:
            mode: in which threads a call that no capture permits breaks it: "global": in all, "thread_local": in this
                one, "relaxed": in none.
            is_trial: off: what breaks the capture is among `reports`, as a misuse of the device.

        Raises:
            DeviceError: the capture failed. Its routes, references and memory are released.
        """
        origin = self.stream() if stream is None else check.stream_number(stream)
        if isinstance(pool, Pool):
            pool.check_open()
        wanted = pool_id(pool, self._sim) or (0, next(_graph_pools))
        check.one_of("mode", mode, ("global", "thread_local", "relaxed"))
        capture = _C.SimCapture(self._sim, wanted, origin, mode, is_trial)
        graph = SimulatedGraph(self._sim, wanted, origin)
        try:
            yield graph
        except BaseException:
            capture.abort()
            raise
        graph.number, graph.launchable = capture.finish()

    # --- faults and other processes

    def fail(self, call: str, nth: int = 1, fault: str = "oom", *, times: int = 1, text: str = "") -> None:
        """Let the `nth` to `nth + times - 1`-th next calls of a driver function fail.

        Args:
            call: "physical_create", "map", "segment_alloc", "event_record", …; a wrong name lists all.
            fault: "oom" or "error".
        """
        first, last = check.count("nth", nth), check.count("times", times)
        self._sim.fail(
            check.text("call", call), first, check.text("fault", fault), last, check.text("text", text)
        )

    def clear_faults(self) -> None:
        self._sim.clear_faults()

    def set_other_bytes(self, bytes: int) -> None:
        """Set the memory that other processes hold."""
        self._sim.set_other_bytes(check.count("bytes", bytes))

    def break_device(self, text: str) -> None:
        """Simulate an illegal access: all further growth fails with this error until `mend_device`."""
        self._sim.set_pending_error("error", check.text("text", text))

    def mend_device(self) -> None:
        self._sim.set_pending_error("ok", "")

    # --- the race detector and counters

    @property
    def reports(self) -> list[str]:
        """What the race detector has found: "race: …", "overlap: …", "misuse: …"."""
        return self._sim.reports()

    def clear_reports(self) -> None:
        self._sim.clear_reports()

    def check(self) -> None:
        """Validate the allocator's tables, and raise for the first report of the race detector.

        Raises:
            InternalError: names the first broken invariant, or the first report.
        """
        self.validate()
        if self.reports:
            raise InternalError(self.reports[0], at=self.name)

    @property
    def used_bytes(self) -> int:
        """Physical memory that the allocator holds."""
        return self._sim.used_bytes

    @property
    def device_calls(self) -> int:
        """Number of driver calls so far that create or release memory or mappings."""
        return self._sim.device_calls

    def calls(self, call: str) -> int:
        """Number of calls of one driver function so far."""
        return self._sim.calls(check.text("call", call))

    def view(self, address: int, size: int) -> memoryview:
        """The bytes of live memory. The view is valid while the memory is; a later read may crash the process.

        Raises:
            InvalidPointerError: the range does not lie in one live block.
        """
        if not self._backed:
            raise AllocatorError("the device has no bytes", fix="make it with backed=True")
        address, size = check.count("address", address), check.count("size", size)
        block = self._handle.find_block(address)
        if block is None or address + size > block["address"] + block["size"]:
            raise InvalidPointerError(f"{size} bytes at {address:#x} are in no live block", at=self.name)
        seen = self._sim.kernel_address(address)
        return memoryview((ctypes.c_ubyte * size).from_address(seen)).cast("B")


class SimulatedEvent:
    """An event of a simulated stream."""

    def __init__(self, sim: _C.SimMemoryDevice) -> None:
        self._sim = sim
        self._event = sim.event_create()

    def record(self, stream: int) -> None:
        self._sim.event_record(self._event, check.stream_number(stream))

    def done(self) -> bool:
        """Whether the stream has passed the event. If so, the host and all streams are synchronised with it."""
        return self._sim.event_query(self._event)

    def wait(self, stream: int) -> None:
        """Later work of `stream` starts after the event."""
        self._sim.stream_wait(check.stream_number(stream), self._event)

    def synchronize(self) -> None:
        self._sim.event_sync(self._event)


class SimulatedGraph:
    """A captured graph. It holds a reference to its pool until `close`."""

    def __init__(self, sim: _C.SimMemoryDevice, pool: tuple[int, int], stream: int) -> None:
        self._sim = sim
        self.pool = pool
        self.stream = stream
        self.number: int | None = None
        self.launchable = 0  # what the driver made of it for launches

    def replay(self, stream: int | None = None) -> None:
        """Enqueue the graph's work on a stream, by default the captured one.

        Raises:
            AllocatorError: the graph is not captured, is closed, or its pool hibernates.
        """
        target = self.stream if stream is None else check.stream_number(stream)
        self._number()
        self._sim.graph_launch(self.launchable, target, self.pool)

    def register_generator(self, generator: torch.Generator) -> None:
        """Let operators of this capture draw from a generator of torch's device "sim", at each replay other numbers.

        The device's default generator needs none of this.

        Raises:
            InputError: the capture has ended, or the generator is another device's.
        """
        _C.register_generator(self._sim, self.stream, generator)

    def keep_place(self, address: int) -> None:
        """Say, in the capture, that replays use whatever lies at this address by then: an argument that may be replaced there."""
        self._sim.capture_fixed(self.stream, check.count("address", address))

    @property
    def edges(self) -> list[list[int]]:
        """Per node, in the order of capture, the nodes that it depends on."""
        return self._sim.graph_edges(self._number())

    @property
    def num_kernels(self) -> int:
        """Operators of one replay, and other enqueued work."""
        return self._sim.graph_work(self._number())

    def close(self) -> None:
        """Destroy the graph and drop its reference to the pool."""
        if self.number is not None:
            number, self.number = self.number, None
            self._sim.graph_destroy(number, self.launchable)
            self._sim.pool_release(self.pool)

    def _number(self) -> int:
        if self.number is None:
            raise AllocatorError("the graph is not captured, or is closed")
        return self.number
