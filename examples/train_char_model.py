"""Train a small transformer to add: text made here, characters in, characters out.

    python examples/train_char_model.py [--steps 600] [--eager]

Each line of the text is "47+85=132;". The model reads characters and predicts the next one; the loss counts the digits
of the sum only. With `staticrt.compile_step` the whole step (forward, backward, clipping, AdamW) is one program;
`--eager` runs the same step as it stands. Both have the same loss curve.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

import staticrt
from staticrt.training import optim

ALPHABET = "0123456789+=;"
LENGTH = 10  # of a line: two digits, "+", two digits, "=", three digits, ";"
ANSWER = 6  # where the sum begins


def make_batch(size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random lines: the characters but the last, and the characters but the first; int64 [size, LENGTH - 1]."""
    numbers = torch.randint(0, 100, (size, 2), generator=generator).tolist()
    lines = [f"{a:02d}+{b:02d}={a + b:03d};" for a, b in numbers]
    codes = torch.tensor([[ALPHABET.index(c) for c in line] for line in lines])
    return codes[:, :-1], codes[:, 1:]


class Block(nn.Module):
    """Causal attention and a feed-forward part, each with its norm before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norm2(x))


class CharModel(nn.Module):
    """Characters [batch, length] to logits [batch, length, alphabet]."""

    def __init__(self, width: int = 48, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), width)
        self.positions = nn.Parameter(torch.randn(LENGTH - 1, width) * 0.1)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(ALPHABET)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.characters(x) + self.positions))


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    """One training step; gradients are reset last, so that they need no memory between steps."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = model(x)[:, ANSWER - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), y[:, ANSWER - 1 :].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train(steps: int, *, compiled: bool, batch: int = 64, seed: int = 0) -> tuple[CharModel, list[float]]:
    """Train from `seed`; the model and the loss of every step."""
    torch.manual_seed(seed)
    model = CharModel()
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    step = make_step(model, optimizer)
    if compiled:
        step = staticrt.compile_step(step, fullgraph=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        losses.append(step(*make_batch(batch, generator)).item())
        schedule.step()
    return model, losses


@torch.no_grad()
def accuracy(model: nn.Module, count: int = 500) -> float:
    """Share of new sums whose digits the model all predicts."""
    x, y = make_batch(count, torch.Generator().manual_seed(1234))
    predicted = model(x).argmax(-1)
    return (predicted == y)[:, ANSWER - 1 : -1].all(1).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--eager", action="store_true", help="run the step as it stands")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    model, losses = train(arguments.steps, compiled=not arguments.eager)
    seconds = time.perf_counter() - begin
    for i in range(0, arguments.steps, max(1, arguments.steps // 10)):
        print(f"step {i:5d}   loss {losses[i]:.4f}")
    print(f"{seconds:.1f} s, {accuracy(model):.1%} of new sums right")


if __name__ == "__main__":
    main()
