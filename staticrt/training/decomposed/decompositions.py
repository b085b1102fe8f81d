"""Replacements for decompositions of torch: recurrent networks, products, resizes, the CTC loss, cosine similarity.

Upstream's functions are replaced once, by functions that behave differently only in threads inside `recurrent_networks`
or `eager_operators`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from staticrt.frontend.tracing import composites
from staticrt.shapes.fake_results import same
from staticrt.shapes.rules.layout import broadcast_sizes
from staticrt.training.decomposed.recurrent import whole_layer


class _Thread(threading.local):
    recurrent = False
    eager = False


_thread = _Thread()


def recurrent_networks() -> contextlib.AbstractContextManager[None]:
    """Context manager: this thread traces recurrent networks with the dropout between their layers.

    Upstream's decompositions of `aten.lstm`, `gru` and `rnn_*` test a condition that never holds (`num_layers < i - 1`), so
    that they omit it. Inside the block, dropout with p=0 returns its argument, and dropout with p=1 draws no random
    numbers, as in eager; upstream's decomposition copies in the first case and draws in the second.
    """
    return _in_this_thread(eager=False)


def eager_operators() -> contextlib.AbstractContextManager[None]:
    """As `recurrent_networks`; products, resizes of images, CTC losses, cosine similarities too are recorded as eager computes them.

    Upstream's decompositions of `matmul` and `broadcast_tensors`, which most losses call, import sympy, also where all sizes
    are constants.

    Upstream's decomposition of resizes reads each pixel by index, and its backward accumulates by index. AOTAutograd
    needs it, because functionalization in C++ does not support symbolic sizes of eager's operators. The CTC loss with
    lists of lengths makes tensors of them that no dispatch mode sees.
    """
    return _in_this_thread(eager=True)


@contextlib.contextmanager
def _in_this_thread(*, eager: bool) -> Iterator[None]:
    _replace()
    before = vars(_thread).copy()
    vars(_thread).update(recurrent=True, eager=eager or _thread.eager)
    try:
        yield
    finally:
        vars(_thread).clear()
        vars(_thread).update(before)


def with_dropout(helper: Callable[..., Any]) -> Callable[..., Any]:
    """Upstream's helper of all recurrent networks, with dropout between layers, and layers as `whole_layer` computes them.

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
        layer_fn = whole_layer(layer_fn)

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
    _replace_kernels(torch.ops.aten.matmul.default, _matmul)
    aten = torch.ops.aten
    composites_of_torch: dict[Any, Callable[..., Any]] = {
        aten.ctc_loss.IntList: _ctc_loss,
        aten.cosine_similarity.default: _cosine_similarity,
        aten.rrelu.default: _rrelu,
        aten.lstm_cell.default: _cell(aten.lstm_cell.default, composites.lstm_cell),
        aten.gru_cell.default: _cell(aten.gru_cell.default, composites.gru_cell),
        aten.rnn_tanh_cell.default: _cell(aten.rnn_tanh_cell.default, composites.rnn_cell(torch.tanh)),
        aten.rnn_relu_cell.default: _cell(aten.rnn_relu_cell.default, composites.rnn_cell(torch.relu)),
    }
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    for operator, replacement in composites_of_torch.items():
        operator.py_impl(composite)(replacement)
    one_hot = aten.one_hot.default
    # Only later torch has a kernel in Python.
    one_hot.py_kernels.setdefault(composite, functools.partial(_torchs, one_hot))
    _replace_kernels(one_hot, _one_hot)
    # Theirs differ in the shape of one sample's loss, in what follows the end of its targets, and in the gradient of NaN.
    for operator in (aten.multi_margin_loss, aten.multilabel_margin_loss_forward, aten.softshrink):
        _replace_kernels(operator.default, functools.partial(_as_eager, operator.default))
    _replace_kernels(aten.broadcast_tensors.default, _broadcast_tensors)


def _torchs(operator: Any, *args: Any) -> Any:
    """What torch's composite kernel computes. The operator itself would come back to the replacement in some modes."""
    return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _replace_kernels(operator: Any, replaced: Callable[[Any], Any]) -> None:
    operator.py_kernels.update({key: replaced(kernel) for key, kernel in operator.py_kernels.items()})
    operator._dispatch_cache.clear()


def _resize(packet: Any, operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def resize(x: torch.Tensor, size: Any, *args: Any, **kwargs: Any) -> Any:
        if not _thread.eager:
            return kernel(x, size, *args, **kwargs)
        if operator is packet.vec:  # (input, output_size, [align_corners], scale_factors)
            *how, factors = args
            sizes = size or list(map(_scaled, x.shape[2:], factors))
            return packet.default(x, sizes, *how, *(factors or [None] * len(sizes)))
        with torch._C._DisablePythonDispatcher():
            return operator(x, size, *args, **kwargs)

    return resize


def _scaled(size: Any, factor: float) -> Any:
    return size * int(factor) if factor == int(factor) else torch.sym_int(size * factor)  # type: ignore[no-untyped-call]


def _matmul(kernel: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(kernel)
    def matmul(a: torch.Tensor, b: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes = (*a.shape, *a.stride(), *b.shape, *b.stride())
        if not _thread.eager or any(isinstance(size, torch.SymInt) for size in sizes):
            if (
                _thread.eager and a.dim() > 2 and b.dim() == 2 and b.requires_grad
            ):  # as upstream, without sympy
                rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
                return torch.ops.aten._unsafe_view(rows.mm(b), [*a.shape[:-1], b.shape[1]])
            return kernel(a, b, *args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return torch.ops.aten.matmul.default(a, b, *args, **kwargs)

    return matmul


def _cosine_similarity(x: torch.Tensor, y: torch.Tensor, dim: int = 1, eps: float = 1e-8) -> torch.Tensor:
    """As torch's composite kernel, which raises the norms to `eps` by a write with gradients off."""
    if not _thread.eager or x.dtype != y.dtype or not x.is_floating_point():
        return _torchs(torch.ops.aten.cosine_similarity.default, x, y, dim, eps)  # type: ignore[no-any-return]

    def normalised(x: Any) -> Any:
        norm = torch.linalg.vector_norm(x, 2, dim, keepdim=True)
        with torch.no_grad():
            missing = norm.clamp_min(eps) - norm
        return x / (norm + missing)

    x, y = torch.ops.aten.broadcast_tensors.default([x, y])
    return (normalised(x) * normalised(y)).sum(dim)  # type: ignore[no-any-return]


def _rrelu(x: torch.Tensor, lower: float, upper: float, training: bool = False, generator: Any = None) -> Any:
    """As eager, whose result is row-major where it is random: that of the functional operator has the strides of `x`."""
    result = _torchs(torch.ops.aten.rrelu.default, x, lower, upper, training, generator)
    return result.contiguous() if training and _thread.recurrent else result


def _one_hot(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """As eager, whose result is row-major: torch's composite kernel compares, which follows the strides of `x`."""

    def one_hot(x: torch.Tensor, num_classes: Any = -1) -> Any:
        if not _thread.recurrent or type(num_classes) is not int or num_classes <= 0:
            return kernel(x, num_classes)
        return x.new_zeros([*x.shape, num_classes]).scatter(-1, x.unsqueeze(-1), 1)

    return one_hot


def _as_eager(operator: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The operator itself, whose derivative torch knows, where the result of upstream's decomposition differs."""

    @functools.wraps(kernel)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not _thread.recurrent:
            return kernel(*args, **kwargs)
        with torch._C._DisablePythonDispatcher():
            return operator(*args, **kwargs)

    return run


def _broadcast_tensors(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def broadcast_tensors(tensors: Sequence[torch.Tensor]) -> Any:
        sizes = broadcast_sizes(tensors) if _thread.eager else None
        if sizes is None:
            return kernel(tensors)
        return [
            x if all(map(same, x.shape, sizes)) and x.dim() == len(sizes) else x.expand(sizes)
            for x in tensors
        ]

    return broadcast_tensors


def _cell(operator: Any, cell: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return cell(*args) if _thread.recurrent else _torchs(operator, *args)

    return run


def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> torch.Tensor:
    """As `ctc_loss` of aten/src/ATen/native/LossCTC.cpp."""
    aten = torch.ops.aten
    if not _thread.eager:
        given = (log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity)
        return _torchs(aten.ctc_loss.IntList, *given)  # type: ignore[no-any-return]
    batch = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    losses: torch.Tensor = aten._ctc_loss.default(
        batch,
        targets.to(batch.device, torch.int64),
        input_lengths,
        target_lengths,
        blank,
        zero_infinity,
    )[0]
    if zero_infinity:
        losses = torch.where(losses == math.inf, 0.0, losses)
    if reduction == 1:
        lengths = torch.tensor(target_lengths, dtype=losses.dtype, device=losses.device)
        return (losses / lengths.clamp_min(1)).mean()
    if reduction == 2:
        return losses.sum()
    return losses if log_probs.dim() == 3 else losses.squeeze(0)
