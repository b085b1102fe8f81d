"""CUDA graphs through `torch.cuda.CUDAGraph` and torch's private pools.

Written against the documented interfaces of torch. It has not run on a GPU yet; the tests marked `cuda`
cover it.

Pools need private names of `torch._C`, which are the same in torch 2.11 to 2.15. If one is missing, `make_backend` raises
with the reason.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import torch

from staticrt.errors import DeviceError, InputError
from staticrt.graphs.fixed_addresses import FixedAddressCapture
from staticrt.graphs.protocol import (
    GraphCaps,
    GraphCapture,
    GraphPool,
    LeakInfo,
    PoolDelta,
    PoolId,
    PoolImage,
    PoolStats,
    StorageRef,
)
from staticrt.native import _C

_PRIVATE_NAMES = (
    "_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool",
    "_cuda_getCheckpointState", "_cuda_setCheckpointPoolState", "_cuda_checkPoolLiveAllocations",
    "_cuda_clearCublasWorkspaces", "_cuda_cudaCachingAllocator_raw_delete", "_has_Standard_Deleter",
)  # fmt: skip


def missing_names() -> list[str]:
    """Private names of torch that this backend needs and this torch lacks."""
    return [name for name in _PRIVATE_NAMES if not hasattr(torch._C, name)]


def _new_stream(index: int) -> Any:
    make: Any = torch.cuda.Stream
    return make(index)


def _snapshot() -> list[dict[str, Any]]:
    read: Any = torch.cuda.memory_snapshot
    return cast(list[dict[str, Any]], read())


def _private(name: str) -> Any:
    return getattr(torch._C, name)


@contextlib.contextmanager
def _without_workspaces() -> Iterator[None]:
    """Clear cuBLAS workspaces before and after, because workspaces that are allocated inside lie in a pool."""
    _private("_cuda_clearCublasWorkspaces")()
    try:
        yield
    finally:
        _private("_cuda_clearCublasWorkspaces")()


@contextlib.contextmanager
def _stream_kept() -> Iterator[None]:
    """Restore the current stream, which `torch.cuda.graph` does not if ending the capture raises."""
    before = torch.cuda.current_stream()
    try:
        yield
    finally:
        torch.cuda.set_stream(before)


class CudaPoolImage:
    """torch's checkpoint of a pool, with the addresses that were live."""

    def __init__(self, state: Any, live: list[int]) -> None:
        self.state = state
        self._live = live

    def live(self) -> list[int]:
        return self._live


class CudaGraphPool:
    """`GraphPool` on one CUDA device. An empty graph keeps it alive, as torch counts pools by their graphs."""

    _user: Any = None  # the stream that has the latest results

    def __init__(self, index: int) -> None:
        self._index = index
        self._id: PoolId = torch.cuda.graph_pool_handle()
        self._keeper = torch.cuda.CUDAGraph()
        with torch.cuda.device(index):
            self._stream = _new_stream(index)
            with (
                warnings.catch_warnings(record=True),  # the graph is empty on purpose
                torch.cuda.graph(
                    self._keeper, pool=self._id, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                pass

    @property
    def id(self) -> PoolId:
        return self._id

    def take_turn(self) -> Any:
        """Let the current stream come after all work of the pool's last user, readers of results included.

        Returns:
            The current stream, which is the user from now on.
        """
        stream = torch.cuda.current_stream(self._index)
        last, self._user = self._user, stream
        if last is not None and last != stream:
            stream.wait_stream(last)  # an event of `last`, recorded now
        return stream

    @contextlib.contextmanager
    def route(self, stream: Any = None) -> Iterator[None]:
        side = self._stream if stream is None else stream
        with torch.cuda.device(self._index):
            outer = self.take_turn()
            side.wait_stream(outer)
            with torch.cuda.stream(side):
                _private("_cuda_beginAllocateCurrentThreadToPool")(self._index, self._id)
                try:
                    yield
                finally:
                    _private("_cuda_endAllocateToPool")(self._index, self._id)
                    _private("_cuda_releasePool")(self._index, self._id)
            outer.wait_stream(side)

    def moving(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def allocate(self, nbytes: int, align: int = 64) -> int:
        if align > 512:
            raise InputError(f"align is {align} bytes; CUDA blocks are aligned to 512")
        if nbytes == 0:
            return 0
        with self.route():
            return cast(
                int, torch.cuda.caching_allocator_alloc(nbytes, self._index, torch.cuda.current_stream())
            )

    def free(self, ptr: int) -> None:
        if ptr:
            _private("_cuda_cudaCachingAllocator_raw_delete")(ptr)

    def adopt(self, ref: StorageRef) -> None:
        """The storage's death frees its block from now on."""
        _C.own_address(cast(_C.StorageRef, ref))

    def checkpoint(self) -> PoolImage:
        state = _private("_cuda_getCheckpointState")(self._index, self._id)
        return CudaPoolImage(state, sorted(self.live_ptrs()))

    def restore(self, image: PoolImage, alive: Sequence[StorageRef]) -> PoolDelta:
        before = self.live_ptrs()
        # Each storage once, although outputs share them.
        storages = {cast(Any, ref).storage_impl(): ref for ref in alive if ref.use_count() > 0}
        # torch removes the deleters of "stale" storages, which must own their block, and gives deleters to others, which
        # must own nothing. It cannot do both to one storage, so owners lose their deleter there and get one again here.
        owners = [impl for impl in storages if _private("_has_Standard_Deleter")(impl)]
        _private("_cuda_setCheckpointPoolState")(
            self._index,
            cast(CudaPoolImage, image).state,
            owners,
            [impl for impl in storages if impl not in owners],
        )
        for impl in owners:
            self.adopt(storages[impl])
        now = self.live_ptrs()
        return PoolDelta(tuple(sorted(before - now)), tuple(sorted(now - before)))

    def live_ptrs(self) -> set[int]:
        return {address for address, _ in self._live_blocks()}

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        if _private("_cuda_checkPoolLiveAllocations")(self._index, self._id, expected):
            return None
        live = dict(self._live_blocks())
        return LeakInfo(
            tuple(sorted(expected - live.keys())),
            tuple((ptr, live[ptr], "") for ptr in sorted(live.keys() - expected)),
        )

    def stats(self) -> PoolStats:
        blocks, segments = self._live_blocks(), self._segments()
        return PoolStats(
            len(blocks),
            sum(size for _, size in blocks),
            len(segments),
            sum(s["total_size"] for s in segments),
        )

    def trim(self) -> int:
        """Returns 0: torch frees a private pool only with its last graph."""
        return 0

    def _segments(self) -> list[dict[str, Any]]:
        return [
            segment
            for segment in _snapshot()
            if segment["device"] == self._index and tuple(segment["segment_pool_id"]) == tuple(self._id)
        ]

    def _live_blocks(self) -> list[tuple[int, int]]:
        found = []
        for segment in self._segments():
            address = segment["address"]
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    found.append((address, block["requested_size"]))
                address += block["size"]
        return found


class CudaGraphCapture(FixedAddressCapture):
    """`GraphCapture` on CUDA: its inputs and outputs stay where they were at the capture."""

    what = "a CUDA graph"

    def __init__(self, pool: CudaGraphPool, keep: bool) -> None:
        self._pool = pool
        self._graph: Any = torch.cuda.CUDAGraph(keep_graph=keep)
        if keep:
            self._graph.enable_debug_mode()

    @contextlib.contextmanager
    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
    ) -> Iterator[None]:
        raised: BaseException | None = None
        self._pool.take_turn()
        with (
            torch.cuda.device(self._pool._index),
            _stream_kept(),
            _without_workspaces(),
        ):
            try:
                with torch.cuda.graph(
                    self._graph,
                    pool=cast(Any, self._pool.id),
                    stream=self._pool._stream if stream is None else stream,
                    capture_error_mode="thread_local",
                ):
                    try:
                        yield
                    except BaseException as error:
                        raised = error
                        raise
            except BaseException as error:
                # Ending a failed capture raises as well. Raise the original error, which may be a KeyboardInterrupt.
                if raised is None or error is raised:
                    raise
                raise raised from error

    def take_turn(self) -> None:
        self._pool.take_turn()

    def _replay_in_place(self) -> None:
        self._pool.take_turn()
        self._graph.replay()

    def reset(self) -> None:
        self._graph.reset()

    def dump(self, path: str) -> None:
        """Write the graph in DOT form. Needs `new_graph(keep=True)`."""
        self._graph.debug_dump(path)

    @property
    def num_kernels(self) -> int:
        """Always 1, because torch does not report a graph's number of launches."""
        return 1


class CudaBackend:
    """`GraphBackend` of CUDA devices."""

    caps = GraphCaps(capture_executes=False, rebind_inputs=False, rebind_outputs=False, has_streams=True)

    def device_scope(self, index: int) -> AbstractContextManager[Any]:
        return torch.cuda.device(index)

    def synchronize(self, index: int) -> None:
        torch.cuda.synchronize(index)

    def new_stream(self, index: int) -> Any:
        return _new_stream(index)

    def new_pool(self, index: int) -> GraphPool:
        return CudaGraphPool(index)

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture:
        if not isinstance(pool, CudaGraphPool):
            raise InputError(f"a CUDA graph needs a CUDA pool, got {type(pool).__name__}")
        return CudaGraphCapture(pool, keep)

    @contextlib.contextmanager
    def warmup_scope(self, pool: GraphPool, stream: Any) -> Iterator[None]:
        with _without_workspaces(), pool.route(stream), _C.without_kept_memory():
            yield

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None:
        cast(CudaGraphCapture, graph)._graph.register_generator_state(generator)

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cuda" and tensor.layout is torch.strided


def make_backend() -> CudaBackend:
    """Make the backend.

    Raises:
        DeviceError: no CUDA device, another allocator, or a missing private name of torch.
    """
    if torch.version.cuda is None or not torch.cuda.is_available():
        raise DeviceError(
            f"no CUDA graphs: torch {torch.__version__} sees no CUDA device",
            fix="install torch with CUDA on a machine with a GPU",
        )
    if (allocator := torch.cuda.get_allocator_backend()) != "native":
        raise DeviceError(
            f"no CUDA graphs: torch's allocator is {allocator!r}, which has no checkpoints of pools",
            fix="leave backend:cudaMallocAsync out of PYTORCH_CUDA_ALLOC_CONF",
        )
    if missing := missing_names():
        raise DeviceError(
            f"no CUDA graphs: torch {torch.__version__} lacks torch._C.{', '.join(missing)}",
            fix="use a release of torch that has these names: 2.11 to 2.15 do",
        )
    return CudaBackend()
