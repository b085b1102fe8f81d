"""Compiled graphs by name, for reports."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from staticrt.errors import InputError
from staticrt.frontend.graph import CapturedGraph
from staticrt.native import _C


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


def input_names(captured: CapturedGraph) -> tuple[str, ...]:
    return tuple(spec.name if spec.changes else "" for spec in captured.inputs)


def find_graph(graphs: Sequence[Graph], number: int) -> Graph:
    """The graph with that number.

    Raises:
        InputError: there is none.
    """
    found = {graph.name: graph for graph in graphs}.get(f"graph {number}")
    if found is None:
        raise InputError(
            f"there is no compiled graph {number}: {len(graphs)} captured",
            fix="call the compiled function first; explain() lists its graphs",
        )
    return found
