"""Copies of graphs, for compilers and partitioners that change the graph they are given."""

from __future__ import annotations

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from staticrt.frontend.quick_graph import QuickGraph


def copied(gm: fx.GraphModule) -> fx.GraphModule:
    """A graph module with copied nodes and the same attributes; its Python code is generated when it first runs."""
    graph = QuickGraph()
    graph.output(graph.graph_copy(gm.graph, {}))
    graph.output_node().meta.update(gm.graph.output_node().meta)
    return _LazyGraphModule(gm, graph)
