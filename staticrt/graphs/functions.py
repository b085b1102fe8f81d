"""The unit of capture: one callable with fixed integers, and how its inputs may be used."""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

# Takes a list of inputs, which it empties, and returns a list of outputs.
Model = Callable[[list[Any]], Sequence[Any]]


class Mode(enum.Enum):
    """What part of a step a function is."""

    FORWARD = "forward"  # a backward follows
    BACKWARD = "backward"
    INFERENCE = "inference"


_ids = itertools.count()


@dataclasses.dataclass(eq=False)
class Function:
    """One captured callable. Calls with other integers, sizes or dtypes are other functions.

    Args:
        model: what runs.
        name: for messages.
        static_inputs: inputs that keep their address between calls: parameters, buffers. A new address causes
            another capture.
        constants: tensors the callable closes over.
        mutated: inputs that the callable writes; a warmup or capture adds those that it detects.
        mode: forward, backward or inference.
        input_names: for messages, one per input or none.
        stack_traces: where each output was made, for messages.
        read_in_place: static inputs that the callable reads through its own references instead of its arguments: a
            module's parameters. Copying them into a buffer would have no effect.
    """

    model: Model
    name: str = "function"
    static_inputs: frozenset[int] = frozenset()
    constants: tuple[torch.Tensor, ...] = ()
    mutated: tuple[int, ...] = ()
    mode: Mode = Mode.INFERENCE
    input_names: tuple[str, ...] = ()
    stack_traces: tuple[str | None, ...] | None = None
    read_in_place: frozenset[int] = frozenset()
    id: int = dataclasses.field(default_factory=lambda: next(_ids))

    def __post_init__(self) -> None:
        self.warmed_up = False
        self.asked = False  # whether the policy has been asked to capture it
        self.failures = 0  # captures that cannot be replayed
        self.proven = False  # two captures agreed on the values that no operator made
        self.warned_mutation = False
        self.warned_pending = False
        self.plain_reason: str | None = None  # why it is never captured
        self.left_out = False  # plain_reason is a wish of the policy
        self.unstable: set[int] = set()  # inputs copied in every call (D7 in docs/design/graphs.md)
        self.mismatches: Counter[int] = Counter()
        self.skips: Counter[str] = Counter()  # reason -> calls run plain

    def input_name(self, index: int) -> str:
        """How messages name an input."""
        if index < len(self.input_names) and self.input_names[index]:
            return f"input {index} ({self.input_names[index]})"
        return f"input {index}"

    def changes(self, inputs: Iterable[int]) -> str:
        """The reason to run uncaptured after these inputs changed."""
        names = ", ".join(self.input_name(index) for index in inputs)
        return f"it gives {names} another shape or other memory, which a replay cannot repeat"

    def found_writing(self, inputs: Sequence[int]) -> None:
        """Add inputs that a run wrote although they were not declared."""
        self.mutated = tuple(sorted({*self.mutated, *inputs}))

    def stack_trace(self, output: int) -> str | None:
        """Where an output was made, if known."""
        traces = self.stack_traces
        return traces[output] if traces is not None and output < len(traces) else None

    def where(self, output: int) -> str:
        """The same for messages."""
        return self.stack_trace(output) or f"output {output} of {self.name}"

    def run_plain(self, inputs: list[Any]) -> list[Any]:
        """Run uncaptured."""
        return list(self.model(inputs))
