"""What the interrupt fuzzer calls: small models, and the ways in which they are compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import staticrt


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": self.layers(x), "size": x.shape[0]}


class Writes(nn.Module):
    """It writes buffers and its arguments' memory, and keeps attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.last = 0

    def forward(self, x: torch.Tensor) -> Any:
        self.last = x.shape[1]
        self.count.add_(1)
        y = self.layer(x).add_(1)
        y[0] = 1
        return y


class Decides(nn.Module):
    """Data decides a branch and a size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = self.layer(x)
        if y.sum() > 0:
            y = y + 1
        return y[y > 0].sum(), y


class Body(nn.Module):
    """Control flow, and recurrent layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.cell = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        def more(y: torch.Tensor) -> tuple[torch.Tensor]:
            return (y + 1,)

        def less(y: torch.Tensor) -> tuple[torch.Tensor]:
            return (y - 1,)

        (y,) = torch.ops.higher_order.cond(x.sum() > 0, more, less, (self.layer(x),))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.layer(x)
        return self.cell(y[None])[0], z


MODELS = (Plain, Writes, Decides, Body)


class Case:
    """A compiled callable and what it is compared with.

    Args:
        model: the module that is compiled; `eager` answers like it.
        call: compiled callable or eager module, argument -> answer.
    """

    def __init__(
        self, model: nn.Module, compiled: Any, call: Callable[[Any, torch.Tensor], Any], warm: Any = None
    ) -> None:
        self.model = model
        self.compiled = compiled
        self.call = call
        if warm is not None:
            with torch.no_grad():
                call(compiled, warm)
        self.eager = copy.deepcopy(model)

    def same_values(self) -> None:
        """An interrupted call may have written buffers, and a step parameters, or not."""
        for own, real in zip(self.eager.state_dict().values(), self.model.state_dict().values(), strict=True):
            own.copy_(real)


def infer(function: Any, x: torch.Tensor) -> Any:
    return function(x)


def _train(function: Any, x: torch.Tensor) -> Any:
    x = x.clone().requires_grad_()
    outputs = [y for y in torch.utils._pytree.tree_leaves(function(x)) if isinstance(y, torch.Tensor)]
    loss = sum(y.float().sum() for y in outputs)
    return [loss.detach(), *torch.autograd.grad(loss, x)]


class Step:
    """One step of gradient descent of a module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [y for y in torch.utils._pytree.tree_leaves(self.model(x)) if isinstance(y, torch.Tensor)]
        loss = sum(y.float().sum() for y in outputs)
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=0.01)
        return loss.detach()


def _step_of(function: Any, x: torch.Tensor) -> Any:
    step = Step(function) if isinstance(function, nn.Module) else function
    return [step(x), *(parameter.detach().clone() for parameter in step.model.parameters())]


def _step(model: nn.Module, x: torch.Tensor) -> Case:
    step = Step(model)
    compiled = staticrt.compile_step(step)
    compiled.model = model
    return Case(model, compiled, _step_of)


def _first(model: nn.Module, x: torch.Tensor) -> Case:
    return Case(model, staticrt.compile(model), infer)


def _second_size(model: nn.Module, x: torch.Tensor) -> Case:
    return Case(model, staticrt.compile(model), infer, x[:2])


def _training(model: nn.Module, x: torch.Tensor) -> Case:
    return Case(model, staticrt.compile(model), _train)


def _backend(model: nn.Module, x: torch.Tensor) -> Case:
    torch._dynamo.reset()
    return Case(model, torch.compile(model, backend="staticrt"), infer)


WAYS: dict[str, Callable[[nn.Module, torch.Tensor], Case]] = {
    "first": _first,
    "second": _second_size,
    "training": _training,
    "backend": _backend,
    "step": _step,
}
