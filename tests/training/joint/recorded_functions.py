"""Custom autograd Functions whose backward a joint trace records."""

from __future__ import annotations

import math

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

FACTOR = 2.0
ROOT = math.sqrt(2 / math.pi)


def _gelu_slope(x: torch.Tensor) -> torch.Tensor:
    t = torch.tanh(ROOT * x * (1 + 0.044715 * x * x))
    return 0.5 * x * ((1 - t * t) * (ROOT + 0.1070322243 * x * x)) + 0.5 * (1 + t)


class Gelu(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5 * (1 + torch.tanh(ROOT * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return _gelu_slope(x) * g


class Straight(Function):
    @staticmethod
    def forward(ctx, x):
        return torch.sign(x)

    @staticmethod
    def backward(ctx, g):
        return g


class Clipped(Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.clamp(low, high).round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        gradient = g.clone()
        gradient[x < ctx.low] = 0
        gradient[x > ctx.high] = 0
        return gradient, None, None


class Reversed(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg() * ctx.alpha, None


class Swish(Function):
    @staticmethod
    def forward(x):
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s))


class Loss(Function):
    """The gradient is computed with the loss, as in fused losses."""

    @staticmethod
    def forward(ctx, x):
        with torch.enable_grad():
            own = x.detach()
        ctx.save_for_backward(2 * own / own.numel())
        return (own * own).mean()

    @staticmethod
    def backward(ctx, g):
        (slope,) = ctx.saved_tensors
        return g * slope


class Ignoring(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sign())
        return x.abs().sum()

    @staticmethod
    def backward(ctx, g):
        return ctx.saved_tensors[0]


class Linear(Function):
    @staticmethod
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w)
        return torch.nn.functional.linear(x, w, b)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            dx = g @ w
        if ctx.needs_input_grad[1]:
            dw = g.flatten(0, -2).t() @ x.flatten(0, -2)
        if ctx.needs_input_grad[2]:
            db = g.flatten(0, -2).sum(0)
        return dx, dw, db


class Top(Function):
    @staticmethod
    def forward(ctx, x):
        values, places = x.sort(-1)
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)
        return values, places

    @staticmethod
    def backward(ctx, g, _places):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, places, g)


class Halves(Function):
    """Two results, of which one may get no gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        if g is None:
            return None if h is None else h * 3
        return g * 2 if h is None else g * 2 + h * 3


class Zeros(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        return (g + 2 * h + 1).view(ctx.shape)  # where no gradient arrives, zeros do


class Nothing(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


class Scaled(Function):
    @staticmethod
    def forward(ctx, x):
        return x * FACTOR

    @staticmethod
    def backward(ctx, g):
        return g * FACTOR


class Normed(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g / (g.norm() + 1)


class Nested(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Swish.apply(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return Swish.apply(g * x)


class InPlace(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x.mul_(2).tanh_()

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * (1 - y * y) * 2


class Written(Function):
    @staticmethod
    def forward(ctx, x):
        out = x.clone()
        out[out < 0] *= 0.1
        ctx.save_for_backward(x < 0)
        return out

    @staticmethod
    def backward(ctx, g):
        (mask,) = ctx.saved_tensors
        return torch.where(mask, 0.1 * g, g)


class Base(Function):
    slope = 0.5

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.abs()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].sign() * Base.slope


class Inherited(Base):
    @staticmethod
    def forward(ctx, x):
        return Base.forward(ctx, x * 2)


class Vjp(Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def vjp(ctx, g):
        return g * ctx.saved_tensors[0]


class Cast(Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0]


class Several(Function):
    @staticmethod
    def forward(ctx, first, *rest):
        ctx.count = len(rest)
        ctx.shapes = [each.shape for each in rest]
        return first + sum(each.sum() for each in rest)

    @staticmethod
    def backward(ctx, g):
        return (g, *[g.sum().expand(shape) for shape in ctx.shapes])


class Plain(Function):
    @staticmethod
    def forward(ctx, number):
        return number * 2

    @staticmethod
    def backward(ctx, g):
        return None


class Later(Function):
    """Only its backward reads the factor."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * FACTOR


RECORDED = {
    "gelu": Gelu.apply,
    "straight through": lambda h: Straight.apply(h) * h,
    "clipped": lambda h: Clipped.apply(h, -1, 1.5),
    "reversed": lambda h: Reversed.apply(h, 0.3).sin(),
    "reversed, size": lambda h: Reversed.apply(h, h.shape[0]).sin(),
    "swish": Swish.apply,
    "loss": lambda h: Loss.apply(h) + h.sin(),
    "ignoring": lambda h: Ignoring.apply(h) + h.sin(),
    "sorted": lambda h: Top.apply(h)[0] * h,
    "first": lambda h: Halves.apply(h)[0].sin(),
    "second": lambda h: Halves.apply(h)[1].sin(),
    "both": lambda h: (lambda pair: pair[0].sin() * pair[1].cos())(Halves.apply(h)),
    "zeros": lambda h: Zeros.apply(h)[1] * 2,
    "nothing": lambda h: Nothing.apply(h) + h.sin(),
    "scaled": Scaled.apply,
    "normed": lambda h: Normed.apply(h).exp(),
    "nested": Nested.apply,
    "in place": lambda h: InPlace.apply(h * 1) * h,
    "written": Written.apply,
    "base": Base.apply,
    "inherited": Inherited.apply,
    "vjp": Vjp.apply,
    "cast": Cast.apply,
    "several": lambda h: Several.apply(h, h[0], h[:, :1]),
    "twice": lambda h: Gelu.apply(Gelu.apply(h) + Swish.apply(h)),
    "no tensors": lambda h: h * Plain.apply(3),
}
