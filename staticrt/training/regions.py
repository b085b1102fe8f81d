"""Chooses the graphs of Dynamo to compile for training, and compiles them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt.options import Options
from staticrt.training.grad_modes import is_all_inference

if TYPE_CHECKING:
    from staticrt.training.aot_region import Region

log = logging.getLogger(__name__)


def needs_gradients(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph of Dynamo may compute a result that requires gradients."""
    turned_on = any(
        node.op == "call_function" and node.target is torch._C._set_grad_enabled and node.args != (False,)
        for node in gm.graph.nodes
    )
    if not torch.is_grad_enabled() and not turned_on:
        return False
    if is_all_inference(gm):
        return False
    tensors = [*inputs, *gm.parameters(), *gm.buffers()]
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors):
        return True
    return any(node.op == "call_method" and node.target == "requires_grad_" for node in gm.graph.nodes)


def region_of(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Region:
    """A graph of Dynamo compiled for training; arguments as for `staticrt.api.backend.staticrt_backend`."""
    from staticrt.training.aot_region import Region

    region = Region(gm, inputs, options)
    log.info("compiled %s of %d nodes for training", region.name, len(gm.graph.nodes))
    return region
