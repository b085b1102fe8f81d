"""What runs a captured graph: one small interface, two executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import fx

from staticrt.donation import WrittenDonation, argument_of
from staticrt.errors import LoweringError
from staticrt.frontend.graph import CapturedGraph
from staticrt.frontend.tracing import uncollected
from staticrt.lowering import lower
from staticrt.native import _C
from staticrt.passes.pipeline import PipelineOptions, PipelineReport, run_pipeline
from staticrt.varying import SizeWatch

if TYPE_CHECKING:
    from staticrt.accelerators.partition import Islands


class Executable(Protocol):
    """Runs a graph on flat inputs. Safe to call from many threads at once."""

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        """Flat outputs for flat inputs, both in the order of `CapturedGraph`.

        Args:
            flat_inputs: the model's tensors, then the caller's leaves.
        """
        ...


class ReferenceExecutable:
    """Runs the captured fx graph operator by operator: slow, and right by construction.

    For tests and for telling a runtime's mistake from a capture's.
    """

    def __init__(self, captured: CapturedGraph, reason: str = "") -> None:
        """reason: why it stands in for the runtime; "" if it was asked for."""
        self._module: fx.GraphModule = captured.module
        self.reason = reason

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        # Autocast is in the graph already, as the casts it made.
        with _NoAutocast():
            outputs: Sequence[Any] = self._module(*flat_inputs)
        return outputs


class _NoAutocast:
    """Switches autocasting off for a block, on every device that has it on."""

    def __enter__(self) -> None:
        self._cpu = torch.is_autocast_enabled("cpu")
        self._cuda = torch.is_autocast_enabled("cuda")
        if self._cpu:
            torch.set_autocast_enabled("cpu", False)
        if self._cuda:
            torch.set_autocast_enabled("cuda", False)

    def __exit__(self, *exc: object) -> None:
        if self._cpu:
            torch.set_autocast_enabled("cpu", True)
        if self._cuda:
            torch.set_autocast_enabled("cuda", True)


class StaticExecutable:
    """Runs a captured graph on the C++ runtime.

    Raises:
        LoweringError: the graph holds what no Program can express.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        *,
        passes: bool = True,
        freeze: bool | None = None,
        accelerators: str | None = None,
        donate: Sequence[str] = (),
        **options: Any,
    ) -> None:
        # The general path computes everything in every call, and an accelerator keeps weights itself: there,
        # nothing made of them is kept.
        calls_prepared = options.get("prepared", True) and not options.get("manage_outputs")
        keeps = freeze is not False and accelerators is None and calls_prepared
        weights = _weights(captured) if keeps else []
        with uncollected():
            self.passes: PipelineReport | None = (
                run_pipeline(captured.module, options=_known(captured, weights)) if passes else None
            )
        # The program refers to its islands by number, so they live as long as this.
        self._islands, self._no_islands = _cut_islands(captured, accelerators)
        lowered = lower(captured.module)
        self.program = lowered.program
        self.native = _C.Executable(
            lowered.program,
            weights=weights,
            check_weights=freeze is not True,
            donated=donated_inputs(captured, donate),
            **options,
        )
        self.outputs = lowered.outputs
        names = [spec.name if spec.changes and calls_prepared else "" for spec in captured.inputs]
        self._sizes = SizeWatch(names)

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        values = self.native.call(list(flat_inputs))
        self._sizes.see(self.native, flat_inputs)
        return [values[item] if kind == "tensor" else item for kind, item in self.outputs]

    def pass_lines(self) -> tuple[str, ...]:
        """What each pass that changed the graph did."""
        if self.passes is None:
            return ()
        return tuple(f"{p.name}: {p.count} rewritten" for p in self.passes.passes if p.changed)

    def island_lines(self) -> tuple[str, ...]:
        """What the accelerator got and did, or why there is none."""
        if self._islands is not None:
            return self._islands.lines()
        return (f"no accelerator: {self._no_islands}",) if self._no_islands else ()

    def node_kinds(self) -> dict[str, int]:
        """How many nodes are of which kind: managed, out, native, fallback, control, total."""
        return self.native.node_counts


def _cut_islands(captured: CapturedGraph, choice: str | None) -> tuple[Islands | None, str]:
    """The islands of an accelerator, cut out of the graph in place; or None, and why."""
    if choice is None:
        return None, ""
    from staticrt.accelerators import find
    from staticrt.accelerators.partition import cut_islands

    accelerator, reason = find(choice)
    if accelerator is None:
        return None, reason
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    own = frozenset(n.name for n, spec in zip(placeholders, captured.inputs, strict=True) if not spec.changes)
    return cut_islands(captured.module, accelerator, own), ""


def _weights(captured: CapturedGraph) -> list[int]:
    """Indices of the inputs that are the model's own tensors and not written by the graph."""
    return [i for i, spec in enumerate(captured.inputs) if not spec.changes and not spec.mutated]


def donated_inputs(captured: CapturedGraph, names: Sequence[str]) -> list[tuple[int, str]]:
    """Indices and names of the placeholders whose bytes the caller gives up.

    Args:
        names: of arguments, as in the function's signature; a container stands for every tensor in it.

    Raises:
        WrittenDonation: the graph writes one of them, so that its new contents are a result.
    """
    found = []
    for index, spec in enumerate(captured.inputs):
        if spec.kind != "user" or argument_of(spec.name) not in names:
            continue
        if spec.mutated:
            raise WrittenDonation(
                f"cannot donate {spec.name!r}: the model writes it, so its new contents are a result",
                fix="leave it out of donate=",
            )
        found.append((index, spec.name))
    return found


def _known(captured: CapturedGraph, weights: Sequence[int]) -> PipelineOptions:
    """What passes may assume of this capture: literals never change, every other tensor may."""
    placeholders = captured.module.graph.find_nodes(op="placeholder")
    constants = {
        str(node.target): value
        for node, spec, value in zip(placeholders, captured.inputs, captured.values, strict=False)
        if spec.literal and not spec.mutated
    }
    tracked = frozenset(str(placeholders[i].target) for i in weights)
    return PipelineOptions(constants=constants, tracked=tracked)


def build(captured: CapturedGraph, executor: str, **options: Any) -> Executable:
    """The executable of a captured graph.

    Args:
        executor: "reference", "static", or "auto" (static; where lowering cannot, the reference).
        options: `passes`, and keyword arguments of the C++ executable.
    """
    if executor == "reference":
        return ReferenceExecutable(captured)
    try:
        return StaticExecutable(captured, **options)
    except LoweringError as error:
        if executor == "static":
            raise
        return ReferenceExecutable(captured, " ".join(str(error).split()))
