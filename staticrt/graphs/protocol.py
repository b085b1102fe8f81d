"""The device interface of graph trees. Code above these interfaces does not depend on the device type.

Storage primitives are the same on every device. They are therefore functions of the extension, not methods of a backend;
`StorageRef` and `storage` document them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch

PoolId = tuple[int, int]


class GraphCaps(NamedTuple):
    """Capabilities of a device's graphs.

    Args:
        capture_executes: capturing computes the results (CPU); else the first replay does (CUDA).
        rebind_inputs: a replay can read and write its inputs at other addresses than the capture did.
        rebind_outputs: a replay can write its outputs at other addresses. Outputs are then ordinary memory of the
            caller and never have to move out of the pool.
        has_streams: work is queued; warmup and capture run on a side stream.
    """

    capture_executes: bool
    rebind_inputs: bool
    rebind_outputs: bool
    has_streams: bool


class TensorMeta(NamedTuple):
    """Metadata from which to make a tensor over given bytes.

    Args:
        data_ptr: address of the storage (not of the first element); 0 for an empty storage.
        nbytes: size of the storage in bytes.
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
    """Addresses that a restore freed and that it made live, ascending."""

    freed: tuple[int, ...]
    created: tuple[int, ...]


class LeakInfo(NamedTuple):
    """How a pool's live blocks differ from what was expected.

    Args:
        missing: expected addresses that are not live.
        unexpected: other live addresses, each with its size in bytes and where it was allocated ("" if that was not
            recorded).
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
    """A snapshot of a pool's blocks. Immutable."""

    def live(self) -> list[int]:
        """Live addresses, ascending."""
        ...


class StorageRef(Protocol):
    """A weak reference to a storage. The storage's address stays readable after its death.

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


class GraphCapture(Protocol):
    """One captured graph. It keeps its pool alive."""

    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
    ) -> AbstractContextManager[Any]:
        """Record what this thread does on the device inside the block. Its allocations come from the pool.

        With `caps.capture_executes` the results are valid when the block ends. Without it the block computes nothing
        and changes no existing bytes; the first replay computes.

        An exception inside leaves the graph empty and frees the block's allocations, except those that are still owned.

        Args:
            inputs: tensors that a replay may find at other addresses, in the order of `rebinds`.
            fixed: further arguments, which keep their addresses in every replay.

        Raises:
            CaptureError: when the block ends, because something ran that a replay cannot repeat. The results are
                invalid, and written tensors have their old values: the caller runs the function again, uncaptured.
        """
        ...

    def bind_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        """Declare, after the capture, the tensors whose storages a replay may place at other addresses.

        Only with `caps.rebind_outputs`. Each has a storage of its own that the capture allocated.
        """
        ...

    def replay(
        self,
        rebinds: Sequence[torch.Tensor] | None = None,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        """Replay the graph.

        Args:
            rebinds: the inputs of this replay, with the metadata of the capture; None: the captured ones.
            outputs: new tensors in the order of `bind_outputs`, with storages of the same size, which the replay
                fills; None: the addresses of the capture.

        Raises:
            ReplayError: a result has another size than at the capture. Inputs that the replay wrote have their old values.
        """
        ...

    def take_turn(self) -> None:
        """Let the current stream come after all work of the pool's graphs: their inputs are written next."""
        ...

    def replay_new(self, rebinds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Replay into newly allocated tensors, and return these in the order of `bind_outputs`.

        Only with `caps.rebind_outputs`. Raises as `replay` does.
        """
        ...

    def reset(self) -> None:
        """Drop the captured graph. A replay afterwards raises."""
        ...

    def dump(self, path: str) -> None:
        """Write a readable description of the graph to a file."""
        ...

    @property
    def num_kernels(self) -> int:
        """Kernel launches of one replay; 0 if the function only makes views."""
        ...

    @property
    def may_vary(self) -> bool:
        """Whether a replay may raise ReplayError, because sizes that a custom operator returns may depend on data."""
        ...

    @property
    def unexplained(self) -> int:
        """Number of values that neither an operator of the capture made nor an argument holds: constants, global tensors.

        Code outside operators may have computed them from the arguments; `agrees_with` detects that.
        """
        ...

    def agrees_with(self, other: Any) -> bool:
        """Whether another capture of the function has the same unexplained values."""
        ...

    @property
    def constant_bytes(self) -> int:
        """Bytes of values that the function made without an operator and the graph keeps."""
        ...


class GraphPool(Protocol):
    """Memory of the graphs of one tree. The tree and its graphs share ownership."""

    @property
    def id(self) -> PoolId: ...

    def route(self, stream: Any = None) -> AbstractContextManager[Any]:
        """Inside the block, allocations of this thread come from the pool."""
        ...

    def moving(self) -> AbstractContextManager[Any]:
        """Inside the block results leave the pool, in the order of the work that made and uses them."""
        ...

    def allocate(self, nbytes: int, align: int = 64) -> int: ...

    def free(self, ptr: int) -> None: ...

    def checkpoint(self) -> PoolImage:
        """A snapshot of the pool. O(live blocks)."""
        ...

    def restore(self, image: PoolImage, alive: Sequence[StorageRef]) -> PoolDelta:
        """Restore the pool to a snapshot. Storages in `alive` own their blocks again; other storages own none.

        A block that is live in the image but has no storage in `alive` stays live until `free`.
        """
        ...

    def live_ptrs(self) -> set[int]: ...

    def check_live(self, expected: set[int]) -> LeakInfo | None:
        """The difference to the live addresses; None if exactly these are live."""
        ...

    def stats(self) -> PoolStats: ...

    def trim(self) -> int:
        """Return unused memory to the system. Returns its size in bytes."""
        ...


class GraphBackend(Protocol):
    """Graphs of one device type. Register it with `register_backend(type, backend)`."""

    caps: GraphCaps

    def device_scope(self, index: int) -> AbstractContextManager[Any]: ...

    def synchronize(self, index: int) -> None: ...

    def new_stream(self, index: int) -> Any: ...

    def new_pool(self, index: int) -> GraphPool: ...

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture: ...

    def warmup_scope(self, pool: GraphPool, stream: Any) -> AbstractContextManager[Any]:
        """Inside the block, allocations on `stream` come from the pool. Frees library workspaces before and after."""
        ...

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None: ...

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is on this device type, so that its storage can belong to a pool."""
        ...
