"""RNN, GRU and LSTM.

Usual layers become torch's own recurrent operators, whose gates are in another order; what those do not know
(lengths per row, peepholes, clipping, other activations) is written out step by step: unrolled where the number of
steps is known and small, else a `scan`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import expect
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.operators.control_flow import _fresh, _scan
from staticrt.interop.onnx.program import recording
from staticrt.interop.onnx.registry import op

_MAX_UNROLLED = 8
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
# torch's order of gates as positions in ONNX's: LSTM iofc -> ifco, GRU zrh -> rzh
_ORDER = {"RNN": [0], "GRU": [1, 0, 2], "LSTM": [0, 2, 3, 1]}
_ACTIVATIONS: dict[str, Callable[[Tensor, float | None, float | None], Tensor]] = {
    "relu": lambda x, a, b: torch.relu(x),
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "affine": lambda x, a, b: _or(a, 1.0) * x + _or(b, 0.0),
    "leakyrelu": lambda x, a, b: F.leaky_relu(x, _or(a, 0.01)),
    "thresholdedrelu": lambda x, a, b: torch.where(x > _or(a, 1.0), x, 0),
    "scaledtanh": lambda x, a, b: _or(a, 1.0) * torch.tanh(_or(b, 1.0) * x),
    "hardsigmoid": lambda x, a, b: torch.clamp(_or(a, 0.2) * x + _or(b, 0.5), 0, 1),
    "elu": lambda x, a, b: F.elu(x, _or(a, 1.0)),
    "softsign": lambda x, a, b: F.softsign(x),
    "softplus": lambda x, a, b: F.softplus(x),
}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


class _Layer:
    """One recurrent node, its attributes checked."""

    def __init__(
        self,
        kind: str,
        linear_before_reset: int = 0,
        input_forget: int = 0,
        *,
        activation_alpha: Any = None,
        activation_beta: Any = None,
        activations: Any = None,
        clip: float | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        output_sequence: int = 0,
    ) -> None:
        self.kind = kind
        self.gates = _GATES[kind]
        self.direction = direction.lower()
        if self.direction not in ("forward", "reverse", "bidirectional"):
            raise OnnxError(f"unknown direction {direction!r}")
        self.directions = 2 if self.direction == "bidirectional" else 1
        self.clip = clip
        self.hidden_size = hidden_size
        self.layout = layout
        expect(layout in (0, 1), f"layout {layout} of {kind} is neither 0 nor 1")
        self.linear_before_reset = linear_before_reset
        self.input_forget = input_forget
        names = activations
        self.usual = names is None and not activation_alpha and not activation_beta
        names = [name.lower() for name in (names or _DEFAULTS[kind] * self.directions)]
        self.usual = self.usual or names == [n.lower() for n in _DEFAULTS[kind] * self.directions]
        each = len(_DEFAULTS[kind])
        if len(names) != each * self.directions or any(name not in _ACTIVATIONS for name in names):
            raise OnnxError(f"{kind} with activations {names}")
        alpha = list(activation_alpha or [])
        beta = list(activation_beta or [])
        self.functions = [
            self._function(name, alpha[i] if i < len(alpha) else None, beta[i] if i < len(beta) else None)
            for i, name in enumerate(names)
        ]
        self.functions_each = each

    @staticmethod
    def _function(name: str, alpha: float | None, beta: float | None) -> Callable[[Tensor], Tensor]:
        function = _ACTIVATIONS[name]
        return lambda x: function(x, alpha, beta)

    def run(
        self, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, h: Tensor | None,
        c: Tensor | None, p: Tensor | None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        if self.layout:
            x = x.transpose(0, 1)
            h, c = (None if s is None else s.transpose(0, 1) for s in (h, c))
        self._check(x, w, r, b, lengths, h, c, p)
        batch, hidden = x.shape[1], r.shape[-1]
        zeros = torch.zeros([self.directions, batch, hidden], dtype=x.dtype, device=x.device)
        h, c = zeros if h is None else h, zeros if c is None else c
        if self._native(lengths, p) and not _few(x.shape[0]):
            y, h, c = self._torch(x, w, r, b, h, c)
        else:
            found = [
                self._direction(d, x, lengths, w=w, r=r, b=b, h=h, c=c, p=p) for d in range(self.directions)
            ]
            y = torch.stack([item[0] for item in found], 1)
            h, c = torch.stack([item[1] for item in found]), torch.stack([item[2] for item in found])
        if self.layout:
            y, h, c = y.permute(2, 0, 1, 3), h.transpose(0, 1), c.transpose(0, 1)
        return (y, h, c) if self.kind == "LSTM" else (y, h)

    def _check(
        self, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, lengths: Tensor | None, h: Tensor | None,
        c: Tensor | None, p: Tensor | None,
    ) -> None:  # fmt: skip
        """Raise OnnxError unless sizes agree with each other and with hidden_size."""
        kind, each, count = self.kind, self.gates, self.directions
        expect(x.dim() == 3 and w.dim() == 3 and r.dim() == 3, f"{kind}: X, W and R have rank 3")
        hidden = r.shape[2]
        expect(
            self.hidden_size in (None, hidden),
            f"{kind}: hidden_size is {self.hidden_size}, and R [{', '.join(map(str, r.shape))}] is made for {hidden}",
        )
        state = (count, x.shape[1], hidden)
        wanted = (
            ("W", w, (count, each * hidden, x.shape[2])),
            ("R", r, (count, each * hidden, hidden)),
            ("B", b, (count, 2 * each * hidden)),
            ("sequence_lens", lengths, (x.shape[1],)),
            ("initial_h", h, state),
            ("initial_c", c, state),
            ("P", p, (count, 3 * hidden)),
        )
        for name, value, shape in wanted:
            if value is not None and tuple(value.shape) != shape:
                have, want = (", ".join(map(str, sizes)) for sizes in (value.shape, shape))
                raise OnnxError(f"{kind}: {name} has shape [{have}], the other inputs require [{want}]")

    def _native(self, lengths: Tensor | None, p: Tensor | None) -> bool:
        return (
            self.usual
            and lengths is None
            and p is None
            and self.clip is None
            and not self.input_forget
            and self.direction != "reverse"
            and (self.kind != "GRU" or bool(self.linear_before_reset))
        )

    def _reordered(self, weights: Tensor) -> Tensor:
        if self.kind == "RNN":
            return weights
        parts = weights.chunk(self.gates, 0)
        return torch.cat([parts[i] for i in _ORDER[self.kind]])

    def _torch(
        self, x: Tensor, w: Tensor, r: Tensor, b: Tensor | None, h: Tensor, c: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights: list[Tensor] = []
        for d in range(self.directions):
            weights += [self._reordered(w[d]), self._reordered(r[d])]
            if b is not None:
                weights += [self._reordered(half) for half in b[d].chunk(2)]
        flags = (b is not None, 1, 0.0, False, self.directions == 2, False)
        if self.kind == "LSTM":
            y, h, c = torch.lstm(x, [h, c], weights, *flags)
        else:
            y, h = (torch.gru if self.kind == "GRU" else torch.rnn_tanh)(x, h, weights, *flags)
        y = y.reshape([x.shape[0], x.shape[1], self.directions, h.shape[-1]]).transpose(1, 2)
        return y, h, c

    # -- step by step ------------------------------------------------------------------------------------------

    def _direction(
        self, d: int, x: Tensor, lengths: Tensor | None, *, w: Tensor, r: Tensor, b: Tensor | None, h: Tensor,
        c: Tensor, p: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        backwards = d == 1 or self.direction == "reverse"
        functions = self.functions[d * self.functions_each : (d + 1) * self.functions_each]
        bias = (b[d].chunk(2)) if b is not None else (None, None)
        peepholes = p[d].chunk(3) if p is not None else None
        if backwards:
            x = _reversed(x, lengths)
        inputs = F.linear(x, w[d], bias[0])
        steps = torch.arange(x.shape[0], device=x.device)

        def step(state: list[Tensor], items: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            old_h, old_c = state
            gates, position = items
            new_h, new_c = self._cell(gates, old_h, old_c, r[d], bias[1], peepholes, functions)
            out = new_h
            if lengths is not None:
                alive = (position < lengths).unsqueeze(-1)
                out = torch.where(alive, new_h, 0)
                new_h, new_c = torch.where(alive, new_h, old_h), torch.where(alive, new_c, old_c)
            return [new_h, new_c], [out]

        state = [h[d], c[d]]
        length = x.shape[0]
        if not recording() or (type(length) is int and length <= _MAX_UNROLLED):
            rows = []
            for index in range(int(length)):
                state, (row,) = step(state, [inputs[index], steps[index]])
                rows.append(row)
            y = torch.stack(rows) if rows else x.new_zeros([0, *h[d].shape])
        else:
            state, (y,) = _scan(
                lambda s, items: tuple(list(_fresh(part)) for part in step(s, items)),
                [value.clone() for value in state],
                [inputs, steps],
            )
        return _reversed(y, lengths) if backwards else y, state[0], state[1]

    def _cell(
        self, gates: Tensor, h: Tensor, c: Tensor, r: Tensor, b: Tensor | None, peepholes: Any, functions: Any
    ) -> tuple[Tensor, Tensor]:
        if self.kind == "RNN":
            return functions[0](self._clipped(gates + F.linear(h, r, b))), c
        f, g = functions[0], functions[1]
        if self.kind == "GRU":
            xz, xr, xh = gates.chunk(3, -1)
            rz, rr, rh = r.chunk(3, 0)
            bz, br, bh = b.chunk(3) if b is not None else (None, None, None)
            update = f(self._clipped(xz + F.linear(h, rz, bz)))
            reset = f(self._clipped(xr + F.linear(h, rr, br)))
            if self.linear_before_reset:
                new = xh + reset * F.linear(h, rh, bh)
            else:
                new = xh + F.linear(reset * h, rh, bh)
            return (1 - update) * g(self._clipped(new)) + update * h, c
        i, o, forget, new = (gates + F.linear(h, r, b)).chunk(4, -1)
        if peepholes is not None:
            i, forget = i + peepholes[0] * c, forget + peepholes[2] * c
        entry = f(self._clipped(i))
        keep = 1 - entry if self.input_forget else f(self._clipped(forget))
        cell = keep * c + entry * g(self._clipped(new))
        if peepholes is not None:
            o = o + peepholes[1] * cell
        return f(self._clipped(o)) * functions[2](cell), cell

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.clip is None else torch.clamp(x, -self.clip, self.clip)


def _few(length: Any) -> bool:
    """Whether there are no steps, which torch's recurrent operators reject, or one, for which they bring no gain."""
    return type(length) is int and length <= 1


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Reverse [time, batch, …] along time, each sequence within its own length."""
    if lengths is None:
        return x.flip(0)
    steps = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    index = torch.where(steps < lengths, lengths - 1 - steps, steps).to(torch.int64)
    return torch.gather(x, 0, index.unsqueeze(-1).expand(x.shape))


@op("LSTM", like=_Layer)
def lstm(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    input_forget: int = 0,
    **layer: Any,
) -> Any:
    return _Layer("LSTM", input_forget=input_forget, **layer).run(x, w, r, b, lengths, h, c, p)


@op("GRU", like=_Layer)
def gru(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    *,
    linear_before_reset: int = 0,
    **layer: Any,
) -> Any:
    return _Layer("GRU", linear_before_reset, **layer).run(x, w, r, b, lengths, h, None, None)


@op("RNN", like=_Layer)
def rnn(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    **layer: Any,
) -> Any:
    return _Layer("RNN", **layer).run(x, w, r, b, lengths, h, None, None)
