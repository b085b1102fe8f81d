"""What each rank of a distributed test runs. Imported by the ranks' own processes."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch import nn

import staticrt

WORLD = 2


class TensorParallel(nn.Module):
    """The rank's half of an MLP: columns of the first matrix, rows of the second, one reduction."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor, rank: int) -> None:
        super().__init__()
        half = first.shape[1] // WORLD
        self.first = nn.Parameter(first[:, rank * half : (rank + 1) * half].clone())
        self.second = nn.Parameter(second[rank * half : (rank + 1) * half].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = F.relu(x @ self.first) @ self.second
        return funcol.all_reduce(part, "sum", dist.group.WORLD)


def weights() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 16), torch.randn(16, 4), torch.randn(5, 8)


def tensor_parallel(rank: int) -> dict[str, Any]:
    """Results of the compiled half models, over several sizes, by both entry points."""
    first, second, x = weights()
    found: dict[str, Any] = {}
    for entry in ("compile", "backend"):
        module = TensorParallel(first, second, rank).eval()
        fast = (
            staticrt.compile(module, fullgraph=True)
            if entry == "compile"
            else torch.compile(module, backend="staticrt", fullgraph=True)
        )
        with torch.no_grad():
            found[entry] = [fast(x[:size]).clone() for size in (5, 5, 5, 3, 5)]
        if entry == "compile":
            text = str(fast.explain())
            found["explain"] = text
    return found


def ordered(rank: int) -> dict[str, Any]:
    """Collectives that nobody reads, that are equal, and that depend on nothing."""

    def model(x: torch.Tensor) -> torch.Tensor:
        # Nobody reads it: the other rank waits for it all the same.
        funcol.all_reduce(x, "sum", dist.group.WORLD)
        a = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        b = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        gathered = funcol.all_gather_tensor(x + rank, 0, dist.group.WORLD)
        scattered = funcol.reduce_scatter_tensor(gathered, "sum", 0, dist.group.WORLD)
        return torch.cat([a + b, gathered, scattered])

    x = torch.arange(4.0).reshape(2, 2) + 10 * rank
    fast = staticrt.compile(model, fullgraph=True)
    with torch.no_grad():
        expected = model(x)
        results = [fast(x).clone() for _ in range(4)]
    return {"expected": expected, "results": results, "explain": str(fast.explain())}


def data_parallel(rank: int) -> dict[str, Any]:
    """Gradients of `DDP(torch.compile(model))` and of eager DDP, each rank with its own batch."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model.load_state_dict(eager.state_dict())
    expected = nn.parallel.DistributedDataParallel(eager)
    fast = nn.parallel.DistributedDataParallel(torch.compile(model, backend="staticrt"))
    torch.manual_seed(10 + rank)
    grads = []
    for _ in range(3):
        x, y = torch.randn(6, 8), torch.randint(0, 4, (6,))
        pair = []
        for run, module in ((expected, eager), (fast, model)):
            module.zero_grad()
            F.cross_entropy(run(x), y).backward()
            pair.append([p.grad.clone() for p in module.parameters()])
        grads.append(pair)
    from staticrt.training import debug_state

    return {"grads": grads, "regions": [region["calls"] for region in debug_state()]}


class _Branches(nn.Module):
    """Buffers, a parameter that is used in some calls only, and enough weights for several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 400), nn.BatchNorm1d(400)
        self.body = nn.Sequential(nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 400), nn.Dropout(0.2))
        self.last, self.extra = nn.Linear(400, 4), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, extra: bool = False) -> torch.Tensor:
        y = self.last(self.body(self.norm(self.first(x))))
        return y + self.extra(x) if extra else y


def _trained_in_parallel(rank: int, way: str, kind: str) -> dict[str, Any]:
    torch.manual_seed(0)
    if kind == "torch's":
        layers = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4)
        model: nn.Module = nn.Sequential(*layers)
        parallel = nn.parallel.DistributedDataParallel(model)
    else:
        model = _Branches()
        parallel = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1, find_unused_parameters=True)
    calls = []
    model.register_forward_hook(lambda module, args, result: calls.append(tuple(result.shape)))
    parallel.register_forward_hook(lambda module, args, result: result * 2)
    run: Any = parallel
    if way == "compiled":
        run = staticrt.compile(parallel)
    elif way == "backend":
        run = torch.compile(parallel, backend="staticrt")
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-2, momentum=0.9)
    torch.manual_seed(10 + rank)
    outputs, grads = [], []
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(2):
            more = {"extra": True} if kind == "own" and step % 2 else {}
            with parallel.no_sync() if micro == 0 else contextlib.nullcontext():
                out = run(torch.randn(6 if step != 4 else 3, 8), **more)
                out.square().mean().backward()
            outputs.append(out.detach())
        grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        optimizer.step()
    parallel.eval()
    with torch.no_grad():
        outputs.append(run(torch.randn(5, 8)))
    found: dict[str, Any] = {"outputs": outputs, "grads": grads, "calls": calls, "state": model.state_dict()}
    if way == "compiled":
        found["explain"] = str(run.explain())
        found["keys"] = list(parallel.state_dict())
        found["module"] = parallel.module is model and "_run_ddp_forward" not in vars(parallel)
    torch._dynamo.reset()
    return found


def compiled_data_parallel(rank: int) -> dict[str, Any]:
    """`DDP(model)` compiled by both entry points and eager, trained on each rank's own batches."""
    ways = "eager", "compiled", "backend"
    return {kind: {way: _trained_in_parallel(rank, way, kind) for way in ways} for kind in ("torch's", "own")}
