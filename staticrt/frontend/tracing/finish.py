"""Finishes a graph after the model has run: its outputs, the order of its inputs, checks of what data decided."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from staticrt.frontend.arguments.structure import ResultSpec, repeated
from staticrt.frontend.graph import InputSpec, TracedGraph
from staticrt.frontend.reasons import OTHERWISE, CannotTrace
from staticrt.frontend.tracing import unread_errors
from staticrt.frontend.tracing.request import TraceRequest
from staticrt.ops import draws

aten = torch.ops.aten

_LAYOUT = frozenset({"stride", "is_contiguous", "dim_order"})


def finish(
    request: TraceRequest,
    tracer: Any,
    outputs: list[Any],
    written: set[fx.Node],
    out_spec: ResultSpec,
    guards: Any,
    inference_outputs: frozenset[int],
) -> TracedGraph:
    """The recorded graph with its outputs, its inputs in order: tensors of the model, then arguments."""
    from staticrt.frontend.tracing.control_flow import body_holder

    graph = tracer.graph
    graph.output(tuple(outputs))
    unread_errors.mark(graph)
    by_node = {lifted.node: lifted.value for lifted in tracer.inputs.lifted.values()}
    literals = {lifted.node for lifted in tracer.inputs.lifted.values() if lifted.literal}
    order = {"parameter": 0, "buffer": 1, "constant": 2}
    specs: dict[fx.Node, InputSpec] = {}
    for node in graph.find_nodes(op="placeholder"):
        if node in by_node:
            kind, name = request.tensors.get(id(by_node[node]), ("constant", node.name))
            specs[node] = InputSpec(kind, name, name, node in written, literal=node in literals)  # type: ignore[arg-type]
        else:
            index = int(str(node.target).removeprefix("arg_"))
            name = request.names[index] if index < len(request.names) else f"argument {index}"
            weight = index in request.known.weights
            specs[node] = InputSpec("user", index, name, node in written, weight)
    lifted = sorted((n for n in specs if n in by_node), key=lambda n: order[specs[n].kind])
    anchor = next(node for node in graph.nodes if node not in by_node)
    for node in lifted:
        anchor.prepend(node)
    ordered = graph.find_nodes(op="placeholder")
    module = _LazyGraphModule(body_holder(tracer), graph)  # its Python code is generated when it first runs
    return TracedGraph(
        module=module,
        inputs=tuple(specs[node] for node in ordered),
        values=tuple(by_node[node] for node in ordered if node in by_node),
        in_spec=request.spec,
        out_spec=out_spec,
        guards=guards,
        random=tracer.random,
        asks_layout=not _LAYOUT.isdisjoint(request.snapshot.model_names),
        decided=_decided(graph),
        same=repeated(request.leaves),
        inference_outputs=inference_outputs,
        catches=request.snapshot.catches,
    )


_AFTER_A_WRITE = "a branch that data decides, after a write that stays in place or a random number"


def assert_data_dependent(tracer: Any) -> None:
    """Add assertions of conditions on numbers that data decides, before the graph's first write.

    Bounds of one number always hold, or the model asserted them (`torch._check`). Other conditions were assumed for this
    call's data: a call for which they do not hold takes another trace.

    Raises:
        CannotTrace: what a condition reads is made only after the first write.
    """
    env = tracer.shape_env
    graph = tracer.graph
    if not env.deferred_runtime_asserts:
        return
    write = next((node for node in graph.nodes if _writes(node)), None)
    with contextlib.nullcontext() if write is None else graph.inserting_before(write):
        for asserts in env.deferred_runtime_asserts.values():
            for item in asserts:
                expr = item.expr  # as it was assumed: the environment has taken its sides for equal since
                node = tracer.symbols.from_expr(expr, env)
                if isinstance(node, fx.Node):
                    bounds = len(expr.args) == 2 and sorted(arg.is_Atom for arg in expr.args) == [True, True]
                    assumed = not (
                        bounds and expr.is_Relational and not expr.func.__name__.endswith("quality")
                    )
                    text = f"{OTHERWISE} than {item.expr}" if assumed else f"{item.expr} does not hold"
                    check = graph.call_function(aten._assert_scalar.default, (node, text))
                    check.meta["val"] = None
    if write is not None:
        defined: set[fx.Node] = set()
        for node in graph.nodes:
            if not defined.issuperset(node.all_input_nodes):  # what a condition reads is made after the write
                raise CannotTrace(_AFTER_A_WRITE)
            defined.add(node)


def _decided(graph: fx.Graph) -> int:
    """How many decisions a graph checks, all before it first writes or draws: a failed check has changed nothing."""
    from staticrt.frontend.tracing.decisions import checks_of, memory_of

    checks = checks_of(graph)
    if not checks:
        return 0
    first = next((node for node in graph.nodes if _writes(node) or draws(node)), None)
    if first is None:
        return len(checks)
    needed = _sources(checks)
    late = False
    written: set[int] = set()
    for node in list(graph.nodes):
        late |= node is first
        if late and node in needed:
            if _writes(node) or draws(node) or written & memory_of((node, *node.all_input_nodes)):
                raise CannotTrace(_AFTER_A_WRITE)
            first.prepend(node)
        elif _writes(node):
            written |= memory_of(node.all_input_nodes)
    return len(checks)


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _sources(nodes: list[fx.Node]) -> set[fx.Node]:
    """Nodes, and all that they are computed from."""
    found, stack = set(nodes), list(nodes)
    while stack:
        for source in stack.pop().all_input_nodes:
            if source not in found:
                found.add(source)
                stack.append(source)
    return found
