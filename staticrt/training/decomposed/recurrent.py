"""Layers of recurrent networks in training: all steps of a layer in one direction are one operator.

`staticrt::recurrent_steps` (csrc/kernels/recurrent/recurrent_steps.cpp) computes the steps from the gates of the input on, and
keeps what `staticrt::recurrent_steps_backward` reads. What else a layer and its derivative consist of are products for
all steps at once. Second derivatives are those of the steps one by one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from staticrt.native import _C as _C  # defines the operators

LSTM, GRU, TANH, RELU = range(4)  # CellKind of csrc/kernels/recurrent/recurrent.h
STEPS = torch.ops.staticrt.recurrent_steps.default
_BACKWARD = torch.ops.staticrt.recurrent_steps_backward.default


def whole_layer(upstream: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes one layer in one direction.

    Args:
        upstream: what torch's decompositions call for it; serves dtypes, devices and layers that the operator does not.
    """
    decompositions = _decompositions()
    if upstream is decompositions.mkldnn_one_layer_lstm:
        # It saves values for its backward only with gradients on, and they are off while compiled graphs run.
        upstream = decompositions.one_layer_lstm
    kind = _kind_of(upstream)

    def layer(x: Any, hidden: Any, params: Any, has_biases: bool, reverse: bool = False) -> Any:
        states: tuple[Any, ...] = hidden if kind == LSTM else (hidden,)
        if kind is None or not _is_served((x, *states, *params), len(params) == (4 if has_biases else 2)):
            return upstream(x, hidden, params, has_biases, reverse=reverse)
        _register_formula()
        weight, hidden_weight = params[:2]
        bias: Any = params[2] if has_biases else None
        hidden_bias: Any = params[3] if has_biases else None
        if kind != GRU and has_biases:
            bias, hidden_bias = bias + hidden_bias, None
        # Of a matrix: for others, torch's own decomposition of products would import sympy.
        gates = torch.nn.functional.linear(x.flatten(0, 1), weight, bias)
        gates = gates.view(*x.shape[:2], weight.shape[0])
        c0 = states[1] if kind == LSTM else None
        out, h_n, c_n, *_saved = STEPS(gates, states[0], c0, hidden_weight, hidden_bias, kind, reverse)
        return out, (h_n, c_n) if kind == LSTM else h_n

    return layer


def _decompositions() -> Any:
    import torch._decomp.decompositions as decompositions

    return decompositions


def _kind_of(upstream: Any) -> int | None:
    decompositions = _decompositions()
    if upstream is decompositions.one_layer_lstm:
        return LSTM
    if not isinstance(upstream, functools.partial) or upstream.func is not decompositions.one_layer_rnn:
        return None  # of packed sequences
    cell = upstream.keywords["hidden_fn"]
    if cell is decompositions.gru_cell:
        return GRU
    return {torch.tanh: TANH, torch.relu: RELU}.get(cell.__closure__[0].cell_contents)


def _is_served(tensors: Sequence[torch.Tensor], is_plain: bool) -> bool:
    """Whether the operator computes a layer with these tensors; is_plain: without a projection."""
    return (
        is_plain
        and not torch.is_autocast_enabled("cpu")
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and tensors[0].dim() == 3
        and bool(tensors[0].shape[0] > 0)
    )


def gradients(ctx: Any, d_out: Any, d_hn: Any, d_cn: Any, *_of_saved: Any) -> tuple[Any, ...]:
    """The formula of `staticrt::recurrent_steps`."""
    gates, h0, c0, weight, bias, out, cells, saved = ctx.saved_tensors
    kind, reverse = ctx.kind, ctx.reverse
    if torch.is_grad_enabled():
        return (*_of_steps((gates, h0, c0, weight, bias), kind, reverse, (d_out, d_hn, d_cn)), None, None)
    d_out, d_hn, d_cn = (
        torch.zeros_like(like) if gradient is None else gradient
        for gradient, like in ((d_out, out), (d_hn, h0), (d_cn, h0))
    )
    d_gates, d_hidden, d_h0, d_c0 = _BACKWARD(
        d_out, d_hn, d_cn, h0, c0, weight, out, cells, saved, kind, reverse
    )
    d = (d_hidden if kind == GRU else d_gates).flatten(0, 1)
    first, others = h0.unsqueeze(0), out.narrow(0, 1 if reverse else 0, out.shape[0] - 1)
    before = torch.cat([others, first] if reverse else [first, others])
    return (
        d_gates,
        d_h0,
        None if c0 is None else d_c0,
        d.t().mm(before.flatten(0, 1)),
        None if bias is None else d.sum(0),
        None,
        None,
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    *tensors, ctx.kind, ctx.reverse = inputs
    out, _h_n, _c_n, cells, saved = output
    ctx.save_for_backward(*tensors, out, cells, saved)
    ctx.mark_non_differentiable(cells, saved)
    ctx.set_materialize_grads(False)


@functools.cache
def _register_formula() -> None:
    torch.library.register_autograd("staticrt::recurrent_steps", gradients, setup_context=_save)


def _of_steps(inputs: Sequence[Any], kind: int, reverse: bool, incoming: Sequence[Any]) -> list[Any]:
    """Gradients that can be differentiated again."""
    own = [None if value is None else value.view_as(value) for value in inputs]
    results = _by_steps(own, kind, reverse)
    known = [(r, g) for r, g in zip(results, incoming, strict=True) if r is not None and g is not None]
    wanted = [value for value in own if value is not None and value.requires_grad]
    outputs, given = zip(*known, strict=True)
    found = iter(torch.autograd.grad(outputs, wanted, given, create_graph=True, allow_unused=True))
    return [next(found) if value is not None and value.requires_grad else None for value in own]


def _by_steps(inputs: Sequence[Any], kind: int, reverse: bool) -> tuple[Any, ...]:
    gates, h0, c0, weight, bias = inputs
    decompositions = _decompositions()
    nonlinearity = torch.tanh if kind == TANH else torch.relu
    cell: Any = decompositions.gru_cell if kind == GRU else decompositions.rnn_cell(nonlinearity)
    h, c = h0.unsqueeze(0), None if c0 is None else c0.unsqueeze(0)
    outputs = []
    for x in reversed(gates.unbind(0)) if reverse else gates.unbind(0):
        if kind == LSTM:
            h, c = decompositions.lstm_cell(x, h, c, weight, bias, None, chunk_dim=2)
        else:
            h = cell(x, h, None, None, weight, bias)
        outputs.append(h)
    out = torch.cat(outputs[::-1] if reverse else outputs)
    return out, h.squeeze(0), None if c is None else c.squeeze(0)
