"""Sizes of recurrent layers in exported programs.

torch's LSTM divides by the width of its states and reads them without a check; torch's modules check before they call
it. A file calls the operator without the module, so its sizes are compared here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
_LAYERS = (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)
_FILLED = (aten.zeros, aten.ones, aten.full, aten.empty, aten.rand, aten.randn)


def misfit(program: torch.export.ExportedProgram) -> str:
    """The first recurrent layer whose states do not fit its input and weights, or ""."""
    held: dict[str, torch.Tensor] = {}
    for spec in program.graph_signature.input_specs:
        value = program.state_dict.get(spec.target or "", program.constants.get(spec.target or ""))
        if isinstance(value, torch.Tensor):
            held[str(spec.arg.name)] = value
    for node in program.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        if packet not in _LAYERS:
            continue
        packed = str(node.target).endswith(".data")  # data, batch_sizes, hx, params, …
        first = 2 if packed else 1
        states, weights = ([_sizes(n, held) for n in _listed(node.args[i])] for i in (first, first + 1))
        batch = None if packed else _sizes(node.args[0], held)[0 if node.args[-1] else 1]
        if not _fits(states, weights, batch):
            return f"{node.target} with states of sizes {states} and weights of sizes {weights}"
    return ""


def _fits(states: list[list[Any]], weights: list[list[Any]], batch: Any) -> bool:
    if len(weights) < 2 or len(weights[1]) != 2 or not states:
        return False
    for index, state in enumerate(states):
        # The second state is an LSTM's cell, as wide as the gates; the first is what the layer returns.
        width = weights[1][1] if index == 0 else weights[1][0] // 4
        if len(state) != 3 or not _may_be(state[2], width) or not _may_be(state[1], batch) or width == 0:
            return False
    return True


def _may_be(size: Any, other: Any) -> bool:
    return not (isinstance(size, int) and isinstance(other, int)) or size == other


def _listed(value: Any) -> Iterator[fx.Node]:
    yield from value if isinstance(value, (list, tuple)) else (value,)


def _sizes(node: fx.Node, held: dict[str, torch.Tensor]) -> list[Any]:
    """Sizes of a value: of a tensor its own, else those that its call implies, else those that the file declares."""
    if node.name in held:
        return list(held[node.name].shape)
    if getattr(node.target, "overloadpacket", None) in _FILLED:
        return list(node.args[0])  # type: ignore[arg-type]
    return list(node.meta["val"].shape)
