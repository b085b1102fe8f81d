"""Compute values that depend on constants only, once, at compile time.

Examples are masks from `tril(ones(n, n))`, position ids, tensors written as literals in the model. Parameters and
buffers are not constants: an optimizer step or `load_state_dict` between two calls must be seen. With
`freeze` the user says that they keep their values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils._python_dispatch import _disable_current_modes

from staticrt import tuning
from staticrt.ops import Cost
from staticrt.passes.aliasing import AliasInfo
from staticrt.passes.base import GraphPass, PassResult, register_pass, tensor_meta
from staticrt.passes.cse import UNINITIALISED
from staticrt.passes.effects import is_pure, node_facts
from staticrt.passes.symbols import same_meta

PREFIX = "_folded_"


@register_pass
class FoldConstants(GraphPass):
    """Replace calls whose arguments are constants and literals by `get_attr` of their value.

    Not folded: random, impure and uninitialised values; outputs, which the caller may write, and what operators of
    other libraries may keep and write; values that some node writes; values above the size limit; views of weights,
    which cost nothing.

    Requires: ATen-level graph.
    Ensures:  outputs and their aliases as before, bit by bit; new constants are buffers "_folded_<n>".

    Args:
        constants: tensors that never change, by target of their placeholder or `get_attr`.
        weights: parameters and buffers that the user froze, likewise; default none.
        limit_bytes: size of the largest constant to make.
    """

    name = "fold-constants"

    def __init__(
        self,
        constants: Mapping[str, torch.Tensor] | None = None,
        *,
        weights: Mapping[str, torch.Tensor] | None = None,
        limit_bytes: int = 1 << 20,
    ) -> None:
        self.constants = dict(constants or {})
        self.weights = dict(weights or {})
        self.limit_bytes = limit_bytes

    def run(self, gm: fx.GraphModule) -> PassResult:
        aliases = AliasInfo(gm)
        values: dict[fx.Node, torch.Tensor] = {}
        folded: list[fx.Node] = []
        for node in gm.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                value = self._known(gm, node)
                if value is not None and not aliases.is_written(node):
                    values[node] = value
            elif self._may_fold(node, aliases, values):
                result = _evaluate(node, values)
                if result is not None:
                    values[node] = result
                    folded.append(node)
        count = self._replace(gm, folded, values)
        return PassResult(gm, changed=count > 0, count=count)

    def _known(self, gm: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
        name = str(node.target)
        if node.op == "get_attr" and name.startswith(PREFIX):
            value = getattr(gm, name)
            return value if isinstance(value, torch.Tensor) else None
        return self.constants.get(name, self.weights.get(name))

    def _may_fold(self, node: fx.Node, aliases: AliasInfo, values: Mapping[fx.Node, torch.Tensor]) -> bool:
        if not isinstance(node.target, OpOverload) or node.target._overloadpacket in UNINITIALISED:
            return False
        meta = tensor_meta(node)
        return (
            meta is not None
            and all(n in values for n in node.all_input_nodes)
            and is_pure(node)
            and not aliases.is_written(node)
            and not aliases.reaches_output(node)
            and isinstance(meta.numel(), int)
            and meta.numel() * meta.element_size() <= self.limit_bytes * tuning.FOLDED_TEMPORARY_FACTOR
        )

    def _replace(
        self, gm: fx.GraphModule, folded: list[fx.Node], values: Mapping[fx.Node, torch.Tensor]
    ) -> int:
        left = self.limit_bytes * tuning.FOLDED_TOTAL_FACTOR
        count = 0
        made: set[torch.device] = set()
        serial = sum(name.startswith(PREFIX) for name, _ in gm.named_buffers())
        # In reverse order: a value that only folded calls read needs no constant of its own.
        for node in reversed(folded):
            if not node.users:
                gm.graph.erase_node(node)
                count += 1
                continue
            value = values[node]
            size_bytes = value.numel() * value.element_size()
            if size_bytes > min(self.limit_bytes, left) or self._is_free(node):
                continue
            constant = value.detach().clone()
            if not same_meta(constant, value):
                continue  # an expanded value: its copy would have other strides
            left -= size_bytes
            name = f"{PREFIX}{serial}"
            serial += 1
            gm.register_buffer(name, constant, persistent=False)
            with gm.graph.inserting_before(node):
                attribute = gm.graph.get_attr(name)
            attribute.meta = dict(node.meta)
            node.replace_all_uses_with(attribute)
            gm.graph.erase_node(node)
            made.add(constant.device)
            count += 1
        _wait_for(made)
        return count

    def _is_free(self, node: fx.Node) -> bool:
        """A view of a weight: folding it would hold the weight twice."""
        while node.op == "call_function":
            if node_facts(node).cost is not Cost.VIEW or not node.all_input_nodes:
                return False
            node = node.all_input_nodes[0]
        return str(node.target) in self.weights


def _wait_for(devices: set[torch.device]) -> None:
    """Wait for constants to be written: calls on other streams read them without an event."""
    for device in devices:
        if device.type not in ("cpu", "meta"):
            torch.accelerator.current_stream(device).synchronize()


def _evaluate(node: fx.Node, values: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of the call, or None if it fails or differs from the traced metadata."""
    args: Any = fx.map_arg(node.args, lambda n: values[n])
    kwargs: Any = fx.map_arg(node.kwargs, lambda n: values[n])
    target: Any = node.target
    meta = tensor_meta(node)
    assert meta is not None
    try:
        with torch.no_grad(), _disable_current_modes():
            result = target(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return None  # the call raises the error when it runs
    return result if isinstance(result, torch.Tensor) and same_meta(result, meta) else None
