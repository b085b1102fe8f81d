"""Door B: the two graphs of a region behind an autograd node of our own, written in C++.

AOTAutograd still finds the graphs; its Python runtime between them is left out, where it would only hand tensors on:
a region that writes no input that autograd sees, and whose results are fresh tensors. `csrc/runtime/backward_node.h`
keeps saved tensors, versions, hooks, undefined and unneeded gradients as any node of torch does.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from staticrt import _compat
from staticrt.native import _C
from staticrt.options import Options
from staticrt.passes.aliasing import AliasInfo
from staticrt.training.copied import copied
from staticrt.training.plans import CompiledGraph, Plan
from staticrt.training.replay import RegionCall, Replay
from staticrt.training.undefined import without_gradients

# Results that are tensors of their own for autograd.
_FRESH = ("non_alias", "unsafe_view_alias")


class NotDoorB(Exception):
    """This region needs what only AOTAutograd's runtime does; the message says what."""


def gate(metadata: Any) -> None:
    """Refuse regions that need more than tensors handed on.

    Args:
        metadata: upstream's `ViewAndMutationMeta`.

    Raises:
        NotDoorB: what the region needs.
    """
    if metadata.num_mutated_inp_runtime_indices:
        raise NotDoorB("it writes an input that autograd sees")
    for info in metadata.output_info:
        if info.output_type.name not in _FRESH:
            raise NotDoorB(f"a result is an alias ({info.output_type.name})")
        if not issubclass(info.raw_type, torch.Tensor):
            raise NotDoorB("a result is no tensor")
    if metadata.num_intermediate_bases or metadata.tokens:
        raise NotDoorB("it has effects or results that view each other")
    if getattr(metadata, "is_rng_op_functionalized", False) or metadata.num_graphsafe_rng_states:
        raise NotDoorB("its random state is an input")
    if metadata.indices_of_inputs_that_requires_grad_with_mutations_in_bw:
        raise NotDoorB("its backward writes an input")
    if any(
        type(meta).__name__ != "PlainTensorMeta" and type(meta) is not int
        for meta in metadata.subclass_inp_meta
    ):
        raise NotDoorB("an input is a tensor subclass")


class Pair:
    """The forward and backward graphs of a region as the partitioner made them.

    Args:
        forward, backward: copied, as compilers change what they get.
        num_outputs: results of the region, the first outputs of the forward.
    """

    def __init__(self, forward: fx.GraphModule, backward: fx.GraphModule, num_outputs: int) -> None:
        self.forward = copied(forward)
        self.backward = copied(backward)
        self.num_outputs = num_outputs


def open_door_b(
    pair: Pair, forward: Plan, metadata: Any, num_inputs: int, options: Options, replay: Replay, name: str
) -> tuple[_C.Region, CompiledGraph]:
    """A region behind the node of our own.

    Args:
        pair: its graphs.
        forward: the plan of the forward graph.
        metadata: upstream's `ViewAndMutationMeta`.
        num_inputs: flat inputs of the region.
        options: checked options.
        replay: runs the region again to differentiate it twice.
        name: for messages.

    Returns:
        The region, and its backward graph for reports.

    Raises:
        NotDoorB: the region does not fit.
    """
    gate(metadata)
    if not torch.is_grad_enabled():
        raise NotDoorB("it switches gradients on itself")
    region = _Region(pair, metadata, num_inputs, options, replay)
    if forward.native is None:
        raise NotDoorB("its forward graph runs operator by operator")
    facts = {
        "name": name,
        "forward": forward.native,
        "num_inputs": num_inputs,
        "outputs": region.outputs(forward),
        "saved": region.saved,
        "backward_inputs": region.backward_inputs,
        "gradient_outputs": region.gradient_outputs,
        "gradient_orders": [_order(node) for node in region.tangents],
        "keeps_inputs": options.double_backward,
        "unread_inputs": [i in replay.unread for i in range(num_inputs)],
        "draws_random": replay.random,
    }
    whole = region.compiled.plans.get(())
    if whole.native is None:
        raise NotDoorB(f"its backward graph runs operator by operator: {whole.fallback}")
    return _C.Region(facts, region.make_plan, region.differentiate), region.compiled


class _Region:
    """What the C++ node has to know of two graphs."""

    def __init__(self, pair: Pair, metadata: Any, num_inputs: int, options: Options, replay: Replay) -> None:
        self._backward = pair.backward
        self._options = options
        self._replay = replay
        self._metadata = metadata
        inputs = pair.forward.graph.find_nodes(op="placeholder")
        results = list(pair.forward.graph.output_node().args[0])  # type: ignore[arg-type]
        self._num_results = len(results)
        if len(inputs) != num_inputs or pair.num_outputs != len(metadata.output_info):
            raise NotDoorB("its graphs take other inputs than the region")
        self.differentiable = [
            info.requires_grad and isinstance(node, fx.Node)
            for info, node in zip(metadata.output_info, results, strict=False)
        ]
        self.gradient_outputs = [i for i, wanted in enumerate(self.differentiable) if wanted]
        self._match(inputs, results, pair)
        first = len(self.saved)
        optional = range(first, first + len(self.tangents))
        # The backward graph with its plans by undefined gradients; reports show it.
        self.compiled = CompiledGraph(copied(self._backward), options, "backward", optional)
        gradients: Any = self._backward.graph.output_node().args[0]
        if len(gradients) != num_inputs:
            raise NotDoorB("its backward gives other gradients than one for each input")

    def _match(self, inputs: list[fx.Node], results: list[Any], pair: Pair) -> None:
        """Find what each input of the backward graph is.

        The forward's outputs are results, saved tensors, saved sizes; the backward's inputs are saved sizes, saved
        tensors, incoming gradients.
        """
        count = pair.num_outputs
        placeholders = self._backward.graph.find_nodes(op="placeholder")
        self.tangents = [node for node in placeholders if _compat.is_tangent(node)]
        kept = placeholders[: len(placeholders) - len(self.tangents)]
        saved = results[count:]
        sizes = sum(not isinstance(node.meta.get("val"), torch.Tensor) for node in kept)
        order = [*range(len(saved) - sizes, len(saved)), *range(len(saved) - sizes)]
        if len(saved) != len(kept) or any(_compat.is_tangent(node) for node in kept):
            raise NotDoorB("its backward reads what the forward does not save")
        if len(self.tangents) != len(self.gradient_outputs):
            raise NotDoorB("a result has no incoming gradient of its own")
        aliases = AliasInfo(pair.forward)
        owners: list[dict[Any, int]] = [{}, {}]  # storage -> input, storage -> result
        for of, nodes in zip(owners, (inputs, results[:count]), strict=True):
            for i, node in enumerate(nodes):
                if isinstance(node, fx.Node):
                    of.setdefault(aliases.storage(node), i)
        self.saved: list[tuple[str, int, int, int]] = []
        for position, placeholder in zip(order, kept, strict=True):
            node = saved[position]
            if isinstance(node.meta.get("val"), torch.Tensor) != isinstance(
                placeholder.meta.get("val"), torch.Tensor
            ):
                raise NotDoorB("its graphs do not agree on what is saved")
            if node in inputs:
                self.saved.append(("input", inputs.index(node), -1, -1))
            elif node in results[:count]:
                i = results.index(node)
                self.saved.append(("output" if self.differentiable[i] else "result", i, -1, -1))
            else:
                storage = aliases.storage(node)
                owner = [of.get(storage, -1) for of in owners]
                self.saved.append(("result", count + position, owner[0], owner[1]))
        self.backward_inputs = [*range(len(kept)), *(-1 - k for k in range(len(self.tangents)))]

    def outputs(self, forward: Plan) -> list[tuple[int, bool]]:
        """Of each result of the region, its position among the program's outputs and whether it has a gradient."""
        layout = forward._outputs
        if len(layout) != self._num_results or any(kind != "tensor" for kind, _item in layout):
            raise NotDoorB("a result is a constant")
        if [item for _kind, item in layout] != list(range(len(layout))):
            raise NotDoorB("its forward program has other outputs than its graph")
        return [(i, wanted) for i, wanted in enumerate(self.differentiable)]

    def make_plan(
        self, undefined: Sequence[bool], unneeded: Sequence[bool]
    ) -> tuple[_C.Executable | Callable[[list[Any]], list[Any]], list[int]]:
        """The backward program for calls without these incoming gradients that need none for these inputs.

        Returns:
            The program, or where it does not lower a function that runs its operators; of each input of the region,
            which of its outputs is the gradient, -1 for none.
        """
        missing = [len(self.saved) + number for number, absent in enumerate(undefined) if absent]
        if not any(unneeded):
            return self._native(self.compiled.plans.get(tuple(missing)))
        graph = copied(self._backward)
        output = graph.graph.output_node()
        gradients: Any = output.args[0]
        output.args = (tuple(None if skip else item for item, skip in zip(gradients, unneeded, strict=True)),)
        without_gradients(graph, missing)
        return self._native(Plan(graph, self._options))

    @staticmethod
    def _native(plan: Plan) -> tuple[_C.Executable | Callable[[list[Any]], list[Any]], list[int]]:
        if plan.native is None:
            return plan.run, list(range(plan.num_outputs))
        return plan.native, [item if kind == "tensor" else -1 for kind, item in plan._outputs]

    def differentiate(
        self, inputs: list[Any], needed: list[bool], gradients: list[Any], random_state: torch.Tensor | None
    ) -> tuple[Any, ...]:
        """Gradients with a history: the region runs again eagerly."""
        written = self._replay.written
        versions = [
            value._version if isinstance(value, torch.Tensor) and not written[i] else None
            for i, value in enumerate(inputs)
        ]
        call = RegionCall(inputs, versions, random_state)
        context = types.SimpleNamespace(_staticrt_call=call, needs_input_grad=needed)
        return self._replay._differentiate(context, gradients)


def _order(tangent: fx.Node) -> list[int]:
    """The layout that a gradient was traced in: its dimensions, the outermost in memory first; [] for contiguous.

    Upstream lays a gradient out as the result it belongs to. With symbolic sizes only torch's memory formats occur,
    and strides are not compared: it would be a guard.
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
