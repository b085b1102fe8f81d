"""Models trained under FSDP2's `fully_shard` and tensor parallel plans, eagerly and compiled. Imported by the ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt.errors import InputError

STEPS = 20


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Counting(Block):
    """Changes itself in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) * (1 + 0.01 * self.calls)


class Deciding(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x - self.down(self.up(self.norm(x)))


class Net(nn.Module):
    """Blocks between two layers that no block holds; `checkpoints` runs blocks again in the backward."""

    def __init__(self, block: Callable[[], nn.Module] = Block, checkpoints: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16)  # a bias: rounding errors
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.dropout, self.last = nn.Dropout(0.1), nn.Linear(16, 4)
        self.checkpoints = checkpoints

    def forward(self, x: torch.Tensor, twice: bool = False) -> torch.Tensor:
        x = self.norm(self.first(x))
        for block in (*self.blocks, *(self.blocks if twice else ())):
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.last(self.dropout(x))


def _sharded(model: Net, **options: Any) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)


def _root_only(model: Net) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def _frozen(model: Net) -> None:
    model.blocks[0].requires_grad_(False)
    _sharded(model)


def _compiled_inside(model: Net) -> None:
    """Layers of the root are compiled on their own before the root is sharded."""
    if model.compiles:
        model.first, model.last = staticrt.compile(model.first), staticrt.compile(model.last)
    _sharded(model)


def _parallel(model: Net) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _precision(model: Net) -> None:
    model.norm = nn.LayerNorm(16)  # a batch norm's statistics stay float32
    _sharded(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))


# name -> (the model, what shards it)
CASES: dict[str, tuple[Callable[[], Net], Callable[[Net], None]]] = {
    "blocks": (Net, _sharded),
    "root only": (Net, _root_only),
    "stays gathered": (Net, lambda model: _sharded(model, reshard_after_forward=False)),
    "mixed precision": (Net, _precision),
    "frozen": (Net, _frozen),
    "checkpointed": (lambda: Net(checkpoints=True), _sharded),
    "counting": (lambda: Net(Counting), _sharded),
    "deciding": (lambda: Net(Deciding), _sharded),
    "compiled inside": (Net, _compiled_inside),
    "tensor parallel": (Net, _parallel),
}


def trained(rank: int, case: str, way: str) -> dict[str, Any]:
    """The whole state and evaluations after training, and what `explain()` says."""
    make, shard = CASES[case]
    torch.manual_seed(7)
    model = make()
    model.compiles = way == "compiled"
    shard(model)
    run: Any = staticrt.compile(model) if way == "compiled" else model
    seen: list[int] = []
    if case not in ("root only", "tensor parallel"):  # whose graphs hold the blocks
        model.blocks[1].register_forward_hook(lambda module, args, result: seen.append(len(result)))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    torch.manual_seed(100 + rank)
    evaluated = []
    alike = case == "tensor parallel"  # each rank sees the same batch
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(1000 * (0 if alike else rank) + number)
        x = torch.randn(6 - 2 * (number % 5 == 3), 8, generator=generator)
        if alike:
            torch.manual_seed(number)
        if not alike and number % 6 == 4:  # gradients are added up, and reduced in the next step
            model.set_requires_gradient_sync(False)
            run(x).square().mean().backward()
            model.set_requires_gradient_sync(True)
        run(x, twice=number % 7 == 5).square().mean().backward()
        if not alike:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number % 4 == 3:
            model.eval()
            with torch.no_grad():
                evaluated.append(run(x))
            model.train()
    return {
        "state": {name: _whole(value) for name, value in model.state_dict().items()},
        "evaluated": evaluated,
        "seen": seen,
        "calls": [block.calls for block in model.blocks],
        "attributes": [{*map(str, vars(module))} - {"_is_torch_compile"} for module in model.modules()],
        "explain": str(run.explain()) if way == "compiled" else "",
    }


def _whole(value: torch.Tensor) -> torch.Tensor:
    return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()


def refused(rank: int) -> str:
    """What sharding a compiled module raises."""
    block = Block()
    before = type(block)
    try:
        fully_shard(staticrt.compile(block), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    except InputError as error:
        assert type(block) is before
        return str(error)
    return ""
