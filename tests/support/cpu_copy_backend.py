"""CPU graphs under CUDA's rules: inputs in fixed buffers, outputs in the pool, nothing computed at capture.

Tests run the tree logic for CUDA on real CPU captures with it. A capture records the function and then undoes it: what
the function wrote is restored, and what it allocated is overwritten, so that a missing first replay shows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from staticrt.errors import CaptureError, InputError
from staticrt.graphs.cpu import CpuBackend, CpuGraphCapture
from staticrt.graphs.cpu_pool import CpuGraphPool
from staticrt.graphs.protocol import GraphCaps, GraphCapture, GraphPool, TensorMeta
from staticrt.graphs.reads import detect_reads
from staticrt.graphs.storage import tensor_at

_SCRIBBLE = 0x5A


class CpuCopyCapture(CpuGraphCapture):
    """A CPU capture that executes nothing and whose inputs and outputs keep their addresses."""

    def __init__(self, pool: CpuGraphPool) -> None:
        super().__init__(pool)
        self._pool = pool
        self.generators: list[torch.Generator] = []

    @contextlib.contextmanager
    def capture(
        self,
        *,
        stream: Any = None,
        inputs: Sequence[torch.Tensor] = (),
        fixed: Sequence[torch.Tensor] = (),
    ) -> Iterator[None]:
        # A block that is freed inside may be reused and overwritten, but replays expect its present contents.
        before = {ptr: raw.clone() for ptr, raw in self._live(())}
        states = [generator.get_state() for generator in self.generators]
        self.native.begin([])
        try:
            with detect_reads():
                yield
        except BaseException:
            self.native.abort()
            self._put_back(before, states)
            raise
        failure = self.native.end(put_back=True)
        if not failure:
            for _ptr, raw in self._live(before):
                raw.fill_(_SCRIBBLE)
        self._put_back(before, states)
        if failure:
            raise CaptureError(
                f"this function cannot be captured: {failure}",
                fix="leave it out of the graph; inputs it wrote are as before the call",
            )

    def bind_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        raise InputError("a copying graph writes its outputs to the addresses of the capture")

    def take_turn(self) -> None:
        pass

    def replay_new(self, rebinds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise InputError("a copying graph writes its outputs to the addresses of the capture")

    def replay(
        self,
        rebinds: Sequence[torch.Tensor] | None = None,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        if rebinds is not None or outputs is not None:
            raise InputError("a copying graph reads and writes at the addresses of the capture")
        self.native.replay()

    def _live(self, known: Sequence[int] | dict[int, Any]) -> list[tuple[int, torch.Tensor]]:
        """Blocks of the pool besides the known ones, as bytes."""
        found = self._pool.check_live(set())
        return [
            (
                ptr,
                tensor_at(TensorMeta(ptr, nbytes, torch.uint8, torch.device("cpu"), (nbytes,), (1,), 0)),
            )
            for ptr, nbytes, _where in (found.unexpected if found is not None else ())
            if ptr not in known
        ]

    def _put_back(self, before: dict[int, torch.Tensor], states: Sequence[torch.Tensor]) -> None:
        for ptr, raw in self._live(()):
            if ptr in before:
                span = min(raw.numel(), before[ptr].numel())
                raw[:span].copy_(before[ptr][:span])
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)


class CpuCopyBackend(CpuBackend):
    """`GraphBackend` of the CPU that hides what the CPU can do."""

    caps = GraphCaps(capture_executes=False, rebind_inputs=False, rebind_outputs=False, has_streams=False)

    def new_graph(self, pool: GraphPool, *, keep: bool = False) -> GraphCapture:
        if not isinstance(pool, CpuGraphPool):
            raise InputError(f"a CPU graph needs a CPU pool, got {type(pool).__name__}")
        return CpuCopyCapture(pool)

    def register_generator(self, graph: GraphCapture, generator: torch.Generator) -> None:
        assert isinstance(graph, CpuCopyCapture)
        graph.generators.append(generator)
