"""Partitions a joint graph into forward and backward so that recomputed values equal the first ones.

AOTAutograd's partitioner recomputes readers of a buffer after the buffer was written, and draws random numbers a second
time if the activation budget is below 1 (pytorch/pytorch #190717, #197039). Here such values are saved.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.frontend.quick_graph import copied
from staticrt.ops import draws, facts_of_call
from staticrt.training.budget import Cut, cut_within, delayed
from staticrt.training.recompute import recompute_cheap_values

aten = torch.ops.aten


def safe_partition(
    joint: fx.GraphModule,
    inputs: Any,
    *,
    num_fwd_outputs: int,
    static_lifetime_input_indices: list[int] | None = None,
    budget: float | None = None,
    **keywords: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Partition a joint graph; values that cannot be recomputed are saved.

    Args:
        joint: placeholders are the region's inputs, then incoming gradients; outputs its results, then gradients.
        inputs: example inputs, as AOTAutograd gives them.
        num_fwd_outputs: how many outputs belong to the forward.
        static_lifetime_input_indices: inputs that outlive the region: parameters and buffers.
        budget: share of the activations that may be saved, 0 to 1; None: torch's own setting.

    Returns:
        The forward and the backward graph.
    """
    leave_out_running_statistics(joint)
    keywords |= {
        "num_fwd_outputs": num_fwd_outputs,
        "static_lifetime_input_indices": static_lifetime_input_indices,
    }
    share = torch_private.budget_value(budget)
    if share >= 1:
        found = _cut(joint, inputs, share, **keywords)
    else:
        found = cut_within(share, lambda share: delayed(_cut(copied(joint), inputs, share, **keywords)))
    return found.forward, found.backward


def _cut(joint: fx.GraphModule, inputs: Any, budget: float, **keywords: Any) -> Cut:
    """The partition for one budget."""
    num_results: int = keywords["num_fwd_outputs"]
    static = keywords["static_lifetime_input_indices"] or []
    whole = budget >= 1
    wanted = {node.name for node in joint.graph.nodes if torch_private.is_saved_by_policy(node)}
    always = wanted | {node.name for node in unrepeatable(joint, static, False)}
    kept = {node.name for node in read_by_backward(joint)} if whole else set()
    values = unrepeatable(joint, static, whole)
    for node in values:
        torch_private.must_save(node)
    pinned = {node.name for node in values}
    with torch_private.memory_budget(budget):
        forward, backward = torch_private.min_cut_partition(joint, inputs, **keywords)
    _save(forward, backward, num_results, pinned)
    _save_results_themselves(forward, num_results)
    recompute_cheap_values(forward, backward, num_results, pinned, kept)
    return Cut(forward, backward, num_results, always)


def unrepeatable(
    joint: fx.GraphModule, static_inputs: list[int], only_eagers_inputs: bool = True
) -> list[fx.Node]:
    """The forward values that must be saved if the backward needs them, in graph order.

    These are random numbers, and the first values computed from a tensor that may have changed by then: an input that
    the region writes, or a buffer.

    Args:
        joint: the joint graph.
        static_inputs: parameters and buffers.
        only_eagers_inputs: also values of inputs that eager would not save, since they may be written before the
            backward: exp(parameter) saves its result, and the optimiser may step in between.
    """
    placeholders = joint.graph.find_nodes(op="placeholder")
    tainted = _written(joint, static_inputs)
    unsaved = set(placeholders) - read_by_backward(joint) - tainted if only_eagers_inputs else set()
    unsaved = {node for node in unsaved if isinstance(node.meta.get("val"), torch.Tensor)}
    backward: set[fx.Node] = {node for node in placeholders if torch_private.is_tangent(node)}
    pinned: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        if any(argument in backward for argument in node.all_input_nodes):
            backward.add(node)
            continue
        reads = [argument for argument in node.all_input_nodes if argument in tainted]
        if draws(node) or any(argument in pinned and _is_getitem(node) for argument in node.all_input_nodes):
            pinned.add(node)
        elif reads and _is_view(node):
            tainted.add(node)
        elif reads and node.target is not aten.copy_.default:
            pinned.add(node)
        elif any(argument in unsaved for argument in node.all_input_nodes):
            if _is_view(node):
                unsaved.add(node)
            elif "recompute" not in node.meta:  # the user's checkpoint decides what is recomputed
                pinned.add(node)
    return [node for node in joint.graph.nodes if node in pinned]


def _written(joint: fx.GraphModule, static_inputs: list[int]) -> set[fx.Node]:
    """Inputs that may have changed by the backward: those that the region writes, and buffers."""
    placeholders = joint.graph.find_nodes(op="placeholder")
    differentiated = torch_private.differentiated_inputs(joint)
    buffers = {placeholders[i] for i in static_inputs if placeholders[i] not in differentiated}
    return torch_private.mutated_inputs(joint) | _copied_into(joint) | buffers


def read_by_backward(joint: fx.GraphModule) -> set[fx.Node]:
    """Inputs that eager saves, because its backward reads them or a view of them."""
    backward: set[fx.Node] = set()
    owner: dict[fx.Node, fx.Node] = {}  # a view of a placeholder -> the placeholder
    read: set[fx.Node] = set()
    for node in joint.graph.nodes:
        if node.op == "placeholder":
            if torch_private.is_tangent(node):
                backward.add(node)
            else:
                owner[node] = node
        elif node.op == "call_function":
            if torch_private.is_backward(node) or any(
                argument in backward for argument in node.all_input_nodes
            ):
                backward.add(node)
                read |= {owner[argument] for argument in node.all_input_nodes if argument in owner}
            elif _is_view(node) and node.all_input_nodes[:1] and node.all_input_nodes[0] in owner:
                owner[node] = owner[node.all_input_nodes[0]]
    return read


def leave_out_running_statistics(joint: fx.GraphModule) -> None:
    """In training, a batch norm's backward reads the batch's statistics, so the running ones need not be saved."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.native_batch_norm_backward.default):
        if len(node.args) > 7 and node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _save(forward: fx.GraphModule, backward: fx.GraphModule, num_results: int, pinned: set[str]) -> None:
    """Save pinned values that AOTAutograd would recompute, and items of tuples where it saves the tuple.

    Its knapsack skips tuples, such as a dropout with its mask, once nothing else is left to choose from.
    """
    output = forward.graph.output_node()
    values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    ours = {node.name: node for node in forward.graph.nodes}
    changed = False
    for node in list(backward.graph.nodes):
        again = node.op == "call_function" and node.name in pinned and node.name in ours
        again = again and not _is_getitem(node)
        many = isinstance(node.meta.get("val"), (tuple, list))
        if not again and not (many and node.op == "placeholder"):
            continue
        changed = True
        own = ours[node.name]
        before = node if node.op == "placeholder" else _first_tensor(backward)
        position = values.index(own) if own in values[num_results:] else num_results
        for part in list(node.users) if many else [node]:
            saved = _part(forward, own, part) if many else own
            values.insert(position, saved)
            position += 1
            with backward.graph.inserting_before(before):
                placeholder = backward.graph.placeholder(f"{saved.name}_saved")
            placeholder.meta.update(part.meta)
            part.replace_all_uses_with(placeholder)
            if many:
                backward.graph.erase_node(part)
        if node.op == "placeholder":
            values.remove(own)
        backward.graph.erase_node(node)
    if changed:
        output.args = (tuple(values),)
        backward.graph.eliminate_dead_code()
        forward.recompile()
        backward.recompile()


def _part(forward: fx.GraphModule, many: fx.Node, part: fx.Node) -> fx.Node:
    """The forward's getitem node for the backward's getitem `part` of `many`."""
    for user in many.users:
        if _is_getitem(user) and user.args[1] == part.args[1]:
            return user
    with forward.graph.inserting_after(many):
        own = forward.graph.call_function(operator.getitem, (many, part.args[1]))
    own.meta.update(part.meta)
    return own


def _first_tensor(backward: fx.GraphModule) -> fx.Node:
    """The first placeholder that is a tensor: saved sizes come first, then saved tensors, then incoming gradients."""
    found: fx.Node = next(
        node
        for node in backward.graph.find_nodes(op="placeholder")
        if not isinstance(node.meta.get("val"), (torch.SymInt, int))
    )
    return found


def _save_results_themselves(forward: fx.GraphModule, num_results: int) -> None:
    """Save results instead of their detached views, so that autograd notices in-place writes to them."""
    output = forward.graph.output_node()
    values = list(output.args[0])  # type: ignore[arg-type]
    for index in range(num_results, len(values)):
        while isinstance(values[index], fx.Node) and values[index].target is aten.detach.default:
            values[index] = values[index].args[0]
    output.args = (tuple(values),)
    forward.graph.eliminate_dead_code(is_impure_node=lambda node: node.target is not aten.detach.default)
    forward.recompile()


def _copied_into(joint: fx.GraphModule) -> set[fx.Node]:
    """Placeholders that the joint graph writes with copy_."""
    return {
        node.args[0]
        for node in joint.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if isinstance(node.args[0], fx.Node) and node.args[0].op == "placeholder"
    }


def _is_getitem(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _is_view(node: fx.Node) -> bool:
    if _is_getitem(node):
        return True
    return isinstance(node.target, torch._ops.OpOverload) and bool(
        facts_of_call(node.target, node.args, node.kwargs).is_view
    )
