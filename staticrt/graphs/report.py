"""The report of `GraphContext.explain()`: what replays, what was captured again, what runs uncaptured, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from staticrt.graphs.checks import Check
from staticrt.graphs.functions import Function
from staticrt.graphs.protocol import PoolStats

if TYPE_CHECKING:
    from staticrt.graphs.manager import Manager


# Why a call did not replay a node, by the check that failed.
NOT = {
    Check.MANAGED: "an output of the step was at another address",
    Check.DEAD_BEFORE: "an output was alive that was dead at the capture",
    Check.STATIC: "a static input was at another address",
    Check.OVERLAP: "inputs shared memory in another way",
    Check.DEAD_AFTER: "an output would outlive the call that freed it at the capture",
}


@dataclasses.dataclass(frozen=True)
class NodeReport:
    """One capture.

    Args:
        path: names of the functions from the root to this capture.
        reason: why it was captured.
        replays: how often it has been replayed.
        copied_bytes: input bytes copied in all calls, the capture included.
        kernels: launches of one replay.
        held_bytes: memory that only this capture keeps alive: input buffers, constants, live outputs. Intermediate
            values lie in the pool, which all captures share.
        passed_over: why calls of the function at this point did not replay it: (reason, calls).
        inputs: how its inputs arrive: (name, "static", "from this step", "rebound" or "copied").
    """

    path: tuple[str, ...]
    reason: str
    replays: int
    copied_bytes: int
    kernels: int
    held_bytes: int
    passed_over: tuple[tuple[str, int], ...]
    inputs: tuple[tuple[str, str], ...]


@dataclasses.dataclass(frozen=True)
class SkipReport:
    """Calls of one function that ran uncaptured, and why."""

    function: str
    reason: str
    calls: int


@dataclasses.dataclass(frozen=True)
class GraphReport:
    """The state of a graph context. `str()` formats it for reading.

    Args:
        captures, restores, evicted: counts since the tree was made.
        rehomed_bytes: moved out of the pool because callers still held them.
    """

    device: str
    nodes: tuple[NodeReport, ...]
    skips: tuple[SkipReport, ...]
    memory: PoolStats
    captures: int
    restores: int
    evicted: int
    rehomed_bytes: int

    @property
    def replays(self) -> int:
        """Of all captures that are kept."""
        return sum(node.replays for node in self.nodes)

    @property
    def copied_bytes(self) -> int:
        """Input bytes copied by captures that are kept."""
        return sum(node.copied_bytes for node in self.nodes)

    def __str__(self) -> str:
        m = self.memory
        lines = [
            f"graphs on {self.device}: {len(self.nodes)} kept, {self.captures} captured, {self.evicted} evicted, "
            f"{self.replays} replays",
            f"  memory: {m.reserved_bytes} bytes in {m.segments} segments, {m.live_blocks} blocks live "
            f"({m.live_bytes} bytes); {self.rehomed_bytes} bytes moved to callers",
        ]
        for node in self.nodes:
            lines.append(
                f"  {' > '.join(node.path)}: {node.kernels} kernels, {node.replays} replays, "
                f"{node.copied_bytes} input bytes copied, {node.held_bytes} bytes held"
            )
            lines.append(f"    captured: {node.reason}")
            if node.passed_over:
                lines.append(
                    "    not replayed: " + "; ".join(f"{why} ({n} calls)" for why, n in node.passed_over)
                )
            elif node.replays == 0:
                lines.append("    not replayed: no later call matched it")
            if node.inputs:
                lines.append("    inputs:   " + ", ".join(f"{name} {how}" for name, how in node.inputs))
        if self.skips:
            lines.append("  runs uncaptured:")
        lines += [f"    {skip.function}: {skip.reason}   ({skip.calls} calls)" for skip in self.skips]
        return "\n".join(lines)


def report(manager: Manager | None, functions: Sequence[Function], device: str) -> GraphReport:
    """The state of a tree.

    Args:
        functions: all functions of the context, also those without a capture.
    """
    nodes = []
    for node in manager.nodes() if manager is not None else ():
        function = node.function
        how = {
            **dict.fromkeys(node.static, "static"),
            **dict.fromkeys(node.managed, "from this step"),
            **dict.fromkeys(node.rebound, "rebound"),
            **dict.fromkeys(node.copies.indices, "copied"),
        }
        nodes.append(
            NodeReport(
                path=tuple(each.function.name for each in node.path_nodes()),
                reason=node.reason,
                replays=node.replays,
                copied_bytes=node.copied_bytes,
                kernels=node.kernels,
                held_bytes=node.held_bytes(),
                passed_over=tuple(
                    (NOT[check], node.passed_over[check]) for check in Check if node.passed_over[check]
                ),
                inputs=tuple((function.input_name(index), how[index]) for index in sorted(how)),
            )
        )
    every = dict.fromkeys([*functions, *(manager.seen if manager is not None else ())])
    skips = [
        SkipReport(function.name, reason, calls)
        for function in every
        for reason, calls in sorted(function.skips.items())
    ]
    counts = ("captures", "restores", "evicted", "rehomed_bytes")
    return GraphReport(
        device=device,
        nodes=tuple(nodes),
        skips=tuple(skips),
        memory=manager.pool.stats() if manager is not None else PoolStats(0, 0, 0, 0),
        **{name: getattr(manager, name, 0) for name in counts},
    )
