"""A joint trace as two Programs behind the native autograd node.

The graph is split where eager splits it: the forward is what was recorded before the backward began. The saved values are
those that the backward reads, which autograd's formulas save too. Views are made again from their bases, and sizes are
saved as numbers. Checkpointed parts (`checkpoints.py`) and cheap values (`partition.py`) are computed again.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from staticrt.frontend.graph import TracedGraph
from staticrt.frontend.guards.process_state import without_autocast
from staticrt.frontend.quick_graph import QuickGraph
from staticrt.frontend.reasons import CannotTrace
from staticrt.frontend.tracing.tracer import BACKWARD, NO_GRAD
from staticrt.graphs.storage import like_bits
from staticrt.native import _C
from staticrt.options import Options
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.effects import is_pure, may_keep_arguments, node_facts
from staticrt.passes.no_ops import RemoveNoOps
from staticrt.runtime.executable import flat_outputs
from staticrt.shapes.fake_results import view_of
from staticrt.training import formulas
from staticrt.training.checkpoints import Recomputed, is_view
from staticrt.training.double_backward import Replay
from staticrt.training.joint_trace import Backward
from staticrt.training.native_node import NotNative, Pair, make_native_node
from staticrt.training.partition import leave_out_running_statistics, read_by_backward, unrepeatable
from staticrt.training.plans import CompiledGraph, Plan
from staticrt.training.recompute import recompute_cheap_values
from staticrt.training.segments import Buckets
from staticrt.training.view_plan import NO_VIEWS, ViewPlan, view_plan

aten = torch.ops.aten
# Batch norm -> positions of its running mean and variance, and of the flag that says that it only updates them.
_BATCH_NORMS = {
    aten._native_batch_norm_legit_functional.default: (3, 4, 5),
    aten.native_batch_norm.default: (3, 4, 5),
}


class JointExecutable:
    """Runs a joint trace's forward; autograd runs its backward.

    Args:
        region: the native autograd node's.
        native: the forward's C++ executable.
        backward: the segments of the backward with their plans.
        layout: per flat output, ("tensor", position among the region's results and then the views) or
            ("constant", object).
        views: makes the results that are views, from inputs and other results; None if the region makes them.
    """

    def __init__(
        self,
        region: _C.Region,
        native: _C.Executable,
        backward: Sequence[CompiledGraph],
        layout: Sequence[tuple[str, Any]],
        views: Callable[..., tuple[Any, ...]] | None,
    ) -> None:
        self.region = region
        self.native = native
        self.backward = backward
        self.layout = layout
        self.views = views

    def run(self, flat_inputs: Sequence[Any]) -> Sequence[Any]:
        """Flat outputs, with their history, for flat inputs."""
        results: Sequence[Any] = self.region.run(*flat_inputs)
        if self.views is not None:
            results = [*results, *self.views(*flat_inputs, *results)]
        return flat_outputs(results, self.layout)

    def node_kinds(self) -> dict[str, int]:
        """Number of operator nodes of the forward and the backward, and the number of the backward's segments."""
        backward = [sum(graph.operators.values()) for graph in self.backward]
        counts = {"forward": self.native.node_counts["total"], "backward": sum(backward)}
        return counts if len(backward) == 1 else {**counts, "segments": len(backward)}


def build_joint(
    traced: TracedGraph, backward: Backward, options: Options, name: str, bucket_limits: Sequence[int] = ()
) -> tuple[TracedGraph, JointExecutable]:
    """Make a joint trace ready to run.

    Args:
        traced: the joint graph: its last inputs are the incoming gradients, its last outputs the gradients.
        backward: what recorded it.
        options: checked options.
        name: for messages.
        bucket_limits: under `DistributedDataParallel`, as of `Buckets`.

    Returns:
        The trace of the forward alone, and what runs it.

    Raises:
        CannotTrace: the node does not serve such a graph.
        LoweringError: with `executor="static"`, a Program cannot express it.
    """
    # Copies that only change a layout would save a tensor with gaps between its elements.
    RemoveNoOps(inference=False)(traced.module)
    joint = _Joint(traced, backward)
    forward, gradients = joint.split()
    made_by_region, views = joint.views()
    count = len(joint.results)
    order = [joint.places.index(index) for index in backward.differentiable]
    pair = Pair(forward, gradients, count, backward.saving, made_by_region, backward.levels, order)
    alone = joint.forward_only()
    rerun, of_model = _Rerun(alone).call, frozenset[int]()
    if backward.functions is not None:
        if backward.functions.may_differ and not options.double_backward:
            raise CannotTrace("a custom autograd Function, and the option double_backward=False")
        rerun = backward.functions.model(traced, joint.places)
        of_model = frozenset(i for i, spec in enumerate(traced.inputs) if spec.kind != "user")
    replay = Replay(rerun, name, joint.unread(), backward.functions, of_model)
    replay.attach_to_results(joint.written, count, traced.random)
    plan = Plan(forward, options, count, "forward")
    try:
        region, compiled = make_native_node(
            pair,
            plan,
            joint.differentiable,
            len(joint.inputs),
            options,
            replay,
            name,
            Buckets(bucket_limits, joint.of_model) if bucket_limits else None,
        )
    except NotNative as error:
        raise CannotTrace(f"the native autograd node cannot run it: {error}") from error
    assert plan.native is not None
    kept = traced.inputs[: len(joint.inputs)]  # incoming gradients come last
    trace = dataclasses.replace(traced, module=alone, inputs=kept, route="training")
    return trace, JointExecutable(region, plan.native, compiled, joint.layout, views)


class _Joint:
    """The parts of a joint graph.

    Attributes:
        inputs: placeholders of the forward.
        results: nodes of the tensors that it computes, each once.
        layout: as of `JointExecutable`.
        places: the flat output that each of them is.
        differentiable: whether each result has an incoming gradient.
        written: whether each input is written.
        of_model: whether each input is a parameter of the model.
    """

    def __init__(self, traced: TracedGraph, backward: Backward) -> None:
        gm = self._gm = traced.module
        if backward.functions is None:
            formulas.differentiate_again(gm)
        _forget_history(gm)
        if any(node.op not in ("placeholder", "call_function", "output") for node in gm.graph.nodes):
            raise CannotTrace("control flow, or objects of TorchScript, in a joint trace")
        first = max((int(s.target) for s in traced.inputs if s.kind == "user"), default=-1) + 1
        first -= len(backward.differentiable)
        self._tangents: list[fx.Node] = []
        self.inputs: list[fx.Node] = []
        self.written: list[bool] = []
        self.of_model: list[bool] = []
        owners: dict[tuple[int, int], fx.Node] = {}
        values = iter(traced.values)
        for spec, node in zip(traced.inputs, gm.graph.find_nodes(op="placeholder"), strict=True):
            if spec.kind == "user" and int(spec.target) >= first:
                node.target = f"tangents_{int(spec.target) - first}"
                self._tangents.append(node)
                continue
            owners[(0, int(spec.target)) if spec.kind == "user" else (id(next(values)), -1)] = node
            self.inputs.append(node)
            self.written.append(spec.mutated)
            self.of_model.append(spec.kind == "parameter" or spec.weight)
        leave_out_running_statistics(gm)
        outputs = list(traced.outputs())
        self._aliases: list[fx.Node] = []  # further results
        gradients = outputs[backward.num_results :]
        given = dict(zip((owners[source] for source in backward.sources), gradients, strict=False))
        self._gradients = [given.get(node) for node in self.inputs]
        for whole, tangent in zip(gradients[len(backward.sources) :], self._tangents, strict=False):
            self._gradients.append(_without(whole, tangent))
        self._find_results(outputs[: backward.num_results], backward)
        self._backward = self._nodes_of_backward()

    def _find_results(self, outputs: Sequence[Any], backward: Backward) -> None:
        self.results: list[fx.Node] = []
        self.places: list[int] = []
        self.layout: list[tuple[str, Any]] = []
        self.differentiable: list[bool] = []
        for index, out in enumerate(outputs):
            if isinstance(out, fx.Node) and not isinstance(out.meta.get("val"), torch.Tensor):
                raise CannotTrace("a result is a number that depends on sizes")
            if index in backward.own and out not in self.results:
                self.results.append(out)
                self.places.append(index)
                self.differentiable.append(index in backward.differentiable)
        if backward.functions is not None and self.places and self.places[-1] >= backward.num_outputs:
            raise CannotTrace("a custom autograd Function, and results that view what is none")
        places = {node: place for place, node in enumerate(self.results)}
        for out in outputs[: backward.num_outputs]:
            if not isinstance(out, fx.Node):
                self.layout.append(("constant", out))
                continue
            if out not in places:
                places[out] = len(places)
                self._aliases.append(out)
            self.layout.append(("tensor", places[out]))
        aliases = AliasInfo(self._gm)
        storages = [aliases.storage(node) for node in self.results]
        if len(set(storages)) != len(storages):
            raise CannotTrace("two results share memory")
        if not {aliases.storage(node) for node in self.inputs}.isdisjoint(storages):
            raise CannotTrace("a result is an input, or a view of one")

    def views(self) -> tuple[ViewPlan, Callable[..., tuple[Any, ...]] | None]:
        """How the region makes the results that are views; or, if it cannot, a function of all inputs and results.

        Raises:
            CannotTrace: such a result is not a view by operators of the graph.
        """
        graph = QuickGraph()
        env: dict[fx.Node, fx.Node] = {}
        for number, node in enumerate((*self.inputs, *self.results)):
            env[node] = graph.placeholder(f"given_{number}")

        def made(node: fx.Node) -> fx.Node:
            if node not in env:
                if node.op != "call_function" or (_is_tensor(node) and not is_view(node)):
                    raise CannotTrace("a result shares memory and is not a view")
                for source in node.all_input_nodes:
                    made(source)
                env[node] = graph.node_copy(node, env.__getitem__)
            return env[node]

        graph.output(tuple([made(node) for node in self._aliases]))
        if any(node.meta.get(NO_GRAD) for node in graph.nodes):
            return NO_VIEWS, _Rerun(fx.GraphModule({}, graph)).call
        plan = view_plan(graph)
        return (plan, None) if plan is not None else (NO_VIEWS, fx.GraphModule({}, graph).forward)

    def _nodes_of_backward(self) -> set[fx.Node]:
        """The nodes recorded in the backward, without numbers computed from sizes."""
        found = set(self._tangents)
        for node in self._gm.graph.nodes:
            if node.op != "call_function":
                continue
            depends = any(source in found for source in node.all_input_nodes)
            if node.target is aten.copy_.default:
                if depends:
                    raise CannotTrace("its backward writes an input")
            elif depends or (
                BACKWARD in node.meta and node.target is not operator.getitem and _is_tensor(node)
            ):
                found.add(node)
                if not is_pure(node) and not _only_computes(node):
                    raise CannotTrace(f"its backward calls {node.target}")
        if found.intersection(self.results):
            raise CannotTrace("a result is computed in the backward")
        return found

    def split(self) -> tuple[fx.GraphModule, fx.GraphModule]:
        """The forward and the backward graph."""
        buffers = [i for i, gradient in enumerate(self._gradients) if gradient is None]
        saved = self._read()  # adds states of the generator
        pinned = {node.name for node in unrepeatable(self._gm, buffers)}
        kept = {node.name for node in read_by_backward(self._gm)}
        tensors = [node for node in saved if _is_tensor(node)]
        sizes = [node for node in saved if not _is_tensor(node)]
        written = {node for node, writes in zip(self.inputs, self.written, strict=True) if writes}
        if written.intersection(tensors):
            raise CannotTrace("its backward reads an input that it writes")
        forward = self._copy(
            [node for node in self._gm.graph.nodes if node not in self._backward and node.op != "output"],
            [*self.results, *tensors, *sizes],
        )
        backward = self._make_backward([*sizes, *tensors])
        recompute_cheap_values(forward, backward, len(self.results), pinned, kept)
        return forward, backward

    def _read(self) -> list[fx.Node]:
        """The forward's values to save, in order: those that the backward reads, without views and recomputed values."""
        forward = [n for n in self._gm.graph.nodes if n not in self._backward and n.op != "output"]
        recomputed = self._recomputed = Recomputed(forward)
        wanted: set[fx.Node] = set()
        stack = [source for node in self._backward for source in node.all_input_nodes]
        stack += [g for g in self._gradients if isinstance(g, fx.Node)]
        again: set[fx.Node] = set()
        while stack:
            node = stack.pop()
            if node in self._backward or node in wanted or node in again:
                continue
            if is_view(node) or (node in recomputed and _is_tensor(node)):
                again.add(node)
                stack += recomputed.inputs(node)
            else:
                wanted.add(node)
        return [node for node in self._gm.graph.nodes if node in wanted]

    def _make_backward(self, saved: Sequence[fx.Node]) -> fx.GraphModule:
        graph = QuickGraph()
        env: dict[fx.Node, fx.Node] = {}
        for node in (*saved, *self._tangents):
            env[node] = graph.placeholder(str(node.target) if node in self._tangents else node.name)
            env[node].meta.update(node.meta)

        def add(node: fx.Node) -> None:
            """The copy of a node; first copies the nodes of the forward that it reads and that are missing."""
            stack = [node]
            while stack:
                missing = [source for source in self._recomputed.inputs(stack[-1]) if source not in env]
                if missing:
                    stack.append(missing[0])
                    continue
                made = stack.pop()
                env[made] = self._recomputed.add(made, graph, env)

        for node in self._gm.graph.nodes:
            if node in self._backward and node not in env:
                add(node)
        for gradient in self._gradients:
            if isinstance(gradient, fx.Node) and gradient not in env:
                add(gradient)
        graph.output(tuple(env[g] if isinstance(g, fx.Node) else None for g in self._gradients))
        graph.eliminate_dead_code(is_impure_node=_stays)
        return _LazyGraphModule({}, graph)

    def _copy(self, nodes: Sequence[fx.Node], outputs: Sequence[fx.Node]) -> fx.GraphModule:
        graph = QuickGraph()
        env: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            if node not in self._tangents:
                env[node] = graph.node_copy(node, env.__getitem__)
        graph.output(tuple(env[node] for node in outputs))
        graph.eliminate_dead_code(is_impure_node=_stays)
        return _LazyGraphModule({}, graph)

    def forward_only(self) -> fx.GraphModule:
        """The forward without saved values."""
        nodes = [node for node in self._gm.graph.nodes if node not in self._backward and node.op != "output"]
        return self._copy(nodes, self.results)

    def unread(self) -> frozenset[int]:
        """Positions of written inputs whose values no result depends on, such as running statistics."""
        reached: set[fx.Node] = set()
        stack = list(self.results)
        while stack:
            node = stack.pop()
            if node in reached:
                continue
            reached.add(node)
            ignored: tuple[Any, ...] = ()
            if node.target in _BATCH_NORMS:
                mean, variance, training = _BATCH_NORMS[node.target]
                if node.args[training] is True:
                    ignored = (node.args[mean], node.args[variance])
            stack += [source for source in node.all_input_nodes if source not in ignored]
        return frozenset(
            i
            for i, (node, written) in enumerate(zip(self.inputs, self.written, strict=True))
            if written and node not in reached
        )


def _without(total: Any, tangent: fx.Node) -> fx.Node | None:
    """What autograd adds to a result's incoming gradient, from the sum of all; None for nothing.

    Raises:
        CannotTrace: it is no sum that begins with the incoming gradient.
    """
    others: list[fx.Node] = []
    node = total
    while node is not tangent:
        if node.target is not aten.add.Tensor or node.kwargs or len(node.args) != 2:
            raise CannotTrace("it is not known what a result adds to the gradient of another one")
        node, other = node.args
        others.append(other)
    found = others.pop() if others else None
    with tangent.graph.inserting_before(total if others else None):
        for other in reversed(others):
            found = tangent.graph.call_function(aten.add.Tensor, (found, other))
            found.meta.update(total.meta)
    return found


def _forget_history(gm: fx.GraphModule) -> None:
    """Fake values without autograd's graph of the recorded run, which would keep nodes of the real parameters alive."""
    made: dict[int, tuple[Any, Any]] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)([plain(item) for item in value])
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        if id(value) not in made:
            own = view_of(value.fake_mode, value, value.shape, value.stride())  # type: ignore[attr-defined]
            made[id(value)] = (value, like_bits(own, value))
        return made[id(value)][1]

    for node in gm.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = plain(node.meta["val"])


class _Rerun:
    """Runs a recorded forward with autograd, without its writes to inputs."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module

    @functools.cached_property
    def _operators(self) -> fx.Interpreter:
        return _Operators(self._module)

    def call(self, *inputs: Any, ends: Sequence[int] = (), end: Callable[..., Any] | None = None) -> Any:
        """The results; for those with the numbers `ends` stands what `end` makes of them, also for what reads them."""
        with without_autocast():
            operators = self._operators
            if ends:
                operators = _Operators(self._module)
                results: Any = self._module.graph.output_node().args[0]
                operators.ends = dict.fromkeys((results[i] for i in ends), end)
            return operators.run(*inputs)


class _Operators(fx.Interpreter):
    """Run a node, with gradients off where they were off when it was recorded.

    Attributes:
        ends: what stands for the values of some nodes.
    """

    ends: Mapping[fx.Node, Any] = types.MappingProxyType({})

    def run_node(self, node: fx.Node) -> Any:
        """As the base class."""
        value = self._value(node)
        return self.ends[node](value) if node in self.ends else value

    def _value(self, node: fx.Node) -> Any:
        if node.target is aten.copy_.default:  # nothing reads its result
            return None
        if not node.meta.get(NO_GRAD):
            return super().run_node(node)
        with torch.no_grad():
            return super().run_node(node)


def _is_tensor(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(item, torch.Tensor) for item in value)
    )


def _only_computes(node: fx.Node) -> bool:
    """Whether an operator of another library writes nothing and draws nothing, and so may be part of a gradient."""
    facts = node_facts(node)
    return may_keep_arguments(node, False) and not facts.mutates and not facts.random


def _stays(node: fx.Node) -> bool:
    return node.op in ("placeholder", "output") or not is_pure(node)
