"""Graphs with nodes of their own: what compilers and partitioners change is then nobody else's."""

from __future__ import annotations

from torch import fx


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with nodes of its own and the same attributes."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)
