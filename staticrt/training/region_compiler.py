"""Compiles a region: AOTAutograd splits it into forward and backward graphs, and both become Programs.

AOTAutograd handles functionalization, aliases, write-backs and tangents. This package corrects its partition
(`partition.py`), undefined gradients (`undefined.py`) and second derivatives (`double_backward.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.errors import LoweringError, OptionError
from staticrt.frontend.guards.operators import definitions_of, kernels_of
from staticrt.frontend.quick_graph import copied
from staticrt.frontend.reasons import raise_interrupt
from staticrt.native import _C
from staticrt.ops import draws
from staticrt.options import Options
from staticrt.training.cast_backward import CastBackward
from staticrt.training.decomposed.decompositions import recurrent_networks
from staticrt.training.double_backward import Replay
from staticrt.training.grad_modes import inference_result, view_without_history
from staticrt.training.native_node import NotNative, Pair, gate, make_native_node
from staticrt.training.partition import safe_partition
from staticrt.training.plans import CompiledGraph
from staticrt.training.region_metadata import written_inputs
from staticrt.training.saved import SharedReads, lost_aliases, merged_inputs, shared_results
from staticrt.training.unread import num_tokens, without_tokens
from staticrt.training.views_in_place import viewed_in_place, written_later

log = logging.getLogger(__name__)


class Unfaithful(Exception):
    """AOTAutograd compiled graphs that differ from the region."""


class RegionCompiler:
    """Compiles one region as a whole, and holds the results.

    Args:
        options, name, replay: the region's.

    Attributes:
        graphs: compiled so far; a backward is compiled when it first runs.
        node: the autograd node that runs them: "aot" or "native".
        not_native: why it is not the native one, if that was tried.
        remembers: calls are recorded for second derivatives.
        first: serves the first call, or None.
        written: inputs that autograd sees written.
    """

    def __init__(self, options: Options, name: str, replay: Replay) -> None:
        self.graphs: list[CompiledGraph] = []
        self.node = "aot"
        self.not_native = ""
        self.remembers = False
        self.first: Callable[..., Any] | None = None
        self.written: frozenset[int] = frozenset()
        self._options = options
        self._name = name
        self._replay = replay
        self._num_results = 0
        self._shared: list[tuple[int, int]] = []
        self._pair: Pair | None = None
        self._kernels: _C.OperatorKernels | None = None  # of the operators when the region was compiled
        self._definitions: list[tuple[dict[str, Any], dict[str, Any]]] = []  # in Python: now, and then

    def operators_hold(self) -> bool:
        """Whether the operators have the kernels and definitions with which the region was compiled."""
        if self._kernels is None:
            return True
        return self._kernels.hold() and all(live == saved for live, saved in self._definitions)

    def compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """The function that computes the region.

        Raises:
            Unfaithful: AOTAutograd compiles graphs that differ from the region.
        """
        if unfaithful := view_without_history(gm) or inference_result(gm) or written_later(gm):
            raise Unfaithful(unfaithful)
        operators = _C.OperatorWatch()
        try:
            operators.start()
            with recurrent_networks():
                run, cls = torch_private.aot_compile(
                    gm,
                    inputs,
                    forward=self._compiler("forward"),
                    backward=self._compiler("backward"),
                    inference=self._compiler("inference"),
                    partition=self._partition,
                )
        finally:
            operators.stop()
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        self._kernels = kernels_of(operators.names(), [each.device for each in tensors])
        self._definitions = [(each, dict(each)) for each in definitions_of(operators.names())]
        self.remembers = self._options.double_backward and cls is not None
        if cls is not None and (
            lost := lost_aliases(self._shared, cls.metadata)
            or viewed_in_place(gm, cls.metadata)
            or merged_inputs(inputs, cls.metadata)
        ):
            raise Unfaithful(lost)
        if cls is not None:
            written = written_inputs(cls.metadata)
            self.written = frozenset(i for i, is_written in enumerate(written) if is_written)
            self._replay.attach(cls)
            if self._options.backward_node != "aot":
                through_native = self._through_native_node(cls.metadata, len(inputs))
                if through_native is not None and torch_private.first_call_is_fake():
                    self.first = run
                return through_native or run
        return run

    def _through_native_node(self, metadata: Any, num_inputs: int) -> Callable[..., Any] | None:
        """The region behind the native autograd node, or None where that does not support it."""
        pair, self._pair = self._pair, None
        forward = next((graph for graph in self.graphs if graph.role == "forward"), None)
        try:
            if pair is None or forward is None:
                raise NotNative("it has no graph to differentiate")
            if self._options.graphs:
                raise NotNative("its programs run captured")
            gate(metadata)
            native, (backward,) = make_native_node(
                pair,
                forward.plans.get(()),
                [info.requires_grad for info in metadata.output_info],
                num_inputs,
                self._options,
                self._replay,
                self._name,
            )
        except Exception as error:
            raise_interrupt(error)
            if self._options.executor == "static" and isinstance(error, LoweringError):
                raise
            reason = (
                str(error) if isinstance(error, NotNative) else f"{type(error).__name__}: {first_line(error)}"
            )
            if self._options.backward_node == "native":
                raise OptionError(
                    f"{self._name} does not fit backward_node='native': {reason}",
                    fix="leave the option 'backward_node' at 'auto'",
                ) from error
            self.not_native = reason
            return None
        self.node = "native"
        self.graphs.append(backward)
        self.remembers = False  # the node keeps the inputs
        return native.run

    def _partition(self, joint: fx.GraphModule, inputs: Any, **keywords: Any) -> tuple[Any, Any]:
        count = int(keywords["num_fwd_outputs"])
        shared = shared_results(joint, count)
        forward, backward = safe_partition(
            joint, inputs, budget=self._options.activation_memory_budget, **keywords
        )
        # AOTAutograd may change what it compiles.
        copies = copied(forward), copied(backward)
        tokens = num_tokens(forward)
        self._num_results = count - tokens
        self._shared = [(one - tokens, other - tokens) for one, other in shared]
        is_plain = without_tokens(copies[0]) and without_tokens(copies[1])
        pair = Pair(*copies, self._num_results if is_plain else count)
        self._replay.shared = SharedReads(pair.forward, pair.backward, pair.num_outputs)
        if self._options.backward_node != "aot":
            self._pair = pair
            self._replay.is_cast = CastBackward(pair.backward, self._replay)
        return forward, backward

    def _compiler(self, role: str) -> Callable[..., Any]:
        def compile_graph(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[[list[Any]], Any]:
            without_tokens(graph)
            if role == "forward":
                self._replay.random = any(draws(node) for node in graph.graph.nodes)
            optional = [
                index
                for index, node in enumerate(graph.graph.find_nodes(op="placeholder"))
                if role == "backward" and torch_private.is_tangent(node)
            ]
            compiled = CompiledGraph(
                graph, self._options, role, optional, self._num_results if role == "forward" else None
            )
            self.graphs.append(compiled)
            log.info("%s: %s graph of %d nodes", self._name, role, len(graph.graph.nodes))

            count = len(graph.graph.output_node().args[0])  # type: ignore[arg-type]

            def run(inputs: list[Any]) -> list[Any]:
                return compiled.run(inputs, self._replay.unneeded(count) if role == "backward" else ())

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile_graph


def first_line(error: BaseException) -> str:
    """The first line of an error's message that is not empty."""
    return next((line.strip() for line in str(error).split("\n") if line.strip()), "no message")
