"""What each rank of a test of sharded tensors and written collectives runs. Imported by the ranks' own processes."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import staticrt
from staticrt.training import optim

ENTRIES = {
    "compile": staticrt.compile,
    "backend": lambda function: torch.compile(function, backend="staticrt"),
}


def _whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.full_tensor().detach().clone() for name, p in model.state_dict().items()}


def _parallel_mlp() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def _train(run: Any, model: nn.Module) -> Any:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for size in (6, 6, 4, 6):
        x, y = torch.randn(size, 8), torch.randn(size, 4)
        loss = F.mse_loss(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, _whole(model)


def sharded(rank: int) -> dict[str, Any]:
    """A tensor-parallel MLP, and a function of DTensors, trained eagerly and through each entry."""
    from staticrt.training import debug_state

    found: dict[str, Any] = {}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def product(a: Any, b: Any) -> Any:
        return (a @ b).relu().redistribute(placements=[Replicate()]).sin()

    torch.manual_seed(0)
    a = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    b = distribute_tensor(torch.randn(6, 4), mesh, [Replicate()])

    def gradients(run: Any) -> Any:
        results = []
        for _ in range(3):
            p, q = a.detach().requires_grad_(), b.detach().requires_grad_()
            out = run(p, q)
            out.sum().backward()
            results.append([t.full_tensor() for t in (out.detach(), p.grad, q.grad)])
        return results

    for entry, compiled in {"eager": lambda function: function, **ENTRIES}.items():
        model = _parallel_mlp()
        found[entry] = _train(compiled(model), model), gradients(compiled(product))
        torch._dynamo.reset()
    found["regions"] = [(r["calls"], r["failed"]) for r in debug_state()]
    return found


def written(rank: int) -> dict[str, Any]:
    """Collectives that write their tensors, in a model and in a whole step; the other rank always comes late."""
    # The older names warn from torch 2.13 on, in every call.
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)

    def model(x: torch.Tensor) -> Any:
        summed, largest, mine = x * 2, x + 1, x * 0 + rank
        dist.all_reduce(summed)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        dist.broadcast(mine, src=1)
        every = x.new_empty(2 * x.shape[0], x.shape[1])
        gather(every, x - 1)
        pieces = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(pieces, x * 3)
        scattered = torch.empty_like(x)
        scatter(scattered, torch.cat([summed, largest]))
        swapped = torch.empty_like(x)
        dist.all_to_all_single(swapped, x)
        return summed + 1, largest, mine, every.sin(), pieces, scattered, swapped

    x = torch.arange(8.0).reshape(4, 2) * (rank + 1)
    fast = staticrt.compile(model)
    found: dict[str, Any] = {"expected": model(x), "results": []}
    with torch.no_grad():
        for _ in range(3):
            time.sleep(0.1 * rank)
            found["results"].append(fast(x))
    found["explain"] = str(fast.explain())

    for kind in ("eager", "step"):
        torch.manual_seed(0)
        net = nn.Linear(8, 4)
        optimizer = optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor, net: Any = net, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            for p in net.parameters():
                dist.all_reduce(p.grad)
                p.grad.div_(2)
            optimizer.step()
            return loss

        run = staticrt.compile_step(step, fullgraph=True) if kind == "step" else step
        torch.manual_seed(10 + rank)
        losses = []
        for _ in range(4):
            time.sleep(0.05 * rank)
            losses.append(run(torch.randn(5, 8)).detach().clone())
        found[kind] = losses, {name: p.detach().clone() for name, p in net.named_parameters()}
    found["unsupported"] = unsupported(rank)
    return found


def unsupported(rank: int) -> dict[str, Any]:
    """A collective without a functional form runs eagerly, in its place."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.reduce(y, dst=0)
        return y + 1

    x = torch.ones(3) * (rank + 1)
    fast = staticrt.compile(model)
    with torch.no_grad():
        return {"expected": model(x), "results": [fast(x) for _ in range(3)], "explain": str(fast.explain())}


def small_buckets(rank: int) -> dict[str, Any]:
    """DistributedDataParallel with buckets too small for Dynamo's cuts, around a compiled model and inside one."""
    parallel = nn.parallel.DistributedDataParallel
    found = {}
    for kind in ("eager", "inside", "around"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        inner = staticrt.compile(model) if kind == "inside" else model
        wrapped = parallel(inner, bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
        run = staticrt.compile(wrapped) if kind == "around" else wrapped
        torch.manual_seed(10 + rank)
        grads = []
        for _ in range(3):
            model.zero_grad()
            run(torch.randn(6, 8)).square().mean().backward()
            grads.append([p.grad.clone() for p in model.parameters()])
        found[kind] = grads
        torch._dynamo.reset()
    return found
