"""Models trained by `DistributedDataParallel`, eagerly and compiled. Imported by the ranks' own processes."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt.errors import InputError

STEPS = 20
WAYS = ("around", "inside", "step around", "step inside")


class Net(nn.Module):
    """Buffers, dropout, and layers that a call may leave out."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, width), nn.BatchNorm1d(width)
        self.body = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor, layers: int = 3) -> torch.Tensor:
        x = self.norm(self.first(x))
        for layer in self.body[:layers]:
            x = x + torch.tanh(layer(x))
        return self.last(self.dropout(x))


class Tied(nn.Module):
    """One weight that is read twice, a frozen embedding, and a dict of results, one of which may go unused."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(32, 16), nn.Embedding(8, 16)
        self.places.requires_grad_(False)
        self.mix = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.mix(self.words(ids) + self.places.weight[: ids.shape[1]])
        return {"logits": hidden @ self.words.weight.T, "hidden": hidden}


class Decides(nn.Module):
    """Data decides which of two layers runs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.a(x) if x.sum() > 0 else self.b(x)
        return self.last(torch.relu(hidden))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda y: torch.tanh(self.first(y)), x, use_reentrant=False)
        return self.second(hidden)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(8, 12, batch_first=True), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x)[0][:, -1])


def batches(rank: int, sizes: tuple[int, ...] = (6,)) -> Iterator[torch.Tensor]:
    for step in range(STEPS):
        yield torch.randn(sizes[step % len(sizes)], 8, generator=_generator(rank, step))


def _generator(rank: int, step: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * rank + step)


class Run:
    """One model trained one way.

    Attributes:
        parallel: the `DistributedDataParallel`.
        call: what is called like it: itself, or compiled.
        step: runs a training step, which is a function of its arguments.
    """

    def __init__(self, way: str, model: nn.Module, lr: float = 0.05, **options: Any) -> None:
        inner = staticrt.compile(model) if way.endswith("inside") else model
        self.way = way
        self.model = model
        self.parallel = DistributedDataParallel(inner, **options)
        self.call: Any = staticrt.compile(self.parallel) if way == "around" else self.parallel
        self.optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=lr, momentum=0.9
        )
        self._compiled: Any = self.call if way == "around" else inner if way == "inside" else None

    def step(self, function: Callable[..., torch.Tensor]) -> Any:
        if self.way.startswith("step"):
            function = self._compiled = staticrt.compile_step(function)
        return function

    def training(self, loss_of: Callable[..., torch.Tensor]) -> Any:
        """A step of the optimiser, which returns the loss of its arguments."""

        def step(*args: Any) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(*args)
            loss.backward()
            self.optimizer.step()
            return loss

        return self.step(step)

    def explain(self) -> str:
        return "" if self._compiled is None else str(self._compiled.explain())


def plain(rank: int, run: Run, sizes: tuple[int, ...] = (6,)) -> None:
    step = run.training(lambda x: run.call(x).square().mean())
    for x in batches(rank, sizes):
        step(x)


def slowly(rank: int, run: Run) -> None:
    run.optimizer.param_groups[0]["lr"] = 1e-3
    plain(rank, run)


def sizes(rank: int, run: Run) -> None:
    plain(rank, run, (6, 3, 6, 2 + rank * 4, 9))


def accumulation(rank: int, run: Run) -> None:
    def micro(x: torch.Tensor) -> torch.Tensor:
        loss = run.call(x).square().mean() / 3
        loss.backward()
        return loss

    micro_ = run.step(micro)
    for number, x in enumerate(batches(rank)):
        with run.parallel.no_sync() if number % 3 != 2 else contextlib.nullcontext():
            micro_(x)
        if number % 3 == 2:
            nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=number % 2 == 0)


def layers(rank: int, run: Run) -> None:
    """Each rank leaves out other layers, other ones in each step."""

    step = run.training(lambda x, layers: run.call(x, layers=layers).square().mean())
    for number, x in enumerate(batches(rank)):
        step(x, (number + rank) % 4)


def joined(rank: int, run: Run) -> None:
    """Rank 0 has half of the batches."""

    step = run.training(lambda x: run.call(x).square().mean())
    with run.parallel.join() if rank % 2 else Join([run.parallel]):
        for number, x in enumerate(batches(rank)):
            if rank == 0 and number >= STEPS // 2:
                break
            step(x)


def words(rank: int, run: Run) -> None:
    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(run.call(ids)["logits"].flatten(0, 1), ids.flatten())

    step = run.training(loss_of)
    for number in range(STEPS):
        step(torch.randint(32, (3, 5 + number % 3), generator=_generator(rank, number)))


def twice(rank: int, run: Run) -> None:
    """Two calls before one backward, and gradients of the input."""

    step = run.training(lambda x, y: (run.call(x) - run.call(y)).square().mean())
    for x in batches(rank):
        step(x, x.flip(0).requires_grad_())


def autocast(rank: int, run: Run) -> None:
    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return run.call(x).float().square().mean()

    step = run.training(loss_of)
    for x in batches(rank):
        step(x)


def sequences(rank: int, run: Run) -> None:
    step = run.training(lambda x: run.call(x).square().mean())
    for number in range(STEPS):
        step(torch.randn(4, 5 + number % 3, 8, generator=_generator(rank, number)))


def evaluated(rank: int, run: Run) -> None:
    """Training and evaluation by turns, with hooks on the wrapper and on the model."""
    run.parallel.register_forward_hook(lambda module, args, result: result * 2)
    run.model.register_forward_hook(lambda module, args, result: result + 1)
    seen = []
    for number, x in enumerate(batches(rank)):
        if number % 4 == 3:
            run.parallel.eval()
            with torch.no_grad():
                seen.append(run.call(x))
            run.parallel.train()
        run.optimizer.zero_grad()
        run.call(x).square().mean().backward()
        run.optimizer.step()
    with torch.no_grad():
        run.model.norm.running_mean.add_(torch.stack(seen).mean())  # it shows in the state


def compressed(rank: int, run: Run) -> None:
    run.parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    plain(rank, run)


def _frozen() -> Net:
    model = Net()
    model.first.requires_grad_(False)
    model.body[1].bias.requires_grad_(False)
    return model


# name -> (the model, how it is trained, options of DistributedDataParallel)
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int, Run], None], dict[str, Any]]] = {
    "buffers": (Net, plain, {}),
    "own buffers": (Net, plain, {"broadcast_buffers": False}),
    "sizes": (Net, sizes, {}),
    "torch's": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), plain, {}),
    "accumulation": (Net, accumulation, {}),
    "unused": (Net, layers, {"find_unused_parameters": True}),
    "unused small": (Net, layers, {"find_unused_parameters": True, "bucket_cap_mb": 1e-4}),
    "small buckets": (Net, plain, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}),
    "accumulated views": (Net, accumulation, {"bucket_cap_mb": 1e-4, "gradient_as_bucket_view": True}),
    "static graph": (Net, plain, {"static_graph": True}),
    "buckets": (lambda: Net(400), slowly, {"bucket_cap_mb": 1}),
    "frozen": (_frozen, plain, {}),
    "joined": (Net, joined, {}),
    "tied": (Tied, words, {}),
    "twice": (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), twice, {}),
    "decides": (Decides, plain, {"find_unused_parameters": True}),
    "checkpointed": (Checkpointed, plain, {}),
    "recurrent": (Recurrent, sequences, {}),
    "autocast": (Net, autocast, {}),
    "evaluated": (Net, evaluated, {}),
    "compressed": (Net, compressed, {}),
}


def trained(rank: int, case: str, way: str) -> tuple[dict[str, torch.Tensor], str]:
    """The state after training, and what `explain()` says of what was compiled."""
    make, train, options = CASES[case]
    torch.manual_seed(7)
    model = make()
    torch.manual_seed(100 + rank)  # of dropout
    run = Run(way, model, **options)
    train(rank, run)
    dist.barrier()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, run.explain()


def _steps(way: str, group: Any = None) -> Callable[[], Any]:
    """What runs collectives of all ranks, compiled."""
    if way == "graph":

        def model(x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            dist.all_reduce(y, group=group)
            return y + 1

        fast = staticrt.compile(model, fullgraph=True)
        return lambda: fast(torch.ones(3))
    run = Run(way, Net(), process_group=group)

    def step() -> None:
        run.call(torch.randn(6, 8)).square().mean().backward()

    return step


def dies(rank: int, way: str) -> None:
    """Rank 1 ends without a word after two steps; rank 0 goes on."""
    step = _steps(way)
    for number in range(6):
        if rank == 1 and number == 2:
            os._exit(3)
        step()


def is_late(rank: int, way: str) -> str:
    """Rank 1 makes a step less than rank 0, which waits for ten seconds. Returns the error, or ""."""
    step = _steps(way, dist.new_group(timeout=datetime.timedelta(seconds=10)))
    for _number in range(2):
        step()
        dist.barrier()
    told = ""
    if rank == 0:
        try:
            step()
        except RuntimeError as error:
            told = str(error)
    dist.barrier()
    return told


def wrapped(rank: int) -> dict[str, Any]:
    """What a compiled wrapper is besides its calls."""
    parallel = DistributedDataParallel(Net())
    fast = staticrt.compile(parallel)
    again = staticrt.compile(fast)
    x = torch.ones(2, 8)
    with torch.no_grad():
        same = torch.allclose(fast.eval()(x), parallel(x)) and torch.allclose(again.forward(x), parallel(x))
    try:
        fast.swap_weights(parallel.state_dict())
    except InputError as error:
        refused = str(error)
    return {
        "same": same,
        "modules": [fast.module is parallel.module, again.module is parallel.module],
        "keys": list(fast.state_dict()) == list(parallel.state_dict()),
        "refused": refused,
        "traces": [str(each.explain()).splitlines()[0] for each in (fast, again)],
    }
