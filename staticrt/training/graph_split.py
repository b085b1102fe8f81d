"""Splits a region into differentiable subregions and eager nodes.

As in TorchScript's graph executor, subregions form no cycles, side effects keep their order, results that share memory
leave a subregion as views of each other, and subregions that are too small to pay for a call stay eager.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

# Modules whose functions AOTAutograd traces into operators.
_KNOWN_MODULES = ("torch", "_operator", "math", "builtins", "einops")


class Differentiable(OperatorSupportBase):
    """Which nodes of a Dynamo graph AOTAutograd traces faithfully.

    Args:
        unfit: nodes that it does not.
    """

    def __init__(self, unfit: Container[fx.Node]) -> None:
        super().__init__()
        self._unfit = unfit

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: fx.Node) -> bool:
        return node.op not in ("placeholder", "output", "get_attr") and node not in self._unfit


def unsupported_reason(node: fx.Node) -> str:
    """Why a node of a Dynamo graph has to run eagerly, or ""."""
    if _begins_gradients(node):
        return "its result begins to require gradients"
    if any(map(is_large, (*node.args, *node.kwargs.values()))):
        return "a number of more than 64 bits"
    if node.op == "call_function":
        target: Any = node.target
        if target is torch.set_default_dtype:
            return "it decides dtypes that AOTAutograd's graphs do not name"
        if isinstance(target, torch._ops.HigherOrderOperator):
            if str(target) == "autograd_function_apply" and _views_an_argument(node):
                return "a custom autograd.Function returns a view, to which AOTAutograd gives a gradient of its own"
            return ""  # Dynamo traced the bodies of control-flow operators
        if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
            return ""
        owner = getattr(target, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            return f"the custom autograd.Function {owner.__qualname__}"
        module = (getattr(target, "__module__", None) or "").split(".")[0]
        if module not in _KNOWN_MODULES and getattr(target, "__objclass__", None) is None:
            return f"the Python function {getattr(target, '__qualname__', target)}"
    return ""


def is_large(number: Any) -> bool:
    """Whether a number has more than 64 bits; the ragged size of a nested tensor is not an int."""
    return type(number) is int and number.bit_length() > 63


def _views_an_argument(node: fx.Node) -> bool:
    """Whether a result of a node shares memory with an argument."""
    results = node.meta.get("example_value")
    results = results if isinstance(results, (tuple, list)) else (results,)
    given = {memory_of_value(source.meta.get("example_value")) for source in node.all_input_nodes} - {None}
    return any(memory_of_value(value) in given for value in results)


def memory_of_value(value: Any) -> int | None:
    """Identifies the memory of a strided tensor, real or fake."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _begins_gradients(node: fx.Node) -> bool:
    """Whether a node creates a leaf of autograd or turns a tensor into one."""
    if node.kwargs.get("requires_grad", False) is not False:
        return True
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return name in ("requires_grad_", "retain_grad", "Parameter") or "create_parameter" in name


@dataclasses.dataclass(frozen=True)
class Eager:
    """A node that runs eagerly.

    Args:
        node: its name and target.
        reason: why.
    """

    node: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Split:
    """A region split into compilable subregions and eager nodes.

    Args:
        module: the region; each name in `subregions` is a child module that may be compiled.
        subregions: names of these children.
        eager: the nodes that stay eager, with reasons.
    """

    module: fx.GraphModule
    subregions: tuple[str, ...]
    eager: tuple[Eager, ...]


def needs_splitting(gm: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo holds a node that AOTAutograd cannot trace."""
    return any(unsupported_reason(node) for node in gm.graph.nodes)


def split(gm: fx.GraphModule, min_nodes: int, unsupported: Mapping[str, str] | None = None) -> Split:
    """Split a graph of Dynamo into subregions and eager nodes.

    Args:
        gm: not modified.
        min_nodes: subregions with fewer compute nodes stay eager.
        unsupported: names of further nodes that have to run eagerly, and why.
    """
    reasons = unsupported or {}
    state = next((node for node in gm.graph.nodes if _changes_state(node)), None)
    if state is not None:
        reason = f"{state.target} changes how the calls after it run"
        return Split(
            gm,
            (),
            tuple(
                Eager(f"{node.name} = {node.target}", reason) for node in gm.graph.nodes if _computes(node)
            ),
        )
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(gm.graph, copies))
    copied = fx.GraphModule(gm, graph)
    unfit = {copies[node]: reasons[node.name] for node in gm.graph.nodes if node.name in reasons}
    unfit |= {node: reason for node in graph.nodes if (reason := unsupported_reason(node))}
    eager = [Eager(f"{node.name} = {node.target}", unfit[node]) for node in graph.nodes if node in unfit]
    if _order_matters(copied):
        groups = _in_order(copied, unfit)
    else:
        # Upstream counts functions only, not methods: `min_nodes` is the only threshold.
        partitioner = CapabilityBasedPartitioner(
            copied, Differentiable(unfit), allows_single_node_partition=True
        )
        groups = [
            part
            for partition in partitioner.propose_partitions()
            for part in _connected(list(partition.nodes))
        ]
    kept = []
    for group in groups:
        count = sum(_computes(node) for node in group)
        reason = f"its subregion has {count} compute nodes, under {min_nodes}" if count < min_nodes else ""
        if all(user in group for node in group for user in node.users) and not _cuts_out_without_results():
            reason = "nothing reads a result of its subregion, which this release of torch cannot cut out"
        if reason:
            eager += [Eager(f"{node.name} = {node.target}", reason) for node in group]
        else:
            kept.append(group)
    before = {name for name, _child in copied.named_children()}
    fused = _fuse(copied, kept)
    subregions = tuple(name for name, _child in fused.named_children() if name not in before)
    return Split(fused, subregions, tuple(eager))


def _fuse(gm: fx.GraphModule, groups: Sequence[Sequence[fx.Node]]) -> fx.GraphModule:
    from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

    order = {node: index for index, node in enumerate(gm.graph.nodes)}
    partitions = [dict.fromkeys(sorted(group, key=order.__getitem__)) for group in groups]
    return fuse_by_partitions(gm, partitions, "subregion_", always_return_tuple=True)


@functools.cache
def _cuts_out_without_results() -> bool:
    graph = fx.Graph()
    node = graph.call_function(torch.neg, (graph.placeholder("x"),))
    graph.output(())
    try:
        _fuse(fx.GraphModule(torch.nn.Module(), graph), [[node]])
    except AssertionError:  # as in torch 2.11
        return False
    return True


def _order_matters(gm: fx.GraphModule) -> bool:
    """Whether moving a node past another one could change what is computed."""
    return any(writes(node) or draws(node) for node in gm.graph.nodes)


def _in_order(gm: fx.GraphModule, unfit: Container[fx.Node]) -> list[list[fx.Node]]:
    """Maximal runs of supported nodes, in graph order."""
    groups: list[list[fx.Node]] = [[]]
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node in unfit:
            groups.append([])
        else:
            groups[-1].append(node)
    return [group for group in groups if group]


def _connected(group: Sequence[fx.Node]) -> list[list[fx.Node]]:
    """Connected components of a subregion.

    Compiled together, a gradient that reaches one component would also run the backward of the eager nodes that
    feed the others, and a custom `autograd.Function` turns an undefined gradient into zeros where eager leaves None.
    """
    parts = {node: [node] for node in group}  # node -> its component; nodes of one component share the list
    for node in group:
        for source in node.all_input_nodes:
            if source not in parts or parts[source] is parts[node]:
                continue
            small, large = sorted((parts[source], parts[node]), key=len)
            large += small
            parts.update(dict.fromkeys(small, large))
    return list({id(part): part for part in parts.values()}.values())


def _changes_state(node: fx.Node) -> bool:
    """Whether a node changes the state of the thread, as `set_grad_enabled` and entering autocast do."""
    if node.op != "call_function" or node.meta.get("example_value") is not None:
        return False
    return getattr(node.target, "__name__", "") != "setitem" and not isinstance(
        node.target, torch._ops.OpOverload
    )


def writes(node: fx.Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
        return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
    if node.op != "call_function":
        return node.op == "call_module"
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.is_mutable
    name = getattr(node.target, "__name__", "")
    inplace = node.kwargs.get("inplace", False) is not False or "out" in node.kwargs
    in_operator = name in ("setitem",) or (
        name.startswith("i") and getattr(operator, name, None) is node.target
    )
    return inplace or in_operator or (name.endswith("_") and not name.endswith("__"))


# Functions that draw random numbers have one of these in their names.
_RANDOM_NAMES = (
    "rand", "dropout", "bernoulli", "normal", "multinomial", "poisson", "exponential", "uniform", "rrelu",
)  # fmt: skip


def draws(node: fx.Node) -> bool:
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    if name == "scaled_dot_product_attention":
        return True
    return node.op in ("call_method", "call_function") and any(part in name for part in _RANDOM_NAMES)


def _computes(node: fx.Node) -> bool:
    return node.op in ("call_function", "call_method", "call_module") and node.target is not operator.getitem


def example_values(gm: fx.GraphModule, name: str) -> list[Any]:
    """The example inputs of a child module, from Dynamo's metadata of the arguments of its call."""
    (call,) = gm.graph.find_nodes(op="call_module", target=name)
    return [
        argument.meta.get("example_value") if isinstance(argument, fx.Node) else argument
        for argument in call.args
    ]


def run_compiled(split_region: Split, compiled: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """The region with its subregions replaced by compiled functions.

    Args:
        split_region: what `split` returned.
        compiled: callable by subregion name.
    """
    module = split_region.module
    for name, function in compiled.items():
        module.delete_submodule(name)
        setattr(module, name, _Call(function))
    module.recompile()
    return module.forward


class _Call(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any) -> Any:
        return self._function(*args)
