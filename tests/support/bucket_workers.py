"""Models whose gradients `DistributedDataParallel` reduces in several buckets. Imported by the ranks' own processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import staticrt
from tests.support.data_parallel_workers import STEPS, Run, batches

WIDTH = 32


class Skips(nn.Module):
    """The results of early layers are read by late ones, past several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.body = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(6))
        self.shift = nn.Parameter(torch.randn(2, WIDTH))  # its gradient is that of a sum, unchanged
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = x = F.gelu(self.first(x))
        for layer, norm in zip(self.body, self.norms, strict=True):
            x = norm(torch.tanh(layer(x)).view(2, -1, WIDTH).flatten(0, 1)) + early
        x = torch.cat([x[:2] + self.shift, x[2:]]) + early
        return self.last(x[:, ::2].repeat(1, 2))


class Shared(nn.Module):
    """One layer runs first, in the middle and last: its gradient is complete at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.again, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.sigmoid(self.again(self.first(x)))
        x = torch.sin(self.again((torch.sigmoid(self.other(x)) * self.scale).float()))
        return self.last(self.again(x))


class Parts(nn.Module):
    """Every other layer lies in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 4)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))
            for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for number, layer in enumerate(self.body):
            x = checkpoint(layer, x, use_reentrant=False) if number % 2 else layer(x)
        return self.last(x)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 4),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.view(-1, 1, 2, 4))


def layers(count: int = 6, width: int = WIDTH) -> nn.Module:
    body = [layer for _ in range(count - 1) for layer in (nn.Tanh(), nn.Linear(width, width))]
    return nn.Sequential(nn.Linear(8, width), *body)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "layers": layers,
    "skips": Skips,
    "shared": Shared,
    "parts": Parts,
    "images": Images,
}


def reduced(
    rank: int, model: str, way: str, options: dict[str, Any]
) -> tuple[dict[str, torch.Tensor], list[int], list[str], str]:
    """Trains a model.

    Returns:
        Its state; the number of elements of each bucket of the last step; what the backward of one more step did, in
        order: "run" for an operator of ours, "bucket" where a bucket's reduction began; and `explain()`.
    """
    torch.manual_seed(7)
    network = MODELS[model]()
    torch.manual_seed(100 + rank)
    run = Run(way, network, **{"bucket_cap_mb": 5e-3, **options})
    sizes: list[int] = []

    def hook(group, bucket):  # type: ignore[no-untyped-def]  # torch evaluates no annotations that are strings
        sizes.append(bucket.buffer().numel())
        with torch.profiler.record_function("bucket"):
            return default_hooks.allreduce_hook(group, bucket)

    run.parallel.register_comm_hook(None, hook)
    for number, x in enumerate(batches(rank)):
        sizes.clear()
        run.optimizer.zero_grad()
        loss = run.call(x).square().mean()
        if number + 1 < STEPS:
            loss.backward()
            run.optimizer.step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as profiler:
        loss.backward()
    run.optimizer.step()
    dist.barrier()
    events = profiler.profiler.kineto_results.events()
    names = [name for _time, name in sorted((event.start_ns(), event.name()) for event in events)]
    kinds = [
        "bucket" if name == "bucket" else "run"
        for name in names
        if name == "bucket" or name.startswith("staticrt::")
    ]
    return dict(network.state_dict()), sizes, kinds, run.explain()


def nodes_of_backwards(rank: int) -> list[int]:
    """How many autograd nodes the backward of a compiled model has: alone, wrapped with small buckets, with one, alone."""
    torch.manual_seed(7)
    compiled = staticrt.compile(layers())
    x = torch.randn(6, 8)
    small, large = (DistributedDataParallel(compiled, bucket_cap_mb=cap) for cap in (5e-3, 25))
    found = []
    for call in (compiled, small, large, compiled):
        for _ in range(3):
            loss = call(x).square().mean()
            loss.backward()
        node: Any = loss.grad_fn
        names = []
        while node is not None:
            names.append(node.name())
            node = next((n for n, _number in reversed(node.next_functions) if n is not None), None)
        found.append(names.count("StaticGraphBackward"))
    return found
