"""Door A: AOTAutograd splits a region into forward and backward graphs; both run as Programs.

AOTAutograd brings functionalization, aliases, write-backs and tangents; what it gets wrong is put right here: the cut
(`partition.py`), undefined gradients (`undefined.py`), second derivatives and kept graphs (`replay.py`).
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import _compat
from staticrt.options import Options
from staticrt.training.partition import safe_partition
from staticrt.training.plans import CompiledGraph
from staticrt.training.replay import Replay

log = logging.getLogger(__name__)
_numbers = itertools.count()
_live: list[weakref.ref[Region]] = []


def regions() -> list[Region]:
    """Regions that are still in use, in the order in which they were compiled."""
    _live[:] = [ref for ref in _live if ref() is not None]
    return [region for region in (ref() for ref in _live) if region is not None]


class Region:
    """A differentiable region, compiled.

    Args:
        gm: torch calls on flat inputs, as Dynamo captures them; kept for second derivatives.
        inputs: example inputs, one per placeholder.
        options: checked options.
        name: for messages and reports.

    Attributes:
        graphs: the compiled forward, backward or inference graphs so far (a backward at its first run).
        eager_reason: why the region runs eagerly, or "".
        calls: how often it ran.
    """

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[Any], options: Options, name: str = "") -> None:
        self.name = name or f"region {next(_numbers)}"
        self.graphs: list[CompiledGraph] = []
        self.eager_reason = ""
        self.calls = 0
        self.saved_bytes = 0
        self._options = options
        self._num_results = 0
        self._eager: Callable[..., Any] = torch.compiler.disable(gm.forward)  # type: ignore[no-untyped-call]
        self._replay = Replay(self._eager, self.name)
        self._remembers = options.double_backward
        self._run = self._compile(gm, inputs)
        _live.append(weakref.ref(self))

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        run, cls = _compat.aot_compile(
            gm,
            inputs,
            forward=self._compiler("forward"),
            backward=self._compiler("backward"),
            inference=self._compiler("inference"),
            partition=self._partition,
        )
        self._remembers = self._remembers and cls is not None
        if cls is not None:
            self._replay.attach(cls)
        return run

    def _partition(self, joint: fx.GraphModule, inputs: Any, **keywords: Any) -> tuple[Any, Any]:
        self._num_results = int(keywords["num_fwd_outputs"])
        return safe_partition(joint, inputs, budget=self._options.activation_memory_budget, **keywords)

    def _compiler(self, role: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            if role == "forward":
                self._replay.random = any(_draws(node) for node in graph.graph.nodes)
            optional = [
                index
                for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
                if role == "backward" and _compat.is_tangent(node)
            ]
            compiled = CompiledGraph(
                graph, self._options, role, optional, self._num_results if role == "forward" else None
            )
            self.graphs.append(compiled)
            log.info("%s: %s graph of %d nodes", self.name, role, len(graph.graph.nodes))

            def run(inputs: list[Any]) -> list[Any]:
                return compiled.run(inputs)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        if not self._remembers:
            return self._run(*inputs)
        with self._replay.recording(inputs):
            return self._run(*inputs)

    def debug_state(self) -> dict[str, Any]:
        """Plans of each graph with their counters, and what runs eagerly."""
        return {
            "name": self.name,
            "door": "A",
            "calls": self.calls,
            "eager": self.eager_reason,
            "graphs": [graph.debug_state() for graph in self.graphs],
        }


def _draws(node: fx.Node) -> bool:
    return (
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
    )
