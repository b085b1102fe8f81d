"""Graphs of the simulated accelerator, torch's device "sim": captures of its driver over private pools of our allocator.

Rules are CUDA's: a capture computes nothing, and a replay reads and writes the captured addresses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, cast

import torch

from staticrt.errors import DeviceError, InputError
from staticrt.graphs.fixed_addresses import FixedAddressCapture
from staticrt.graphs.native_pool import NativePool
from staticrt.graphs.protocol import GraphCaps, GraphCapture, GraphPool, LeakInfo, StorageRef
from staticrt.memory.simulated_device import SimulatedDevice, SimulatedGraph
from staticrt.native import _C


class SimGraphPool(NativePool):
    """`GraphPool` on one simulated device."""

    native: _C.SimGraphPool

    def __init__(self, index: int) -> None:
        self.device = SimulatedDevice.of_torch(index)
        self.index = index
        self.native = _C.SimGraphPool(index)
        self.graphs = 0  # captured and not yet reset
        self._user: torch.Stream | None = None  # the stream that has the latest results

    def __repr__(self) -> str:
        return f"<SimGraphPool {self.id[0]}_{self.id[1]} of {self.device.name}>"

    @contextlib.contextmanager
    def on_stream(self, stream: torch.Stream | None) -> Iterator[torch.Stream]:
        """Inside the block the stream (None: the current one) is current. It comes after all work that uses the pool."""
        outer = torch.accelerator.current_stream(self.index)
        inner = outer if stream is None else stream
        self.native.hand_over(outer.stream_id, inner.stream_id)
        try:
            with inner:
                yield inner
        finally:
            self.give_to(inner, outer)

    def give_to(self, stream: torch.Stream, user: torch.Stream) -> None:
        """Let `user` come after `stream` and after all work that uses the pool."""
        self.native.hand_over(stream.stream_id, user.stream_id)
        self._user = user

    def moving(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._user is None else self._user

    @contextlib.contextmanager
    def route(self, stream: torch.Stream | None = None) -> Iterator[None]:
        with self.on_stream(stream):
            self.native.begin_route()
            try:
                yield
            finally:
                self.native.end_route()

    def adopt(self, ref: StorageRef) -> None:
        """The storage's death frees its block from now on."""
        self.native.adopt(cast(_C.StorageRef, ref))

    def live_ptrs(self) -> set[int]:
        return {ptr for ptr, _nbytes in self.native.live()}

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        live = dict(self.native.live())
        if live.keys() == expected:
            return None
        return LeakInfo(
            tuple(sorted(expected - live.keys())),
            tuple((ptr, nbytes, "") for ptr, nbytes in sorted(live.items()) if ptr not in expected),
        )

    def trim(self) -> int:
        """Give unused memory back. 0 while a graph exists: a replay writes into free blocks."""
        return self.native.trim() if self.graphs == 0 else 0


class SimGraphCapture(FixedAddressCapture):
    """`GraphCapture` on a simulated device: its inputs and outputs stay where they were at the capture."""

    what = "a graph of sim"

    def __init__(self, pool: SimGraphPool) -> None:
        self._pool = pool
        self._graph: SimulatedGraph | None = None
        self._generators: list[torch.Generator] = []

    @contextlib.contextmanager
    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
    ) -> Iterator[None]:
        self.reset()
        pool = self._pool
        if stream is None:
            stream = torch.Stream(f"sim:{pool.index}")  # the default stream cannot be captured
        with (
            pool.on_stream(stream),
            pool.device.capture(stream.stream_id, pool.id, mode="thread_local", is_trial=True) as graph,
        ):
            for generator in self._generators:
                graph.register_generator(generator)
            for tensor in fixed:
                if tensor.device.type == "sim":
                    graph.keep_place(tensor.untyped_storage().data_ptr())
            yield
        self._graph = graph
        pool.graphs += 1

    def take_turn(self) -> None:
        stream = torch.accelerator.current_stream(self._pool.index)
        self._pool.give_to(stream, stream)

    def _replay_in_place(self) -> None:
        self.take_turn()
        stream = torch.accelerator.current_stream(self._pool.index)
        self._captured.replay(stream.stream_id)

    def reset(self) -> None:
        graph, self._graph = self._graph, None
        if graph is not None:
            self._pool.graphs -= 1
            graph.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of the process the device may be gone
            self.reset()

    def dump(self, path: str) -> None:
        """Write, per node, the nodes that it comes after."""
        lines = [
            f"{node}: {' '.join(map(str, before))}\n" for node, before in enumerate(self._captured.edges)
        ]
        Path(path).write_text("".join(lines))

    @property
    def num_kernels(self) -> int:
        return self._captured.num_kernels

    def register_generator(self, generator: torch.Generator) -> None:
        self._generators.append(generator)

    @property
    def _captured(self) -> SimulatedGraph:
        if self._graph is None:
            raise InputError("this graph is not captured, or was reset")
        return self._graph


class SimBackend:
    """`GraphBackend` of the simulated devices."""

    caps = GraphCaps(capture_executes=False, rebind_inputs=False, rebind_outputs=False, has_streams=True)

    def device_scope(self, index: int) -> AbstractContextManager[Any]:
        return cast(AbstractContextManager[Any], torch.accelerator.device_index(index))

    def synchronize(self, index: int) -> None:
        torch.accelerator.synchronize(index)

    def new_stream(self, index: int) -> torch.Stream:
        return torch.Stream(f"sim:{index}")

    def new_pool(self, index: int) -> GraphPool:
        return SimGraphPool(index)

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture:
        if not isinstance(pool, SimGraphPool):
            raise InputError(f"a graph of sim needs a pool of sim, got {type(pool).__name__}")
        return SimGraphCapture(pool)

    @contextlib.contextmanager
    def warmup_scope(self, pool: GraphPool, stream: Any) -> Iterator[None]:
        with pool.route(stream), _C.without_kept_memory():
            yield

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None:
        cast(SimGraphCapture, graph).register_generator(generator)

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "sim" and tensor.layout is torch.strided


def make_backend() -> SimBackend:
    """Make the backend.

    Raises:
        DeviceError: the process has no simulated devices.
    """
    if _C.simulated_device_count() == 0:
        raise DeviceError(
            "no graphs of sim: this process has no simulated devices",
            fix="call staticrt.memory.simulated.enable() first",
        )
    return SimBackend()
