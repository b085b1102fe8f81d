"""`staticrt bench --train`: training steps of small models, side by side in one process, and the memory they keep."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import staticrt
from staticrt.models.bench.train_memory import allocated_peak, saved_bytes
from staticrt.models.bench.train_models import Lstm, Transformer, mlp
from staticrt.training import optim

Step = Callable[[], Any]


# name -> model, input sizes, least speedup of a whole step over eager
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "small MLP": (lambda: mlp(64, 3), (32, 64), 1.3),
    "LSTM, 8 steps": (lambda: Lstm(64, 64), (16, 8, 64), 1.3),
    "transformer, 1 layer": (lambda: Transformer(128, 4, 1), (4, 32, 128), 1.0),
    "large MLP": (lambda: mlp(512, 4), (128, 512), 1.0),
}


def _loss(model: Any, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().mean()
    return loss


def _steps(
    make: Callable[[], nn.Module], sizes: tuple[int, ...], inductor: bool
) -> dict[str, tuple[Step, Any]]:
    """Each way to run the same step from the same weights: its call, and what ran compiled."""
    torch.manual_seed(0)
    source, x = make(), torch.randn(*sizes)
    ways: dict[str, Callable[[nn.Module], Any]] = {
        "eager": lambda m: m,
        "AOT eager": lambda m: torch.compile(m, backend="aot_eager", dynamic=False),
        "backend": lambda m: torch.compile(m, backend="staticrt", dynamic=False),
        "graph splits": lambda m: staticrt.compile(m, dynamic=False, joint_trace=False),
        "staticrt.compile": lambda m: staticrt.compile(m, dynamic=False),
    }
    if inductor:
        ways["Inductor"] = lambda m: torch.compile(m, dynamic=False)
    found: dict[str, tuple[Step, Any]] = {}
    for name, prepare in ways.items():
        model = copy.deepcopy(source)
        run, optimizer = prepare(model), torch.optim.SGD(model.parameters(), lr=1e-3)

        def step(run: Any = run, optimizer: Any = optimizer) -> torch.Tensor:
            loss = _loss(run, x)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss

        found[name] = (step, run)
    model = copy.deepcopy(source)
    own = optim.SGD(model.parameters(), lr=1e-3)

    @staticrt.compile_step
    def whole() -> torch.Tensor:
        loss = _loss(model, x)
        loss.backward()  # type: ignore[no-untyped-call]
        own.step()
        own.zero_grad()
        return loss

    found["whole step"] = (whole, whole)
    return found


def time_in_turns(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """Median ms of each, in turns of about 20 ms."""
    calls = {}
    for name, step in steps.items():
        for _ in range(3):
            step()
        begin = time.perf_counter()
        step()
        calls[name] = max(1, int(0.02 / (time.perf_counter() - begin)))
    times: dict[str, list[float]] = {name: [] for name in steps}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times["eager"]) < 3:
        for name, step in steps.items():
            begin = time.perf_counter()
            for _ in range(calls[name]):
                step()
            times[name].append((time.perf_counter() - begin) / calls[name] * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_training(*, seconds: float, inductor: bool) -> list[dict[str, Any]]:
    """One row for each model: ms of each way, speedups over eager, saved bytes, arena and its lower bound.

    peak_bytes: the most that a step has allocated at one time, with the arenas of its calls; a whole step's arena stays
    between steps and is stated apart.
    """
    rows = []
    for name, (make, sizes, target) in MODELS.items():
        torch._dynamo.reset()
        steps = _steps(make, sizes, inductor)
        first = {way: step().item() for way, (step, _run) in steps.items()}
        if max(abs(loss - first["eager"]) for loss in first.values()) > 1e-3 * max(1.0, abs(first["eager"])):
            raise AssertionError(f"{name}: losses differ: {first}")
        ms = time_in_turns({way: step for way, (step, _run) in steps.items()}, seconds)
        peaks = {way: allocated_peak(step) for way, (step, _run) in steps.items()}
        torch.manual_seed(0)
        model, x = make(), torch.randn(*sizes)
        fast = torch.compile(model, backend="staticrt", dynamic=False)
        whole: Any = steps["whole step"][1]
        stats = [s for v in whole._variants for s in v._entry.executable.native.prepared_stats]
        rows.append(
            {
                "model": name,
                "target": target,
                "ms": ms,
                "speedup": {way: ms["eager"] / value for way, value in ms.items()},
                "saved_bytes": {
                    "eager": saved_bytes(model, x, model),
                    "staticrt": saved_bytes(fast, x, model),
                },
                "peak_bytes": peaks,
                "arena_bytes": max((s["arena_bytes"] for s in stats), default=0),
                "lower_bound_bytes": max((s["lower_bound_bytes"] for s in stats), default=0),
            }
        )
    return rows


def render_training(rows: list[dict[str, Any]]) -> str:
    """The tables, targets beside values."""
    ways = list(rows[0]["ms"])
    lines = ["Training step, ms (speedup over eager)", ""]
    lines.append(f"{'model':<22}" + "".join(f"{way:>18}" for way in ways) + f"{'target':>9}")
    for row in rows:
        cells = "".join(f"{row['ms'][way]:>10.3f} ({row['speedup'][way]:.2f})".rjust(18) for way in ways)
        verdict = "met" if row["speedup"]["whole step"] >= row["target"] else "missed"
        lines.append(f"{row['model']:<22}{cells}{row['target']:>6.2f} {verdict}")
    lines += [
        "",
        "Peak of a step, MB (whole step: beside its arena, which is kept)",
        "",
        f"{'model':<22}" + "".join(f"{way:>18}" for way in ways),
    ]
    for row in rows:
        cells = "".join(f"{row['peak_bytes'][way] / 1e6:>18.3f}" for way in ways)
        lines.append(f"{row['model']:<22}{cells}")
    lines += [
        "",
        "Memory, MB",
        "",
        f"{'model':<22}{'saved, eager':>14}{'saved, staticrt':>17}{'step arena':>12}{'bound':>9}",
    ]
    for row in rows:
        saved = row["saved_bytes"]
        lines.append(
            f"{row['model']:<22}{saved['eager'] / 1e6:>14.3f}{saved['staticrt'] / 1e6:>17.3f}"
            f"{row['arena_bytes'] / 1e6:>12.3f}{row['lower_bound_bytes'] / 1e6:>9.3f}"
        )
    return "\n".join(lines)
