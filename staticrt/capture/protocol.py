"""What graph trees ask of a device. Nothing above these interfaces asks for a device type.

Storage primitives are the same on every device and are therefore functions of the extension, not methods of a
backend; `StorageRef` and `StoragePrimitives` say what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

PoolId = tuple[int, int]


class GraphCaps(NamedTuple):
    """What graphs of a device can do.

    Args:
        capture_executes: capturing has computed the results (CPU); else the first replay does (CUDA).
        rebind_inputs: a replay can read (and write) its inputs at other addresses than the capture did.
        rebind_outputs: a replay can write its outputs at other addresses, so that outputs are ordinary memory of
            the caller from the start and never have to be moved out of the pool.
        has_streams: work is queued; warmup and capture run on a side stream.
        philox: random numbers of a replay come from the generator's state at that replay.
    """

    capture_executes: bool
    rebind_inputs: bool
    rebind_outputs: bool
    has_streams: bool
    philox: bool


class TensorMeta(NamedTuple):
    """How to make a tensor over given bytes.

    Args:
        data_ptr: address of the storage (not of the first element); 0 for an empty storage.
        nbytes: of the storage.
        size, stride, storage_offset: in elements.
    """

    data_ptr: int
    nbytes: int
    dtype: torch.dtype
    device: torch.device
    size: tuple[int, ...]
    stride: tuple[int, ...]
    storage_offset: int


class PoolDelta(NamedTuple):
    """What a restore changed: addresses that were live and are not, and the reverse. Ascending."""

    freed: tuple[int, ...]
    created: tuple[int, ...]


class LeakInfo(NamedTuple):
    """How a pool's live blocks differ from what was expected.

    Args:
        missing: expected addresses that are not live.
        unexpected: live addresses nobody expected, each with its size in bytes and where it was allocated ("" if
            that was not recorded).
    """

    missing: tuple[int, ...]
    unexpected: tuple[tuple[int, int, str], ...]


class PoolStats(NamedTuple):
    """Memory of one pool. Bytes are rounded to blocks."""

    live_blocks: int
    live_bytes: int
    segments: int
    reserved_bytes: int


class PoolImage(Protocol):
    """Blocks of a pool at one moment. Immutable."""

    def live(self) -> list[int]:
        """Live addresses, ascending."""
        ...


class StorageRef(Protocol):
    """A weak reference to a storage; the address it had stays readable after its death.

    `_C.StorageRef(tensor)` makes one.
    """

    @property
    def recorded_ptr(self) -> int:
        """Address of the storage when the reference was made."""
        ...

    def use_count(self) -> int:
        """Owners of the storage; 0 once it died."""
        ...

    def data_ptr(self) -> int:
        """Address now; 0 once it died or was poisoned."""
        ...

    def nbytes(self) -> int:
        """Size now; 0 once it died."""
        ...

    def tensor(self, meta: TensorMeta) -> torch.Tensor:
        """A tensor on this storage (an alias). InternalError if it died."""
        ...


class StoragePrimitives(Protocol):
    """Functions of `staticrt.native._C` on storages."""

    def storage_ref(self, tensor: torch.Tensor) -> StorageRef: ...

    def tensor_at(self, meta: TensorMeta) -> torch.Tensor:
        """A tensor over bytes it does not own, with a storage of its own."""
        ...

    def adopt(self, ref: StorageRef, pool: GraphPool) -> None:
        """The storage's death frees its block in `pool` from now on. The block must be live."""
        ...

    def release(self, ref: StorageRef) -> None:
        """Give the storage's bytes back now; it has no address and no deleter afterwards."""
        ...

    def poison(self, ref: StorageRef, text: str) -> None:
        """Release, and make every later access raise RuntimeError(text). Never undone."""
        ...

    def rehome(self, ref: StorageRef) -> int:
        """Copy the storage to memory of its own; all views follow. Returns its size in bytes.

        The old bytes are given back to their owner, if the storage was one.
        """
        ...

    def ptrs_equal(self, inputs: Sequence[Any], ptrs: Sequence[int | None], indices: Sequence[int]) -> bool:
        """Whether each tensor inputs[i] of these indices has `data_ptr() == ptrs[i]`."""
        ...


class GraphCapture(Protocol):
    """One graph. It keeps its pool alive."""

    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
        error_mode: str = "thread_local",
    ) -> AbstractContextManager[Any]:
        """Record what this thread does on the device inside the block; its allocations come from the pool.

        With `caps.capture_executes` the block's results are right when it ends. Without, nothing has been computed
        yet, and all bytes that existed before the block (of the pool and elsewhere) are as they were: the first
        replay computes.

        An exception inside leaves the graph empty and the pool without any of the block's allocations, but for
        those that somebody still owns.

        Args:
            inputs: tensors that a replay may find elsewhere, in the order of `rebinds`.
            fixed: further arguments, which every replay finds where they are.

        Raises:
            CaptureError: on leaving, something ran that no replay can repeat. The block's results are not to be
                used, and what it wrote is as before: the caller runs the function again, uncaptured.
        """
        ...

    def bind_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Declare, after the capture, the tensors whose storages a replay may place elsewhere.

        Only with `caps.rebind_outputs`. Each has a storage of its own that the capture allocated.
        """
        ...

    def replay(
        self,
        rebinds: Sequence[torch.Tensor] | None = None,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Run the record.

        Args:
            rebinds: the inputs this time, of the same metadata; None: as captured.
            outputs: fresh tensors in the order of `bind_outputs`, with storages of the same size, which the replay
                fills; None: the addresses of the capture.

        Raises:
            ReplayError: a result has another size than at the capture. What the replay wrote in place is as before.
        """
        ...

    def replay_new(self, rebinds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the record into fresh memory of the caller's, in the order of `bind_outputs`, and return that.

        Only with `caps.rebind_outputs`. Raises as `replay` does.
        """
        ...

    def reset(self) -> None:
        """Drop the record. A replay afterwards raises."""
        ...

    def dump(self, path: str) -> None:
        """Write a readable description of the record."""
        ...

    def pool_id(self) -> PoolId: ...

    @property
    def num_kernels(self) -> int:
        """Launches of one replay; 0: the function only makes views."""
        ...

    @property
    def may_vary(self) -> bool:
        """Whether a replay may raise ReplayError: an operator that is not torch's own does not say what sizes depend on."""
        ...

    @property
    def unexplained(self) -> int:
        """How many values no operator of the capture made and no argument holds: constants, or tensors found elsewhere.

        Code that is no operator may have computed them from the arguments, which `agrees_with` shows.
        """
        ...

    def agrees_with(self, other: Any) -> bool:
        """Whether the unexplained values of another capture of the function are the same."""
        ...

    @property
    def constant_bytes(self) -> int:
        """Memory that the record keeps for itself: values that the function made without any operator."""
        ...


class GraphPool(Protocol):
    """Memory of the graphs of one tree; owned by the tree, counted by graphs."""

    @property
    def id(self) -> PoolId: ...

    def route(self, stream: Any = None) -> AbstractContextManager[Any]:
        """Allocations of this thread come from the pool inside the block."""
        ...

    def allocate(self, nbytes: int, align: int = 64) -> int: ...

    def free(self, ptr: int) -> None: ...

    def checkpoint(self) -> PoolImage:
        """The pool as it is. O(live blocks)."""
        ...

    def restore(self, image: PoolImage, alive: Sequence[StorageRef]) -> PoolDelta:
        """Make the pool as it was. Storages in `alive` own their blocks again; no other storage owns any.

        A block that is live in the image and has no storage in `alive` stays live until `free`.
        """
        ...

    def live_ptrs(self) -> set[int]: ...

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        """None iff exactly these addresses are live."""
        ...

    def stats(self) -> PoolStats: ...

    def prime(self, nbytes: int) -> None:
        """Have that many bytes reserved ahead."""
        ...

    def trim(self) -> int:
        """Give unused memory back; returns bytes."""
        ...


class GraphBackend(Protocol):
    """One kind of device. `register_backend(type, backend)` makes it known."""

    caps: GraphCaps

    def device_count(self) -> int: ...

    def device_scope(self, index: int) -> AbstractContextManager[Any]: ...

    def synchronize(self, index: int) -> None: ...

    def new_stream(self, index: int) -> Any: ...

    def current_stream(self, index: int) -> Any: ...

    def join(self, first: Any, then: Any) -> None:
        """What `then` does from now on waits for what `first` did so far."""
        ...

    def new_pool(self, index: int) -> GraphPool: ...

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture: ...

    def warmup_scope(self, pool: GraphPool, stream: Any) -> AbstractContextManager[Any]:
        """Allocations go to the pool, on `stream`; library workspaces are dropped before and after."""
        ...

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None: ...

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on this kind of device, so that its storage can be a pool's."""
        ...
