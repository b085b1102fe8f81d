"""`torch.compile(model, backend="staticrt")`: Dynamo's graphs on the static runtime, for inference and training.

A graph that needs no gradients is traced anew, as `staticrt.compile` does, with composite operators whole; sizes are
symbols where they are Dynamo's, and what is made of weights is kept (`executor/partial_graph.py`). One that needs gradients goes through `staticrt.training`. Dynamo guards the Python state of both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from staticrt.api.options import checked_options
from staticrt.errors import OptionError
from staticrt.frontend.dynamo import differences, interrupts, patches
from staticrt.options import Options
from staticrt.training.regions import needs_gradients, region_of

if TYPE_CHECKING:
    from staticrt.frontend.graph import KnownInputs

log = logging.getLogger(__name__)
# torch.compile imports this module when it looks up the backend, before Dynamo traces the first frame.
patches.install()
interrupts.answer_devices()

# Presets of torch.compile. All but "reduce-overhead" tune Inductor's search for kernels, which staticrt does not have.
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
        mode: a preset of `torch.compile`. "reduce-overhead" is the option `graphs=True`, on devices that have graphs;
            the others change nothing here.
        options: as for `staticrt.compile`, see `staticrt.options.OPTIONS`.

    Returns:
        A callable on the same flat inputs.

    Raises:
        OptionError: an unknown mode, option or value.
    """
    return interrupts.delivering_through_dynamo(lambda: _compiled(gm, inputs, mode, options))


def _compiled(
    gm: fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    if mode is not None and mode not in _MODES:
        raise OptionError(f"unknown mode {mode!r}", fix=f"modes are {', '.join(_MODES)}")
    given = dict(options or {})
    if mode == "reduce-overhead" and _graphs_help(inputs):
        given.setdefault("graphs", True)
    parsed = checked_options(given)
    if parsed.donate:
        raise OptionError(
            "option 'donate' names arguments of a function, which the graphs that Dynamo cuts out of it do not have",
            fix="staticrt.compile(model, donate=…)",
        )
    if reason := differences.of_graph(gm):
        log.info("a graph of %d nodes runs eagerly: %s", len(gm.graph.nodes), reason)
        return gm.forward
    if needs_gradients(gm, inputs):
        # Bound methods: Dynamo's wrapper of an object would copy, and hold, its attributes.
        return region_of(gm, inputs, parsed).__call__ if parsed.training else gm.forward
    return _inference(gm, inputs, parsed)


def _graphs_help(inputs: Sequence[Any]) -> bool:
    """Whether the inputs' device has streams, whose work a graph launches at once."""
    from staticrt.errors import DeviceError
    from staticrt.graphs.backend import get_backend

    device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), None)
    if device is None:
        return False
    try:
        return get_backend(device).caps.has_streams
    except DeviceError:
        return False


def _inference(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    from staticrt.executor.executor import Executor
    from staticrt.executor.partial_graph import PartialGraph

    def make_executor(function: Callable[..., Any], known: KnownInputs) -> Executor:
        return Executor(function, options, "graph", is_partial=True, known=known)

    log.info("compiled a graph of %d nodes for inference", len(gm.graph.nodes))
    return PartialGraph(gm, inputs, make_executor).__call__
