"""Models, data and a reference loop for tests of whole training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.training import optim


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Dropout(0.2), nn.LayerNorm(24), nn.Linear(24, 4))


def every_loss(x: torch.Tensor) -> torch.Tensor:
    """Losses of numbers and of labels, and activations that few models have."""
    y = x.detach()
    odds, truth = F.prelu(F.elu(x), torch.tensor([0.2])), (y > 0).float()
    distances = [F.mse_loss(x, y + 1), F.smooth_l1_loss(x, y + 1), F.huber_loss(x, y + 1, reduction="sum")]
    labels = [
        F.binary_cross_entropy(odds.sigmoid(), truth),
        F.binary_cross_entropy_with_logits(odds, truth, pos_weight=truth[0]),
    ]
    return torch.stack([*distances, *labels, F.triplet_margin_loss(x, y + 1, y - 1)])


class Cnn(nn.Module):
    """Convolutions with BatchNorm and dropout; input [batch, 3 * 64].

    No bias before BatchNorm, nor for keys below: their gradients are rounding errors, which Adam makes large.
    """

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * 16, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x.view(-1, 3, 8, 8)))


class Lstm(nn.Module):
    """An unrolled LSTM cell; input [batch, 6 * 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 8)
        c = x.new_zeros(x.shape[0], 8)
        for t in x.view(-1, 6, 4).unbind(1):
            h, c = self.cell(t, (h, c))
        return self.head(h)


class Transformer(nn.Module):
    """A pre-norm block with causal attention; input [batch, 5 * 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48, bias=False), nn.Linear(16, 16)
        self.ffn = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(-1, 5, 16)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.ffn(self.norm2(x))
        return self.head(x.mean(1))


class CharModel(nn.Module):
    """An embedding, tied with the output, and a GRU cell; input [batch, 5] of ints below 11."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.cell = nn.GRUCell(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[0], 8)
        for t in range(x.shape[1]):
            h = self.cell(self.embedding(x[:, t]), h)
        return F.linear(h, self.embedding.weight)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[torch.Tensor, torch.Tensor]]]] = {
    "mlp": (mlp, lambda n: (torch.randn(n, 12), torch.randint(0, 4, (n,)))),
    "cnn": (Cnn, lambda n: (torch.randn(n, 3 * 64), torch.randint(0, 4, (n,)))),
    "lstm": (Lstm, lambda n: (torch.randn(n, 24), torch.randint(0, 4, (n,)))),
    "transformer": (Transformer, lambda n: (torch.randn(n, 80), torch.randint(0, 4, (n,)))),
    "char": (CharModel, lambda n: (torch.randint(0, 11, (n, 5)), torch.randint(0, 11, (n,)))),
}


class Gated(nn.Module):
    """A gated MLP; input [batch, 16]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(16, 64), nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x)).softmax(-1)


# name -> how to make the model, the sizes of its input
ACTIVATION_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "cnn": (Cnn, (32, 3 * 64)),
    "lstm": (Lstm, (64, 24)),
    "transformer": (Transformer, (32, 80)),
    "gated": (Gated, (64, 16)),
    "mlp": (
        lambda: nn.Sequential(
            nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 64)
        ),
        (128, 64),
    ),
    "activations": (lambda: nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Mish(), nn.Softplus()), (128, 64)),
}

OPTIMIZERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, optim.SGD, {"lr": 0.1}),
    "sgd-momentum": (torch.optim.SGD, optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}),
    "sgd-dampening": (torch.optim.SGD, optim.SGD, {"lr": 0.05, "momentum": 0.8, "dampening": 0.3}),
    "sgd-nesterov": (torch.optim.SGD, optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd-maximize": (torch.optim.SGD, optim.SGD, {"lr": 1e-3, "maximize": True}),
    "adam": (torch.optim.Adam, optim.Adam, {"lr": 1e-2}),
    "adam-decay": (torch.optim.Adam, optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.8, 0.95)}),
    "adam-amsgrad": (torch.optim.Adam, optim.Adam, {"lr": 1e-2, "amsgrad": True, "eps": 1e-6}),
    "adamw": (torch.optim.AdamW, optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "adamw-all": (
        torch.optim.AdamW,
        optim.AdamW,
        {"lr": 1e-3, "weight_decay": 0.1, "amsgrad": True, "maximize": True},
    ),
}


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """zero_grad, forward, backward, update."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def run_both(
    make_model: Callable[[], nn.Module],
    batches: list[tuple[Any, ...]],
    optimizer: str = "adamw",
    make_step: Callable[..., Callable[..., Any]] = plain_step,
    between: Callable[[int, nn.Module, torch.optim.Optimizer], None] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Train eagerly with torch's optimiser and compiled with ours, from one seed, and compare everything.

    Returns:
        The compiled step and its optimiser.
    """
    torch.manual_seed(0)
    eager_model = make_model()
    model = copy.deepcopy(eager_model)
    eager_type, own_type, arguments = OPTIMIZERS[optimizer]
    eager_optimizer = eager_type(eager_model.parameters(), **arguments)
    own_optimizer = own_type(model.parameters(), **arguments)
    eager_step = make_step(eager_model, eager_optimizer)
    step = staticrt.compile_step(make_step(model, own_optimizer), **options)
    results = []
    for run, m, o in ((eager_step, eager_model, eager_optimizer), (step, model, own_optimizer)):
        torch.manual_seed(1)
        losses = []
        for i, batch in enumerate(batches):
            losses.append(run(*batch).detach())
            if between is not None:
                between(i, m, o)
        results.append((losses, torch.get_rng_state()))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-4, atol=1e-5)
    assert torch.equal(results[0][1], results[1][1]), "random numbers were drawn otherwise"
    assert_same(model, eager_model, own_optimizer, eager_optimizer)
    return step, own_optimizer


def assert_same(model: nn.Module, eager: nn.Module, optimizer: Any, eager_optimizer: Any) -> None:
    """Parameters, buffers, gradients and optimiser state."""
    torch.testing.assert_close(model.state_dict(), eager.state_dict(), rtol=1e-4, atol=1e-5)
    for (name, p), q in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
            assert p.grad.stride() == q.grad.stride()
    ours, theirs = optimizer.state_dict(), eager_optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    torch.testing.assert_close(ours["state"], theirs["state"], rtol=1e-4, atol=1e-5)


def data(name: str, steps: int = 20, size: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(2)
    return [MODELS[name][1](size) for _ in range(steps)]


def small_net(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))


def rows(width=16):
    return lambda call: (torch.randn(3 + 2 * call, width, requires_grad=True),)


def pair(make, **arguments):
    """Two equal models, torch's optimiser of the first and ours of the second."""
    torch.manual_seed(0)
    a = make()
    b = copy.deepcopy(a)
    return a, b, torch.optim.Adam(a.parameters(), **arguments), optim.Adam(b.parameters(), **arguments)
