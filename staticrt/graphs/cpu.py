"""CPU graphs: operators with fixed addresses in a private pool, replayed without Python.

A capture runs the function and records its operators, so it returns the call's results. A replay reads inputs, and writes
outputs where asked, at the addresses of that call, so nothing is copied. There are no streams.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from staticrt.errors import CaptureError, InputError
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.protocol import GraphCaps, GraphCapture, GraphPool
from staticrt.graphs.reads import detect_reads
from staticrt.native import _C


class CpuGraphCapture:
    """`GraphCapture` on the CPU."""

    def __init__(self, pool: CpuGraphPool) -> None:
        self.native = _C.CpuGraph(pool.native)

    @contextlib.contextmanager
    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
    ) -> Iterator[None]:
        self.native.begin(list(inputs), list(fixed))
        try:
            with detect_reads():
                yield
        except BaseException:
            self.native.abort()
            raise
        failure = self.native.end()
        if failure:
            raise CaptureError(
                f"this function cannot be captured: {failure}",
                fix="leave it out of the graph; inputs it wrote are as before the call",
            )

    def bind_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        self.native.bind_outputs(list(outputs))

    def replay(
        self,
        rebinds: Sequence[torch.Tensor] | None = None,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        self.native.replay(rebinds, outputs)

    def take_turn(self) -> None:
        pass

    def replay_new(self, rebinds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return self.native.replay_new(rebinds)

    def reset(self) -> None:
        self.native.reset()

    def dump(self, path: str) -> None:
        Path(path).write_text(self.native.describe())

    @property
    def num_kernels(self) -> int:
        return self.native.num_steps

    @property
    def may_vary(self) -> bool:
        return self.native.may_vary

    @property
    def unexplained(self) -> int:
        return self.native.num_unexplained

    def agrees_with(self, other: CpuGraphCapture) -> bool:
        return self.native.agrees_with(other.native)

    @property
    def constant_bytes(self) -> int:
        return self.native.stats["constant_bytes"]

    @property
    def written_inputs(self) -> list[int]:
        """Indices of the inputs given to `capture` that a replay writes."""
        return self.native.written_inputs

    @property
    def stats(self) -> dict[str, int]:
        """Number of steps of one replay by kind, `shadow_copied_bytes` per replay, and `constant_bytes` kept."""
        return self.native.stats


class CpuBackend:
    """`GraphBackend` of the CPU: one device, no streams."""

    caps = GraphCaps(capture_executes=True, rebind_inputs=True, rebind_outputs=True, has_streams=False)

    def device_scope(self, index: int) -> AbstractContextManager[Any]:
        self._check(index)
        return contextlib.nullcontext()

    def synchronize(self, index: int) -> None:
        self._check(index)

    def new_stream(self, index: int) -> None:
        self._check(index)

    def new_pool(self, index: int) -> GraphPool:
        self._check(index)
        return CpuGraphPool()

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture:
        if not isinstance(pool, CpuGraphPool):
            raise InputError(f"a CPU graph needs a CPU pool, got {type(pool).__name__}")
        return CpuGraphCapture(pool)

    def warmup_scope(self, pool: GraphPool, stream: Any) -> AbstractContextManager[Any]:
        return pool.route(stream)

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None:
        """Nothing to do: a replay draws from the generator itself, as the function did."""

    def owns(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == "cpu" and tensor.layout is torch.strided

    def _check(self, index: int) -> None:
        if index not in (0, -1):
            raise InputError(f"there is one CPU, index 0, got {index}")


def make_backend() -> CpuBackend:
    return CpuBackend()
