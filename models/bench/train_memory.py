"""`staticrt bench --train`: bytes that a forward saves for its backward, for each way to cut, and the arena of a step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import staticrt
from staticrt.models.bench.train_models import Lstm, Transformer

BUDGETS = (1.0, 0.5, 0.2, 0.0)


class _DropoutMlp(nn.Sequential):
    """x: float32 [batch, width]."""

    def __init__(self, width: int, depth: int) -> None:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Dropout(0.1)]
        super().__init__(*layers)


class _Cnn(nn.Sequential):
    """x: float32 [batch, 3, H, W]."""

    def __init__(self, *widths: int) -> None:
        layers: list[nn.Module] = []
        for before, after in zip((3, *widths), widths, strict=False):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        super().__init__(*layers)


# name -> model, input sizes
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "transformer ×4": (lambda: Transformer(256, 4, 4), (8, 128, 256)),
    "MLP ×6, dropout": (lambda: _DropoutMlp(512, 6), (256, 512)),
    "CNN ×3, batch norm": (lambda: _Cnn(32, 64, 64), (16, 3, 32, 32)),
    "LSTM, 32 steps": (lambda: Lstm(64, 128, head=False), (32, 32, 64)),
}


def saved_bytes(run: Any, x: torch.Tensor, model: nn.Module) -> int:
    """Bytes that a forward keeps for its backward: distinct storages but parameters' and the input's."""
    known = {t.untyped_storage().data_ptr() for t in [x, *model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run(x)
    total = sum(storage.nbytes() for storage in kept.values())
    del result
    return total


def _upstream(partition: Any) -> Callable[..., Any]:
    """A backend that only cuts, as upstream does."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]

    def keep(graph: Any, _inputs: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)


def _step_arena(make: Callable[[], nn.Module], x: torch.Tensor) -> dict[str, int]:
    """Arena of a whole step with SGD, its lower bound (live bytes at the peak), and bytes without any reuse."""
    from staticrt.training import optim

    model = make()
    optimizer = optim.SGD(model.parameters(), lr=1e-3)

    def train() -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step: Any = staticrt.compile_step(train)
    for _ in range(3):
        step()
    largest = {"values": 0, "lower_bound": 0, "arena": 0}
    for report in step.explain().captures:
        for signature in report.signatures:
            for name in largest:
                largest[name] = max(largest[name], getattr(signature, f"{name}_bytes"))
    return largest


def measure_memory() -> list[dict[str, Any]]:
    """One row for each model: saved bytes of each way, of each budget, and of a whole step."""
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    rows = []
    for name, (make, sizes) in MODELS.items():
        torch.manual_seed(0)
        model, x = make(), torch.randn(*sizes)
        saved: dict[str, int] = {"eager": saved_bytes(model, x, model)}
        backends: dict[str, Any] = {
            "default": _upstream(default_partition),
            "min-cut": _upstream(min_cut_rematerialization_partition),
        }
        for budget in BUDGETS:
            options = {"activation_memory_budget": budget}
            backends[f"staticrt {budget:g}"] = functools.partial(
                torch.compile, backend="staticrt", options=options
            )
        for way, backend in backends.items():
            torch._dynamo.reset()
            wrapped = isinstance(backend, functools.partial)
            fast = backend(model, dynamic=False) if wrapped else torch.compile(model, backend=backend)
            saved[way] = saved_bytes(fast, x, model)
        torch._dynamo.reset()
        rows.append({"model": name, "saved_bytes": saved, "step_bytes": _step_arena(make, x)})
    return rows


def render_memory(rows: list[dict[str, Any]]) -> str:
    """The table, in MB; whether our cut saves no more than the better of eager and min-cut."""
    ways = list(rows[0]["saved_bytes"])
    lines = ["Saved for the backward, MB; one whole step, MB", ""]
    heads = [*ways, "no reuse", "live peak", "arena"]
    lines.append(f"{'model':<20}" + "".join(f"{head:>14}" for head in heads))
    for row in rows:
        saved, step = row["saved_bytes"], row["step_bytes"]
        values = [*saved.values(), step["values"], step["lower_bound"], step["arena"]]
        met = saved["staticrt 1"] <= min(saved["eager"], saved["min-cut"])
        cells = "".join(f"{value / 1e6:>14.3f}" for value in values)
        lines.append(f"{row['model']:<20}{cells}  {'met' if met else 'missed'}")
    return "\n".join(lines)
