"""Dropout between the layers of recurrent networks, which torch's decomposition omits.

The decompositions of `aten.lstm`, `gru` and `rnn_*` in `torch._decomp` test a condition that never holds
(`num_layers < i - 1`), so AOTAutograd's graphs train without dropout. Here the dropout after a layer is applied to the
input of the next one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from staticrt import torch_private


def recurrent_networks(resizes: bool = True) -> contextlib.AbstractContextManager[None]:
    """Context manager in which recurrent networks are traced with their dropout.

    Args:
        resizes: operators that resize images are recorded as eager calls them, not taken apart.
    """
    return torch_private.recurrent_decomposition(with_dropout, resizes)


def with_dropout(helper: Callable[..., Any]) -> Callable[..., Any]:
    """torch's helper for all recurrent networks, with dropout between layers, and without oneDNN's operator.

    Args:
        helper: `(input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, layer_fn)`;
            it calls `layer_fn(input, ...)` layer by layer, forwards and then, if it is bidirectional, backwards.
    """

    def run(
        x: torch.Tensor,
        hidden: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
        layer_fn: Callable[..., Any],
    ) -> Any:
        calls = 0
        dropped = x
        layer_fn = torch_private.one_layer_lstm(layer_fn)

        def layer(inputs: torch.Tensor, *args: Any, **keywords: Any) -> Any:
            nonlocal calls, dropped
            number, backwards = divmod(calls, 2 if bidirectional else 1)
            calls += 1
            if number and not backwards:
                dropped = torch.dropout(inputs, dropout, train=True)
            return layer_fn(dropped if number else inputs, *args, **keywords)

        function = layer if train and dropout else layer_fn
        return helper(
            x, hidden, params, has_biases, num_layers, 0.0, train, bidirectional, batch_first, function
        )

    return run
