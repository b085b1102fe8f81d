"""Compiled graphs by name, for reports."""

from __future__ import annotations

from collections.abc import Sequence

from staticrt.errors import InputError
from staticrt.runtime.explain.inspectable import Graph


def find_graph(graphs: Sequence[Graph], number: int) -> Graph:
    """The graph with that number.

    Raises:
        InputError: there is none.
    """
    found = {graph.name: graph for graph in graphs}.get(f"graph {number}")
    if found is None:
        raise InputError(
            f"there is no compiled graph {number}: {len(graphs)} traced",
            fix="call the compiled function first; explain() lists its graphs",
        )
    return found
