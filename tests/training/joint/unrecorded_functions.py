"""Custom autograd Functions whose backward depends on more than a joint trace may record, and the reason that it tells."""

from __future__ import annotations

import torch
from torch.autograd import Function

from tests.training.joint.recorded_functions import Reversed


class Settings:
    factor = 2.0


SETTINGS = Settings()


class Keeping(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.x


class Reading(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * SETTINGS.factor


class Calling(Function):
    @staticmethod
    def forward(ctx, x, function):
        ctx.function = function
        return function(x)

    @staticmethod
    def backward(ctx, g):
        return ctx.function(g), None


class Drawing(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class Deciding(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g if g.sum() > 0 else -g


class Rerunning(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(x.sin(), x, g)[0]


class Counting(Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        Counting.calls += 1
        return g * Counting.calls


class Popping(Function):
    """The second backward of a call differs from the first."""

    @staticmethod
    def forward(ctx, x):
        ctx.factors = [2.0, 3.0]
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factors.pop()


class Setting(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = 2.0
        return x * 1

    @staticmethod
    def backward(ctx, g):
        ctx.factor += 1
        return g * ctx.factor


LEFT = {
    "keeping": (Keeping.apply, "keeps tensors"),
    "reading": (Reading.apply, "reads SETTINGS"),
    "calling": (lambda h: Calling.apply(h, torch.sin), "keeps an object"),
    "drawing": (Drawing.apply, "its backward calls"),
    "deciding": (Deciding.apply, "data"),
    "rerunning": (Rerunning.apply, "reads"),
    "counting": (Counting.apply, "reads Counting"),
    "popping": (Popping.apply, "changes its context"),
    "setting": (Setting.apply, "changes factor"),
    "a view": (
        lambda h: Reversed.apply(h, 0.3),
        "every result that needs a gradient is an input or a view of one",
    ),
}
