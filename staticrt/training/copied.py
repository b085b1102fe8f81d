"""Copies of graphs, for compilers and partitioners that change the graph they are given."""

from __future__ import annotations

from torch import fx


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with copied nodes and the same attributes."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)
