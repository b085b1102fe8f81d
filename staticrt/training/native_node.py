"""The native autograd node: an autograd node in C++ that joins the forward and backward graphs of a region.

The graphs come from AOTAutograd or from a joint trace (`joint_program.py`). AOTAutograd's Python runtime between them is
skipped where it would only pass tensors on: the region writes no input visible to autograd, and its results are fresh
tensors. The node (`csrc/runtime/autograd/backward_node.h`) handles saved tensors, versions, hooks, undefined and unneeded
gradients like any node of torch.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.quick_graph import copied
from staticrt.native import _C
from staticrt.options import Options
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.rewrite import fake_mode_of, insert_call
from staticrt.training.cast_backward import CastBackward
from staticrt.training.double_backward import RegionCall, Replay
from staticrt.training.eager_nodes import EagerNodes
from staticrt.training.plans import CompiledGraph, Plan
from staticrt.training.segments import Buckets, Segment, cut, whole
from staticrt.training.undefined import without_gradients
from staticrt.training.view_plan import NO_VIEWS, ViewPlan

aten = torch.ops.aten
# See `_Segment.make_plan`.
_Plan: TypeAlias = tuple[_C.Executable | Callable[[list[Any]], list[Any]], list[int], list[int], list[int]]
# Output types that autograd treats as fresh tensors.
_FRESH = ("non_alias", "unsafe_view_alias")


class NotNative(Exception):
    """The region needs AOTAutograd's runtime; the message says why."""


def gate(metadata: Any) -> None:
    """Refuse regions that need more of AOTAutograd's runtime than passing tensors on.

    Args:
        metadata: upstream's `ViewAndMutationMeta`.

    Raises:
        NotNative: the message says what the region needs.
    """
    if metadata.grad_enabled_mutation is not None:
        raise NotNative("it leaves another grad mode than it found")
    if metadata.num_mutated_inp_runtime_indices:
        raise NotNative("it writes an input that autograd sees")
    for info in metadata.output_info:
        if info.output_type.name not in _FRESH:
            raise NotNative(f"a result is an alias ({info.output_type.name})")
        if not issubclass(info.raw_type, torch.Tensor):
            raise NotNative("a result is not a tensor")
    if metadata.num_intermediate_bases or metadata.tokens:
        raise NotNative("it has effects, or results that are views of each other")
    if getattr(metadata, "is_rng_op_functionalized", False) or metadata.num_graphsafe_rng_states:
        raise NotNative("its random state is an input")
    if metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw:
        raise NotNative("its backward writes an input")
    if any(
        type(meta).__name__ != "PlainTensorMeta" and type(meta) is not int
        for meta in metadata.subclass_inp_meta
    ):
        raise NotNative("an input is a tensor subclass")


class Pair:
    """The partitioned forward and backward graphs of a region.

    Args:
        forward, backward: they must not be changed afterwards.
        num_outputs: results of the region, the first outputs of the forward.
        saving: the autograd nodes that save tensors, as of `EagerNodes`.
        views: further results of the region, which view inputs or others.
        levels: for each incoming gradient, as of `segments.cut`; () for AOTAutograd's.
        gradient_outputs: for each incoming gradient, its result, in the order in which autograd made their nodes;
            () for the order of the results.
    """

    def __init__(
        self,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        num_outputs: int,
        saving: frozenset[int] | None = None,
        views: ViewPlan = NO_VIEWS,
        levels: Sequence[int] = (),
        gradient_outputs: Sequence[int] = (),
    ) -> None:
        self.forward = forward
        self.backward = backward
        self.num_outputs = num_outputs
        self.saving = saving
        self.views = views
        self.levels = levels
        self.gradient_outputs = gradient_outputs


def make_native_node(
    pair: Pair,
    forward: Plan,
    differentiable: Sequence[bool],
    num_inputs: int,
    options: Options,
    replay: Replay,
    name: str,
    buckets: Buckets | None = None,
) -> tuple[_C.Region, list[CompiledGraph]]:
    """Put a region behind the native autograd node.

    Args:
        pair: its graphs.
        forward: the plan of the forward graph.
        differentiable: whether each result needs a gradient.
        num_inputs: flat inputs of the region.
        options: checked options.
        replay: runs the region again to differentiate it twice.
        name: for messages.
        buckets: where to cut its backward into segments.

    Returns:
        The region, and its backward graphs for reports, in the order in which they run.

    Raises:
        NotNative: the region does not fit.
    """
    if not torch.is_grad_enabled():
        raise NotNative("it switches gradients on itself")
    region = _Region(pair, differentiable, num_inputs, replay)
    if forward.native is None:
        raise NotNative("its forward graph runs operator by operator")
    parts = [whole(pair.backward)]
    if pair.levels:
        parts = cut(pair.backward, num_inputs, pair.levels, buckets)
    segments = [_Segment(part, region, pair.saving, options) for part in parts]
    facts = {
        "name": name,
        "forward": forward.native,
        "num_inputs": num_inputs,
        "outputs": region.outputs(forward),
        "views": pair.views,
        "segments": [segment.facts() for segment in segments],
        "gradient_outputs": region.gradient_outputs,
        "gradient_orders": [_order(node) for node in region.tangents],
        "keeps_inputs": options.double_backward,
        "unread_inputs": [i in replay.unread for i in range(num_inputs)],
        "draws_random": replay.random,
        "may_differ": replay.functions is not None
        and bool(replay.functions.may_differ or replay.functions.nonlinear),
        "max_plans": options.max_plans,
        "detached_inputs": region.detached_inputs,
    }
    for segment in segments:
        # Of several results, a loss among them, few get a gradient; which ones is known in the backward.
        if len(segment.compiled.incoming) > 1 and options.executor != "static":
            continue
        default = segment.compiled.plans.get(())
        if default.native is None:
            raise NotNative(f"its backward graph runs operator by operator: {default.fallback}")

    # Autograd calls this in a backward, also one that a function compiled by Dynamo runs.
    @torch_private.hidden_from_dynamo
    def make_plan(index: int, undefined: list[bool], unneeded: list[bool]) -> _Plan:
        return segments[index].make_plan(undefined, unneeded)

    compiled = [segment.compiled for segment in segments]
    differs = CastBackward(pair.backward, replay).differs
    return _C.Region(facts, make_plan, region.differentiate, differs), compiled


class _Region:
    """The description of a region's two graphs for the C++ nodes."""

    def __init__(self, pair: Pair, differentiable: Sequence[bool], num_inputs: int, replay: Replay) -> None:
        self._backward = pair.backward
        self._replay = replay
        inputs = pair.forward.graph.find_nodes(op="placeholder")
        results = list(pair.forward.graph.output_node().args[0])  # type: ignore[arg-type]
        self._num_results = len(results)
        if len(inputs) != num_inputs or pair.num_outputs != len(differentiable):
            raise NotNative("the inputs of its graphs differ from those of the region")
        self.differentiable = [
            wanted and isinstance(node, fx.Node)
            for wanted, node in zip(differentiable, results, strict=False)
        ]
        self.gradient_outputs = list(pair.gradient_outputs) or [
            i for i, wanted in enumerate(self.differentiable) if wanted
        ]
        self._match(inputs, results, pair)
        gradients: Any = self._backward.graph.output_node().args[0]
        if len(gradients) < num_inputs:
            raise NotNative("its backward does not return one gradient per input")
        self.detached_inputs = [
            i
            for i, (node, gradient) in enumerate(zip(inputs, gradients, strict=False))
            if gradient is None and isinstance(node.meta.get("val"), torch.Tensor)
        ]

    def _match(self, inputs: list[fx.Node], results: list[Any], pair: Pair) -> None:
        """Find the origin of each input of the backward graph.

        The forward's outputs are results, saved tensors, saved sizes; the backward's inputs are saved sizes, saved
        tensors, incoming gradients.
        """
        count = pair.num_outputs
        placeholders = self._backward.graph.find_nodes(op="placeholder")
        self.tangents = [node for node in placeholders if torch_private.is_tangent(node)]
        for tangent in self.tangents:
            _take_plain(tangent)
        kept = placeholders[: len(placeholders) - len(self.tangents)]
        saved = results[count:]
        sizes = sum(not isinstance(node.meta.get("val"), torch.Tensor) for node in kept)
        order = [*range(len(saved) - sizes, len(saved)), *range(len(saved) - sizes)]
        if len(saved) != len(kept) or any(torch_private.is_tangent(node) for node in kept):
            raise NotNative("its backward reads values that the forward does not save")
        if len(self.tangents) != len(self.gradient_outputs):
            raise NotNative("its backward does not take one gradient per result")
        aliases = AliasInfo(pair.forward)
        owners: list[dict[Any, int]] = [{}, {}]  # storage -> input, storage -> result
        for of, nodes in zip(owners, (inputs, results[:count]), strict=True):
            for i, node in enumerate(nodes):
                if isinstance(node, fx.Node):
                    of.setdefault(aliases.storage(node), i)
        self.saved: list[tuple[str, int, int, int]] = []
        self.lent: set[int] = set()  # saved tensors that only the node has
        holders = Counter(map(aliases.storage, (*inputs, *results)))
        for position, placeholder in zip(order, kept, strict=True):
            node = saved[position]
            if isinstance(node.meta.get("val"), torch.Tensor) and holders[aliases.storage(node)] == 1:
                self.lent.add(len(self.saved))
            if isinstance(node.meta.get("val"), torch.Tensor) != isinstance(
                placeholder.meta.get("val"), torch.Tensor
            ):
                raise NotNative("its graphs do not agree on what is saved")
            if node in inputs:
                self.saved.append(("input", inputs.index(node), -1, -1))
            elif node in results[:count]:
                i = results.index(node)
                self.saved.append(("output" if self.differentiable[i] else "result", i, -1, -1))
            else:
                storage = aliases.storage(node)
                owner = [of.get(storage, -1) for of in owners]
                self.saved.append(("result", count + position, owner[0], owner[1]))

    def outputs(self, forward: Plan) -> list[tuple[int, bool]]:
        """Per result of the region: its position among the program's outputs, and whether it has a gradient."""
        assert forward.lowered is not None
        layout = forward.lowered.outputs
        if len(layout) != self._num_results or any(kind != "tensor" for kind, _item in layout):
            raise NotNative("a result is a constant")
        if [item for _kind, item in layout] != list(range(len(layout))):
            raise NotNative("the outputs of its forward program differ from those of its graph")
        return [(i, wanted) for i, wanted in enumerate(self.differentiable)]

    @torch_private.hidden_from_dynamo
    def differentiate(
        self,
        inputs: list[Any],
        needed: list[bool],
        gradients: list[Any],
        ends: list[int],
        random_state: torch.Tensor | None,
    ) -> tuple[Any, ...]:
        """Gradients that can be differentiated again, as of `Replay.differentiate`: the region runs again eagerly."""
        written = self._replay.written
        versions = [
            value._version if isinstance(value, torch.Tensor) and not written[i] else None
            for i, value in enumerate(inputs)
        ]
        call = RegionCall(inputs, versions, random_state)
        context = types.SimpleNamespace(_staticrt_call=call, needs_input_grad=needed)
        return self._replay._differentiate(context, gradients, ends)


class _Segment:
    """A part of the backward, with its plans.

    Attributes:
        compiled: its graph with its plans by undefined gradients; reports show it.
    """

    def __init__(
        self, part: Segment, region: _Region, saving: frozenset[int] | None, options: Options
    ) -> None:
        self._graph = part.graph
        self._part = part
        self._options = options
        self._eager_nodes = EagerNodes(part.graph, saving)
        self._saved = [region.saved[i] for i in part.saved]
        first = len(self._saved)
        incoming = range(first, first + part.num_incoming)
        self._lent = [k for k, i in enumerate(part.saved) if i in region.lent]
        self._lent += incoming[len(part.tangents) :]  # values of earlier segments have no other owner
        self.compiled = CompiledGraph(part.graph, options, "backward", incoming, lent=self._lent)

    def facts(self) -> dict[str, Any]:
        """The segment as C++ takes it."""
        return {
            "saved": self._saved,
            "eager_nodes": self._eager_nodes.count,
            "readers": self._eager_nodes.readers,
            "backward_inputs": [
                *range(len(self._saved)),
                *(-1 - k for k in range(self._part.num_incoming)),
            ],
            "tangents": list(self._part.tangents),
            "num_incoming": self._part.num_incoming,
            "leads": self._part.leads,
            "inputs": list(self._part.inputs),
        }

    def make_plan(self, undefined: Sequence[bool], unneeded: Sequence[bool]) -> _Plan:
        """The backward program for some undefined incoming gradients and unneeded gradients of inputs.

        Returns:
            The program, or a function that runs the operators if the graph cannot be lowered; the index of each
            input's gradient among the outputs, -1 for none; eager's nodes that it stands for, and what these read of
            each saved value, as of `EagerNodes`.
        """
        missing = [len(self._saved) + number for number, absent in enumerate(undefined) if absent]
        graph = self._graph
        if missing or any(unneeded):
            graph = copied(graph)
            output = graph.graph.output_node()
            gradients: Any = output.args[0]
            output.args = (
                tuple(None if skip else item for item, skip in zip(gradients, unneeded, strict=True)),
            )
            without_gradients(graph, missing)
        run = self._eager_nodes.run_by(undefined, unneeded)
        reads = self._eager_nodes.reads(run, graph)
        plan = (
            Plan(graph, self._options, None, "backward", self._lent)
            if any(unneeded)
            else self.compiled.plans.get(tuple(missing))
        )
        return (*self._native(plan), run, reads)

    @staticmethod
    def _native(plan: Plan) -> tuple[_C.Executable | Callable[[list[Any]], list[Any]], list[int]]:
        if plan.lowered is None:
            return plan.run, list(range(plan.num_outputs))
        gradients = [item if kind == "tensor" else -1 for kind, item in plan.lowered.outputs]
        return plan.lowered.native, gradients


def _take_plain(tangent: fx.Node) -> None:
    """Make an incoming gradient that was traced as a lazy conjugate or negative, as its result is, from a plain tensor."""
    value: Any = tangent.meta["val"]
    bits = [
        (value.is_conj(), aten.conj_physical.default, aten._conj.default),
        (value.is_neg(), aten.neg.default, aten._neg_view.default),
    ]
    calls = [call for is_set, *pair in bits if is_set for call in pair]
    if not calls:
        return
    readers, made = list(tangent.users), tangent
    with fake_mode_of(value):
        tangent.meta["val"] = value.resolve_conj().resolve_neg()
    first = next(node for node in tangent.graph.nodes if node.op != "placeholder")
    for call in calls:
        made = insert_call(first, call, (made,))
    for reader in readers:
        reader.replace_input_with(tangent, made)


def _order(tangent: fx.Node) -> list[int]:
    """The traced layout of a gradient: its dimensions, the outermost in memory first; [] for contiguous.

    AOTAutograd gives a gradient the strides of its result. With symbolic sizes only torch's memory formats occur;
    comparing symbolic strides would add guards.
    """
    value: Any = tangent.meta["val"]
    if value.is_contiguous():
        return []
    for dims, format in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if value.dim() == dims and value.is_contiguous(memory_format=format):
            return [0, *range(2, dims), 1]
    strides = value.stride()
    if not all(isinstance(number, int) for number in (*value.shape, *strides)):
        return []
    return sorted(range(value.dim()), key=lambda dim: -int(strides[dim]))
