"""`torch.compile(model, backend="staticrt")`: Dynamo's graphs on the static runtime, for inference and training.

A graph that needs no gradients is traced anew, as `staticrt.compile` does, with composite operators whole; sizes are
symbols where they are Dynamo's, and what is made of weights is kept (`executor/partial_graph.py`). One that needs gradients goes through `staticrt.training`. Dynamo guards the Python state of both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from staticrt.api.options import checked_options
from staticrt.errors import OptionError
from staticrt.options import Options
from staticrt.training.regions import needs_gradients, region_of

if TYPE_CHECKING:
    from staticrt.frontend.graph import KnownInputs

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
    parsed = checked_options(dict(options or {}))
    if parsed.donate:
        raise OptionError(
            "option 'donate' names arguments of a function, which the graphs that Dynamo cuts out of it do not have",
            fix="staticrt.compile(model, donate=…)",
        )
    if needs_gradients(gm, inputs):
        return region_of(gm, inputs, parsed) if parsed.training else gm.forward
    return _inference(gm, inputs, parsed)


def _inference(gm: fx.GraphModule, inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    from staticrt.executor.executor import Executor
    from staticrt.executor.partial_graph import PartialGraph

    def make_executor(function: Callable[..., Any], known: KnownInputs) -> Executor:
        return Executor(function, options, "graph", is_partial=True, known=known)

    log.info("compiled a graph of %d nodes for inference", len(gm.graph.nodes))
    return PartialGraph(gm, inputs, make_executor)
