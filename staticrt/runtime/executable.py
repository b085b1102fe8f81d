"""Executables: what runs a graph on flat inputs, on the C++ runtime or operator by operator."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import fx

from staticrt.errors import LoweringError
from staticrt.frontend.graph import TracedGraph
from staticrt.frontend.guards.process_state import without_autocast
from staticrt.frontend.reasons import raise_interrupt
from staticrt.lowering.lower import lower
from staticrt.native import _C
from staticrt.passes.pipeline import PipelineOptions, PipelineReport, run_pipeline
from staticrt.runtime.donation import WrittenDonation, argument_of
from staticrt.runtime.varying_sizes import SizeWatch

if TYPE_CHECKING:
    from staticrt.lowering.accelerators.partition import Subgraphs


class Executable(Protocol):
    """Runs a graph on flat inputs. Safe to call from many threads at once."""

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        """Flat outputs for flat inputs, both in the order of `TracedGraph`.

        Args:
            flat_inputs: the model's tensors, then the caller's leaves.
        """
        ...


class ReferenceExecutable:
    """Runs a traced graph operator by operator, without the C++ runtime.

    Slow. It serves tests, graphs that cannot be lowered, and the question whether trace or runtime is wrong.
    """

    def __init__(self, traced: TracedGraph, reason: str = "") -> None:
        """reason: why the runtime cannot run the graph; "" if the caller chose this executor."""
        self._module: fx.GraphModule = traced.module
        self.reason = reason

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        # The trace recorded the casts of autocast; they must not be applied twice.
        with without_autocast():
            outputs: Sequence[Any] = self._module(*flat_inputs)
        return outputs


class LoweredGraph:
    """A functional ATen graph as a Program on the C++ runtime.

    Args:
        graph: a graph with fake tensors in `meta["val"]`, after all passes.
        inference_outputs: indices of the graph's outputs that become inference tensors.
        options: keyword arguments of the C++ executable.

    Attributes:
        program: the lowered graph.
        native: the C++ executable.

    Raises:
        LoweringError: a Program cannot express the graph.
    """

    def __init__(
        self, graph: fx.GraphModule, inference_outputs: Collection[int] = (), **options: Any
    ) -> None:
        lowered = lower(graph)
        self.program = lowered.program
        self.outputs = lowered.outputs
        tensors = [
            item for i, (kind, item) in enumerate(self.outputs) if kind == "tensor" and i in inference_outputs
        ]
        self.native = _C.Executable(lowered.program, inference_outputs=tensors, **options)

    def run(self, flat_inputs: list[Any]) -> Sequence[Any]:
        """Flat outputs, constants included, for flat inputs."""
        return flat_outputs(self.native.run(flat_inputs), self.outputs)


class StaticExecutable(LoweredGraph):
    """Runs a traced graph on the C++ runtime.

    Raises:
        LoweringError: a Program cannot express the graph.
    """

    def __init__(
        self,
        traced: TracedGraph,
        *,
        passes: bool = True,
        freeze: bool | None = None,
        accelerators: str | None = None,
        donate: Sequence[str] = (),
        **options: Any,
    ) -> None:
        # The general path computes everything in every call, and an accelerator keeps weights itself. In both
        # cases the runtime keeps no values derived from weights.
        calls_prepared = options.get("prepared", True)
        keeps = freeze is not False and accelerators is None and calls_prepared
        weights = _weights(traced) if keeps else []
        copies = (options.get("weight_memory") or 0) >= 1
        self.passes: PipelineReport | None = (
            run_pipeline(traced.module, options=_known(traced, weights, copies)) if passes else None
        )
        # The program refers to its subgraphs by number, so they live as long as this.
        self._subgraphs, self._no_accelerator = _cut_subgraphs(traced, accelerators)
        super().__init__(
            traced.module,
            inference_outputs=traced.inference_outputs,
            weights=weights,
            check_weights=freeze is not True,
            donated=donated_inputs(traced, donate),
            **options,
        )
        users = (spec for spec in traced.inputs if spec.kind == "user")
        self.sizes = SizeWatch([spec.name if spec.changes and calls_prepared else "" for spec in users])

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        values = self.native.call(list(flat_inputs))
        self.sizes.see(self.native, flat_inputs)
        return flat_outputs(values, self.outputs)

    def pass_lines(self) -> tuple[str, ...]:
        """What each pass that changed the graph did."""
        if self.passes is None:
            return ()
        return tuple(f"{p.name}: {p.count} rewritten" for p in self.passes.passes if p.changed)

    def accelerator_lines(self) -> tuple[str, ...]:
        """One line per accelerator subgraph, or why there is no accelerator."""
        if self._subgraphs is not None:
            return self._subgraphs.lines()
        return (f"no accelerator: {self._no_accelerator}",) if self._no_accelerator else ()

    def node_kinds(self) -> dict[str, int]:
        """Number of nodes by kind: managed, out, native, fallback, control, total."""
        return self.native.node_counts


def flat_outputs(values: Sequence[Any], layout: Sequence[tuple[str, Any]]) -> list[Any]:
    """A graph's flat outputs from its program's.

    Args:
        layout: per output, ("tensor", index in `values`) or ("constant", object): `Lowered.outputs`.
    """
    return [values[item] if kind == "tensor" else item for kind, item in layout]


def _cut_subgraphs(traced: TracedGraph, choice: str | None) -> tuple[Subgraphs | None, str]:
    """Replace nodes by accelerator subgraphs, in place; None and the reason if there is no accelerator."""
    if choice is None:
        return None, ""
    from staticrt.lowering.accelerators import find
    from staticrt.lowering.accelerators.partition import cut_subgraphs

    accelerator, reason = find(choice)
    if accelerator is None:
        return None, reason
    placeholders = traced.module.graph.find_nodes(op="placeholder")
    own = frozenset(n.name for n, spec in zip(placeholders, traced.inputs, strict=True) if not spec.changes)
    return cut_subgraphs(traced.module, accelerator, own), ""


def _weights(traced: TracedGraph) -> list[int]:
    """Indices of the inputs that are the model's own tensors and not written by the graph."""
    return [i for i, spec in enumerate(traced.inputs) if not spec.changes and not spec.mutated]


def donated_inputs(traced: TracedGraph, names: Sequence[str]) -> list[tuple[int, str]]:
    """Indices and names of the placeholders whose bytes the caller gives up.

    Args:
        names: arguments, named as in the function's signature; the name of a container means every tensor in it.

    Raises:
        WrittenDonation: the graph writes one of them, which makes its new contents a result.
    """
    found = []
    for index, spec in enumerate(traced.inputs):
        if spec.kind != "user" or argument_of(spec.name) not in names:
            continue
        if spec.mutated:
            raise WrittenDonation(
                f"cannot donate {spec.name!r}: the model writes it, so its new contents are a result",
                fix="leave it out of donate=",
            )
        found.append((index, spec.name))
    return found


def _known(traced: TracedGraph, weights: Sequence[int], copies_weights: bool) -> PipelineOptions:
    """What passes may assume: the values of literals, and which inputs are weights that the runtime tracks.

    It tracks weights in host memory only: a write through `.data` shows in their bytes alone, and reading these from
    a device would make every call wait for it.
    """
    placeholders = traced.module.graph.find_nodes(op="placeholder")
    constants = {
        str(node.target): value
        for node, spec, value in zip(placeholders, traced.inputs, traced.values, strict=False)
        if spec.literal and not spec.mutated
    }
    tracked = frozenset(
        str(placeholders[i].target) for i in weights if placeholders[i].meta["val"].device.type == "cpu"
    )
    return PipelineOptions(constants=constants, tracked=tracked, copies_weights=copies_weights)


def build(traced: TracedGraph, executor: str, **options: Any) -> Executable:
    """The executable of a traced graph.

    Args:
        executor: "reference", "static", or "auto" (static, or the reference where lowering fails).
        options: `passes`, and keyword arguments of the C++ executable.
    """
    if executor == "reference":
        return ReferenceExecutable(traced)
    try:
        return StaticExecutable(traced, **options)
    except LoweringError as error:
        raise_interrupt(error)
        if executor == "static":
            raise
        return ReferenceExecutable(traced, " ".join(str(error).split()))
