"""`torch.compile(model, backend="staticrt")`: Dynamo's graphs on the static runtime, for inference and training.

A graph that needs no gradients is captured anew, as `staticrt.compile` does, with composite operators whole; sizes are
symbols where they are Dynamo's, and what is made of weights is kept (`part.py`). One that needs gradients goes through `staticrt.training`. Dynamo guards the Python state of both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt.errors import OptionError
from staticrt.options import Options, parse_options

if TYPE_CHECKING:
    from staticrt.frontend.graph import KnownInputs
    from staticrt.training.door_a import Region

log = logging.getLogger(__name__)

# Presets of torch.compile. They tune Inductor's search for kernels; here there is nothing to search.
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


def staticrt_backend(
    gm: fx.GraphModule,
    inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile one graph of Dynamo.

    Args:
        gm: torch calls on flat inputs.
        inputs: example inputs, one per placeholder: tensors, parameters and numbers.
        mode: a preset of `torch.compile`; they change nothing here.
        options: as for `staticrt.compile`, see `staticrt.options.OPTIONS`.

    Returns:
        A callable on the same flat inputs.

    Raises:
        OptionError: an unknown mode, option or value.
    """
    if mode is not None and mode not in _MODES:
        raise OptionError(f"unknown mode {mode!r}", fix=f"modes are {', '.join(_MODES)}")
    parsed = parse_options(dict(options or {}))
    if parsed.donate:
        raise OptionError(
            "option 'donate' names arguments of a function, which the graphs that Dynamo cuts out of it do not have",
            fix="staticrt.compile(model, donate=…)",
        )
    if needs_gradients(gm, inputs):
        return region_of(gm, inputs, parsed) if parsed.training else gm.forward
    return _inference(gm, inputs, parsed)


def needs_gradients(gm: fx.GraphModule, inputs: Sequence[Any]) -> bool:
    """Whether a graph of Dynamo may compute anything that requires gradients."""
    turned_on = any(
        node.op == "call_function" and node.target is torch._C._set_grad_enabled and node.args != (False,)
        for node in gm.graph.nodes
    )
    if not torch.is_grad_enabled() and not turned_on:
        return False
    tensors = [*inputs, *gm.parameters(), *gm.buffers()]
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in tensors):
        return True
    return any(node.op == "call_method" and node.target == "requires_grad_" for node in gm.graph.nodes)


def region_of(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Region:
    """A graph of Dynamo compiled for training; arguments as for `staticrt_backend`."""
    from staticrt.training.door_a import Region

    region = Region(gm, inputs, options)
    log.info("compiled %s of %d nodes for training", region.name, len(gm.graph.nodes))
    return region


def _inference(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    from staticrt.compiled import Engine
    from staticrt.part import Part

    def make_engine(function: Callable[..., Any], known: KnownInputs) -> Engine:
        return Engine(function, options, "graph", part=True, known=known)

    log.info("compiled a graph of %d nodes for inference", len(gm.graph.nodes))
    return Part(gm, inputs, make_engine)
