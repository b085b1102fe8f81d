"""Replaces the nodes that an accelerator supports by calls of accelerator subgraphs."""

from __future__ import annotations

import dataclasses
import operator
from collections import Counter
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from staticrt.lowering.accelerators.operator import Subgraph, register_subgraph
from staticrt.lowering.accelerators.protocol import Accelerator
from staticrt.lowering.lower import model_line
from staticrt.ops import facts_of_call


@dataclasses.dataclass
class Subgraphs:
    """The subgraphs of one graph. They live as long as this object.

    Args:
        note: why there is none.
    """

    accelerator: str
    subgraphs: list[Subgraph]
    note: str = ""

    def lines(self) -> tuple[str, ...]:
        """One line per subgraph: nodes, what it was compiled for, why it fell back."""
        return tuple(subgraph.line(self.accelerator) for subgraph in self.subgraphs) or (
            f"{self.accelerator}: none: {self.note}",
        )


class _Support(OperatorSupportBase):
    """Nodes that any accelerator may take and that this one supports."""

    def __init__(self, accelerator: Accelerator, module: fx.GraphModule) -> None:
        self._accelerator = accelerator
        self._returned = _bases_of_results(module)

    def is_node_supported(self, submodules: Any, node: fx.Node) -> bool:
        target = node.target
        if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload):
            return False
        if target.namespace != "aten" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        if not all(isinstance(source.meta.get("val"), torch.Tensor) for source in node.all_input_nodes):
            return False  # a symbolic size; subgraphs take tensors only
        if not node.all_input_nodes:
            return False  # it makes a constant, so nothing is gained
        facts = facts_of_call(target, node.args, node.kwargs)
        if facts.mutates or facts.random:
            return False
        # The results of a subgraph share no memory, but a view that the caller gets must stay a view.
        if facts.aliases and (_base(node).op == "placeholder" or _base(node) in self._returned):
            return False
        return bool(self._accelerator.supports(node))


def _base(node: fx.Node) -> fx.Node:
    """The node whose memory `node` views, or `node` itself."""
    while isinstance(node.target, torch._ops.OpOverload):
        facts = facts_of_call(node.target, node.args, node.kwargs)
        sources = [node.args[alias.arg] for alias in facts.aliases if alias.arg < len(node.args)]
        source = next((s for s in sources if isinstance(s, fx.Node)), None)
        if source is None:
            return node
        node = source
    return node


def _bases_of_results(module: fx.GraphModule) -> frozenset[fx.Node]:
    """Bases that several results share, or whose result is a view."""
    (output,) = module.graph.find_nodes(op="output")
    bases = Counter(_base(node) for node in output.all_input_nodes)
    return frozenset(base for base, count in bases.items() if count > 1 or base not in output.all_input_nodes)


def cut_subgraphs(
    module: fx.GraphModule, accelerator: Accelerator, model_inputs: frozenset[str]
) -> Subgraphs:
    """Replace the nodes that the accelerator supports by calls of subgraphs, in place.

    Args:
        module: functional ATen graph with metadata.
        model_inputs: names of placeholders that are the model's own tensors.
    """
    partitioner = CapabilityBasedPartitioner(
        module,
        _Support(accelerator, module),
        allows_single_node_partition=True,
    )
    partitions = partitioner.propose_partitions()
    least = getattr(accelerator, "min_nodes", 1)
    kept = [p for p in partitions if len(p.nodes) >= least]
    if not kept:
        small = f" of {least} nodes or more" if partitions else ""
        return Subgraphs(accelerator.name, [], f"it supports no subgraph{small} of this graph")
    before = {node.name: node.meta.get("val") for node in module.graph.nodes}
    lines = {node.name: model_line(node) for node in module.graph.nodes}
    partitioner.fuse_partitions(kept)
    subgraphs = []
    for node in list(module.graph.find_nodes(op="call_module")):
        subgraphs.append(_replace(module, node, accelerator, before, lines, model_inputs))
    module.graph.lint()
    module.recompile()
    return Subgraphs(accelerator.name, subgraphs)


def _replace(
    module: fx.GraphModule,
    node: fx.Node,
    accelerator: Accelerator,
    values: dict[str, Any],
    lines: dict[str, str],
    model_inputs: frozenset[str],
) -> Subgraph:
    """Turn one fused call_module into a call of the subgraph operator."""
    body = module.get_submodule(str(node.target))
    assert isinstance(body, fx.GraphModule)
    (output,) = body.graph.find_nodes(op="output")
    single = isinstance(output.args[0], fx.Node)
    results = [output.args[0]] if single else list(output.args[0])
    if single:
        output.args = ((output.args[0],),)
        body.recompile()
    members = [n for n in body.graph.nodes if n.op == "call_function"]
    subgraph = Subgraph(
        accelerator,
        body,
        model_inputs=tuple(
            i for i, arg in enumerate(node.args) if isinstance(arg, fx.Node) and arg.name in model_inputs
        ),
        nodes=tuple(n.name for n in members),
        ops=tuple(str(n.target) for n in members),
        where=tuple(dict.fromkeys(line for n in members if (line := lines.get(n.name, "")))),
    )
    handle = register_subgraph(subgraph)
    with module.graph.inserting_before(node):
        call = module.graph.call_function(
            torch.ops.staticrt_accelerators.run.default, (list(node.args), handle)
        )
        call.meta["val"] = [values[n.name] for n in results]
        call.meta["stack_trace"] = node.meta.get("stack_trace")
        parts = []
        for position, result in enumerate(results):
            part = module.graph.call_function(operator.getitem, (call, position))
            part.meta["val"] = values[result.name]
            parts.append(part)
    if single:
        node.replace_all_uses_with(parts[0])
    else:
        for user in list(node.users):
            place = user.args[1]
            assert isinstance(place, int)
            user.replace_all_uses_with(parts[place])
            module.graph.erase_node(user)
    module.graph.erase_node(node)
    module.delete_submodule(str(node.target))
    return subgraph
