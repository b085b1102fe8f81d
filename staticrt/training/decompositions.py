"""Decompositions of torch that this thread traces in another way: recurrent networks and resizes.

Upstream's functions are replaced once, by functions that do the same but for threads inside `recurrent_networks` or
`eager_resizes`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch


class _Thread(threading.local):
    recurrent = False
    resizes = False


_thread = _Thread()


def recurrent_networks() -> contextlib.AbstractContextManager[None]:
    """While this holds, this thread traces recurrent networks with the dropout between their layers.

    Upstream's decompositions of `aten.lstm`, `gru` and `rnn_*` test a condition that never holds (`num_layers < i - 1`), so
    that they omit it. Dropout gives its argument meanwhile where nothing is dropped, and draws no random numbers where
    everything is, as in eager; upstream's decomposition copies, and draws.
    """
    return _in_this_thread("recurrent")


def eager_resizes() -> contextlib.AbstractContextManager[None]:
    """While this holds, this thread records resizes of images as the operators that eager calls.

    Upstream's decomposition reads each pixel by index, and its backward adds them up so. Functionalization in C++, as
    AOTAutograd uses it, takes no symbolic sizes of eager's operators.
    """
    return _in_this_thread("resizes")


@contextlib.contextmanager
def _in_this_thread(name: str) -> Iterator[None]:
    _replace()
    before = getattr(_thread, name)
    setattr(_thread, name, True)
    try:
        yield
    finally:
        setattr(_thread, name, before)


def with_dropout(helper: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's helper of all recurrent networks, with dropout between layers, and without oneDNN's operator.

    Args:
        helper: `(input, hidden, params, has_biases, num_layers, dropout, train, bidirectional, batch_first, layer_fn)`;
            it calls `layer_fn(input, ...)` layer by layer, forwards and then, if it is bidirectional, backwards.
    """
    import torch._decomp.decompositions as decompositions

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
        if layer_fn is decompositions.mkldnn_one_layer_lstm:
            # It saves nothing for its backward unless gradients are on, which they are not while compiled graphs run.
            layer_fn = decompositions.one_layer_lstm

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


_RESIZES = (
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
)


@functools.cache
def _replace() -> None:
    import torch._decomp.decompositions as decompositions

    helper: Callable[..., Any] = decompositions._rnn_helper
    helper_with_dropout = with_dropout(helper)

    @functools.wraps(helper)
    def rnn(*args: Any, **kwargs: Any) -> Any:
        return (helper_with_dropout if _thread.recurrent else helper)(*args, **kwargs)

    decompositions._rnn_helper = rnn  # type: ignore[assignment]

    @functools.wraps(decompositions.dropout)
    def dropout(x: torch.Tensor, p: float, train: bool | None) -> torch.Tensor:
        if _thread.recurrent:
            if not train or p == 0 or any(type(size) is int and size == 0 for size in x.shape):
                return x
            if p == 1:
                return x * x.new_zeros(())
        return decompositions.dropout(x, p, train)  # type: ignore[no-any-return]

    upstream = decompositions.dropout
    _replace_kernels(torch.ops.aten.dropout.default, lambda kernel: dropout if kernel is upstream else kernel)
    for name in _RESIZES:
        packet = getattr(torch.ops.aten, name)
        for operator in (packet.default, packet.vec):
            _replace_kernels(operator, functools.partial(_resize, packet, operator))


def _replace_kernels(operator: Any, replaced: Callable[[Any], Any]) -> None:
    operator.py_kernels.update({key: replaced(kernel) for key, kernel in operator.py_kernels.items()})
    operator._dispatch_cache.clear()


def _resize(packet: Any, operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    from torch._decomp.decompositions import upsample_compute_output_size

    @functools.wraps(kernel)
    def resize(x: torch.Tensor, size: Any, *args: Any, **kwargs: Any) -> Any:
        if not _thread.resizes:
            return kernel(x, size, *args, **kwargs)
        if operator is packet.vec:  # (input, output_size, [align_corners], scale_factors)
            *how, factors = args
            sizes = upsample_compute_output_size(x.size(), size, factors)  # type: ignore[no-untyped-call]
            return packet.default(x, sizes, *how, *(factors or [None] * len(sizes)))
        with torch._C._DisablePythonDispatcher():
            return operator(x, size, *args, **kwargs)

    return resize
