"""Graphs for pass tests: traced from modules and functions, or written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import fx

from staticrt.passes.base import GraphPass, PassResult
from staticrt.passes.differential import Comparison


class Traced:
    """A functional ATen graph with an example of every input, its placeholders' values first."""

    def __init__(self, function: Any, args: Sequence[Any], dynamic: Any = None) -> None:
        module = function if isinstance(function, torch.nn.Module) else _Wrap(function)
        exported = torch.export.export(module, tuple(args), dynamic_shapes=dynamic, strict=False)
        self.program = exported.run_decompositions({})
        self.gm: fx.GraphModule = self.program.graph_module
        self.args = list(args)

    def inputs(self, args: Sequence[Any] | None = None) -> list[Any]:
        """One value per placeholder for the caller's arguments `args`."""
        signature = self.program.graph_signature
        weights = {**self.program.state_dict, **self.program.constants}
        values: list[Any] = []
        given = iter(torch.utils._pytree.tree_leaves(list(self.args if args is None else args)))
        for spec in signature.input_specs:
            lifted = spec.kind.name in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR")
            values.append(weights[spec.target] if lifted else next(given))
        return values

    def names(self, kind: str) -> dict[str, torch.Tensor]:
        """Tensors behind the placeholders of one kind ("CONSTANT_TENSOR", "PARAMETER", "BUFFER")."""
        weights = {**self.program.state_dict, **self.program.constants}
        specs = self.program.graph_signature.input_specs
        return {spec.arg.name: weights[spec.target] for spec in specs if spec.kind.name == kind}

    def run(self, graph_pass: GraphPass, *others: Sequence[Any]) -> PassResult:
        """Run a pass; the graph must mean the same on the example inputs and on `others`."""
        comparisons = [Comparison(self.gm, self.inputs(args)) for args in (None, *others)]
        result = graph_pass(self.gm)
        for comparison in comparisons:
            comparison.check(self.gm, graph_pass.name, graph_pass.tolerance)
        return result

    def targets(self) -> list[str]:
        return [str(n.target) for n in self.gm.graph.nodes if n.op == "call_function"]

    def count(self, target: Any) -> int:
        return sum(n.op == "call_function" and n.target == target for n in self.gm.graph.nodes)


class _Wrap(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Built(Traced):
    """A graph written by hand: `build(graph, *placeholders)` returns the outputs; metadata by fake run."""

    def __init__(self, build: Callable[..., Any], args: Sequence[Any]) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.passes.fake_tensor_prop import FakeTensorProp

        graph = fx.Graph()
        placeholders = [graph.placeholder(f"x{i}") for i in range(len(args))]
        graph.output(build(graph, *placeholders))
        self.gm = fx.GraphModule(torch.nn.Module(), graph)
        self.args = list(args)
        mode = FakeTensorMode()
        FakeTensorProp(self.gm, mode).propagate(*args)

    def inputs(self, args: Sequence[Any] | None = None) -> list[Any]:
        return list(self.args if args is None else args)


@pytest.fixture
def trace() -> type[Traced]:
    return Traced


@pytest.fixture
def build() -> type[Built]:
    return Built
