"""Dropout between the layers of recurrent networks, which upstream's decomposition leaves out.

`torch._decomp` takes `aten.lstm`, `gru` and `rnn_*` apart with a condition that never holds (`num_layers < i - 1`), so that
AOTAutograd's graphs train without dropout. A layer's dropout is that of the next one's input: it is applied there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def with_dropout(helper: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's helper for all recurrent networks, with dropout between layers.

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
