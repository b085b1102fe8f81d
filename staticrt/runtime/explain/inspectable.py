"""The interface through which reports read anything compiled."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from staticrt.native import _C
from staticrt.runtime.explain.explanation import Explanation


@dataclasses.dataclass(frozen=True)
class Graph:
    """One program and what it is called.

    Args:
        name: "graph 0", as `explain()` counts.
        native: its executable.
        inputs: names of the program's inputs, "" for the model's own tensors.
    """

    name: str
    native: _C.Executable
    inputs: tuple[str, ...]


class Inspectable(Protocol):
    """An executor, or a model from an archive. Compiled callables give theirs by `__inspectable__()`."""

    @property
    def name(self) -> str:
        """For messages and titles."""

    @property
    def fast_calls(self) -> int:
        """Calls that were served without Python."""

    def graphs(self) -> list[Graph]:
        """The graphs that the C++ runtime runs, with the numbers of `explain()`.

        A graph compiled for training has programs of its own for forward, backward and inference; the first has the
        graph's name.
        """

    def explain(self) -> Explanation:
        """What was compiled, what runs eagerly, and why."""

    def wants_gradients(self) -> bool:
        """Whether calls may record gradients: there are parameters that require them."""
