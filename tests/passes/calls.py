"""Graphs written by hand."""


def call(graph, op, *args, **kwargs):
    return graph.call_function(op, args, kwargs)
