"""`staticrt bench --train`: bytes that a forward saves for its backward, for each way to cut, and the arena of a step."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import staticrt
from staticrt.models.bench.tables import megabytes, met, table
from staticrt.models.bench.train_models import Lstm, Transformer, training_step

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
    """A backend that only partitions the joint graph, with torch's own partitioner."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func  # type: ignore[attr-defined]

    def keep(graph: Any, _inputs: Any) -> Any:
        return make_boxed_func(graph.forward)

    return aot_autograd(fw_compiler=keep, bw_compiler=keep, partition_fn=partition)


def allocated_peak(function: Callable[[], Any]) -> int:
    """The most bytes that a call has allocated on the CPU at one time."""
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    )
    with profiler:
        function()
    events: Any = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = itertools.accumulate((int(change) for _time, change in changes), initial=0)
    return max(live)


def region_bytes(fast: Any, x: torch.Tensor, model: nn.Module) -> tuple[int, int]:
    """Saved bytes of a compiled model, and what its training step holds beside inputs, results and gradients.

    Args:
        fast: `model`, compiled as one region; it has not run yet.
        x: its input.
        model: as it is.

    Returns:
        Saved bytes; those and what the forward or the backward plans beside them, whichever is more.
    """
    from staticrt.training.aot_region import regions

    before = {id(region) for region in regions()}
    saved = saved_bytes(fast, x, model)
    for _ in range(2):
        fast(x).square().mean().backward()
    plans = [
        plan
        for region in regions()
        if id(region) not in before
        for graph in region.graphs
        for _key, plan in graph.plans.items()
    ]
    planned = [
        stats["arena_bytes"] + stats["apart_bytes"]
        for plan in plans
        if plan.native
        for stats in plan.native.prepared_stats
    ]
    return saved, saved + max(planned, default=0)


def planned_bytes(step: Any) -> dict[str, int]:
    """Of a whole step that has run: its arena, the arena's lower bound (live bytes at the peak), bytes without reuse."""
    signatures = [signature for trace in step.explain().traces for signature in trace.signatures]
    names = ("values", "lower_bound", "arena")
    return {name: max((getattr(s, f"{name}_bytes") for s in signatures), default=0) for name in names}


def _step_bytes(make: Callable[[], nn.Module], x: torch.Tensor) -> dict[str, int]:
    """What a whole step with SGD plans.

    "beside": what a step allocates outside of its arena; "eager": what eager's step allocates. Both at their peak.
    """
    from staticrt.training import optim

    model = make()
    train = training_step(model, (x,), torch.optim.SGD(model.parameters(), lr=1e-3))
    for _ in range(2):
        train()
    eager = allocated_peak(train)
    step = staticrt.compile_step(training_step(model, (x,), optim.SGD(model.parameters(), lr=1e-3)))
    for _ in range(3):
        step()
    beside = allocated_peak(step)
    return {**planned_bytes(step), "beside": beside, "eager": eager}


def measure_memory() -> list[dict[str, Any]]:
    """One row for each model: saved bytes of each way, of each budget, and of a whole step."""
    from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition

    rows = []
    for name, (make, sizes) in MODELS.items():
        torch.manual_seed(0)
        model, x = make(), torch.randn(*sizes)
        saved: dict[str, int] = {"eager": saved_bytes(model, x, model)}
        for way, partition in (
            ("default", default_partition),
            ("min-cut", min_cut_rematerialization_partition),
        ):
            torch._dynamo.reset()
            saved[way] = saved_bytes(torch.compile(model, backend=_upstream(partition)), x, model)
        peaks: dict[str, int] = {}
        for budget in BUDGETS:
            torch._dynamo.reset()
            options: Any = {"activation_memory_budget": budget}
            fast = torch.compile(model, backend="staticrt", dynamic=False, options=options)
            saved[f"staticrt {budget:g}"], peaks[f"{budget:g}"] = region_bytes(fast, x, model)
        torch._dynamo.reset()
        step = _step_bytes(make, x)
        rows.append({"model": name, "saved_bytes": saved, "peak_bytes": peaks, "step_bytes": step})
    return rows


def render_memory(rows: list[dict[str, Any]]) -> str:
    """The tables, in MB, targets beside values."""
    saved, peaks, steps = [], [], []
    for row in rows:
        sizes, step = row["saved_bytes"], row["step_bytes"]
        saved.append(_row(row["model"], sizes, sizes["staticrt 1"] <= min(sizes["eager"], sizes["min-cut"])))
        falling = list(row["peak_bytes"].values())
        peaks.append(_row(row["model"], row["peak_bytes"], falling == sorted(falling, reverse=True)))
        is_tight = step["arena"] <= min(1.03 * step["lower_bound"], step["eager"])
        steps.append(_row(row["model"], step, is_tight))
    heads = ("no reuse", "live peak", "arena", "beside it", "eager's peak")
    tables = {
        "Saved for the backward, MB (target: no more than eager, nor than min-cut)": (
            saved,
            rows[0]["saved_bytes"],
        ),
        "Saved and planned at the peak, MB, by activation budget (target: never rises)": (
            peaks,
            rows[0]["peak_bytes"],
        ),
        "One whole step, MB (target: an arena within 1.03 of the live peak and eager's peak)": (steps, heads),
    }
    return "\n\n".join(
        f"{title}\n{table(body, ['model', *names, ''])}" for title, (body, names) in tables.items()
    )


def _row(name: str, sizes: dict[str, int], is_met: bool) -> list[str]:
    return [name, *megabytes(sizes.values()), met(is_met)]
