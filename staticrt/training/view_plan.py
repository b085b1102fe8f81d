"""Results of a joint trace that view inputs or other results, as C++ makes them after each run (`csrc/runtime/autograd/views.h`)."""

from __future__ import annotations

import operator
from typing import Any, TypeAlias

import torch
from torch import fx

ViewPlan: TypeAlias = tuple[list[tuple[Any, ...]], list[int]]  # steps; the values that are results
NO_VIEWS: ViewPlan = ([], [])


def view_plan(graph: fx.Graph) -> ViewPlan | None:
    """The plan of a graph of views; its placeholders are the inputs and results of the region. None: only Python can run it."""
    numbers: dict[fx.Node, int] = {}
    steps: list[tuple[Any, ...]] = []
    for node in graph.nodes:
        if node.op == "output":
            return steps, [numbers[result] for result in node.args[0]]
        numbers[node] = len(numbers)
        if node.op == "placeholder":
            continue
        if node.target is operator.getitem:
            steps.append(("item", numbers[node.args[0]], node.args[1]))
        elif isinstance(node.target, torch._ops.OpOverload):
            steps.append(_step(node, node.target, numbers))
        else:
            return None
    raise AssertionError("unreachable")


def _step(node: fx.Node, op: torch._ops.OpOverload, numbers: dict[fx.Node, int]) -> tuple[Any, ...]:
    arguments: list[tuple[Any, Any]] = []
    for i, argument in enumerate(op._schema.arguments):
        value = node.args[i] if i < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if isinstance(value, fx.Node):
            arguments.append((numbers[value], None))
        elif isinstance(value, (list, tuple)) and any(isinstance(item, fx.Node) for item in value):
            places = [(k, numbers[item]) for k, item in enumerate(value) if isinstance(item, fx.Node)]
            arguments.append((places, [0 if isinstance(item, fx.Node) else item for item in value]))
        else:
            arguments.append((None, value))
    return op._schema.name, op._schema.overload_name, arguments
