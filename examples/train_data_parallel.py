"""Train with DistributedDataParallel in several processes, eagerly and compiled, and compare.

    python examples/train_data_parallel.py --processes 2 --threads 1
    python examples/train_data_parallel.py --ways eager staticrt torch.compile

Each process trains the same transformer on batches of its own; gloo averages the gradients. Every way takes the same steps from the same
weights, by turns, so that a busy machine slows all of them. Printed are steps per second and CPU time per step of process 0, and how
far the weights are in the end from those of the first way.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

import staticrt

WAYS = ("eager", "staticrt", "torch.compile")


class Classifier(nn.Module):
    """A transformer over float32 [batch, length, 128] that gives [batch, 10]."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.last = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x).mean(1))


class Training:
    """One way to train."""

    def __init__(self, way: str, layers: int) -> None:
        torch.manual_seed(0)
        self.model = Classifier(layers)
        inner: Any = staticrt.compile(self.model) if way == "staticrt" else self.model
        self.parallel: Any = DistributedDataParallel(inner)
        if way == "torch.compile":
            self.parallel = torch.compile(self.parallel)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.generator = torch.Generator().manual_seed(1 + dist.get_rank())
        self.rates: list[tuple[float, float]] = []  # steps per second, CPU seconds of a step

    def train(self, steps: int, batch: int, length: int) -> None:
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            x = torch.randn(batch, length, 128, generator=self.generator)
            y = torch.randint(10, (batch,), generator=self.generator)
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.parallel(x), y).backward()
            self.optimizer.step()
        self.rates.append((steps / (time.perf_counter() - begin), (time.process_time() - cpu) / steps))


def run(rank: int, store: str, args: argparse.Namespace) -> None:
    """One process of the group."""
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=args.processes)
    ways = {way: Training(way, args.layers) for way in args.ways}
    for training in ways.values():
        training.train(3, args.batch, args.length)  # traces, plans, warms up
        training.rates.clear()
    for _ in range(args.rounds):
        for training in ways.values():
            dist.barrier()
            training.train(args.steps, args.batch, args.length)
    if rank == 0:
        weights = {way: parameters_to_vector(ways[way].model.parameters()).detach() for way in ways}
        for way, training in ways.items():
            rate, cpu = (statistics.median(column) for column in zip(*training.rates, strict=True))
            apart = float((weights[way] - weights[args.ways[0]]).abs().max())
            print(
                f"{way:14} {rate:6.1f} steps/s {1e3 * cpu:7.1f} CPU ms a step   {apart:.0e} apart", flush=True
            )
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["eager", "staticrt"])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(str(Path(folder) / "store"), args), nprocs=args.processes)


if __name__ == "__main__":
    main()
