"""Backwards that run under autocast, where eager casts the arguments of the backward's operators.

A backward is recorded without autocast, because most run after the forward's autocast block. If one runs inside a block
that would cast an argument, the region runs again operator by operator, and autograd differentiates that run.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from staticrt import torch_private
from staticrt.training.double_backward import Replay

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
# Operators that autocast runs in its own dtype, and those that it runs in the widest dtype of their arguments. It runs
# the other operators that it lists in float32.
_IN_LOW_PRECISION = frozenset(f"aten::{name}" for name in (
    "mm", "mv", "bmm", "matmul", "linear", "addmm", "addmv", "addr", "addbmm", "baddbmm", "prelu", "einsum",
    "chain_matmul", "linalg_multi_dot", "linalg_vecdot", "scaled_dot_product_attention", "conv1d", "conv2d",
    "conv3d", "_convolution", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
))  # fmt: skip
_IN_WIDEST = frozenset({"aten::cat", "aten::stack", "aten::index_copy"})


class CastBackward:
    """Decides whether the calling thread's autocast state would change what a backward computes.

    Args:
        graph: the backward, as recorded.
        replay: differentiates the region operator by operator.
    """

    def __init__(self, graph: fx.GraphModule, replay: Replay) -> None:
        self._graph = graph
        self._replay = replay
        self._answers: dict[tuple[tuple[str, torch.dtype], ...], bool] = {}

    @torch_private.hidden_from_dynamo
    def differs(self, undefined: Sequence[bool]) -> bool:
        """Whether the backward has to run operator by operator, with these undefined incoming gradients."""
        functions = self._replay.functions
        return (functions is not None and functions.differs(undefined)) or self()

    @torch_private.hidden_from_dynamo
    def __call__(self) -> bool:
        """Whether the backward has to run operator by operator."""
        if self._replay.refuses:
            return False
        state = tuple((d, torch.get_autocast_dtype(d)) for d in _KEYS if torch.is_autocast_enabled(d))
        if state not in self._answers:
            self._answers[state] = any(_is_cast(node, state) for node in self._graph.graph.nodes)
        return self._answers[state]


def _is_cast(node: fx.Node, state: tuple[tuple[str, torch.dtype], ...]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    dtypes = {
        (value.device.type, value.dtype)
        for value in (arg.meta.get("val") for arg in node.all_input_nodes)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.double
    }
    name = node.target._schema.name
    for device, low in state:
        found = {dtype for where, dtype in dtypes if where == device}
        wanted = low if name in _IN_LOW_PRECISION else torch.float32
        is_other = len(found) > 1 if name in _IN_WIDEST else found - {wanted}
        if is_other and _knows(node.target, _KEYS[device]):
            return True
    return False


@functools.cache
def _knows(operator: Any, key: str) -> bool:
    """Whether autocast has a kernel for an operator."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key))
