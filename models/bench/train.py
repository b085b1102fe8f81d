"""`staticrt bench --train`: training steps of small models, side by side in one process, and the memory they keep."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import staticrt
from staticrt.models.bench.tables import megabytes, met, table
from staticrt.models.bench.train_memory import allocated_peak, planned_bytes, saved_bytes
from staticrt.models.bench.train_models import Lstm, Transformer, mean_square, mlp, training_step
from staticrt.training import optim

Step = Callable[[], Any]

# name -> model, input sizes, least speedup of a whole step over eager
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], float]] = {
    "small MLP": (lambda: mlp(64, 3), (32, 64), 1.3),
    "LSTM, 8 steps": (lambda: Lstm(64, 64), (16, 8, 64), 1.3),
    "transformer, 1 layer": (lambda: Transformer(128, 4, 1), (4, 32, 128), 1.0),
    "large MLP": (lambda: mlp(512, 4), (128, 512), 1.0),
}


# Each way to run the same step from the same weights.
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda m: m,
    "AOT eager": lambda m: torch.compile(m, backend="aot_eager", dynamic=False),
    "backend": lambda m: torch.compile(m, backend="staticrt", dynamic=False),
    "graph splits": lambda m: staticrt.compile(m, dynamic=False, joint_trace=False),
    "staticrt.compile": lambda m: staticrt.compile(m, dynamic=False),
}
INDUCTOR: dict[str, Callable[[nn.Module], Any]] = {"Inductor": lambda m: torch.compile(m, dynamic=False)}
WHOLE = "whole step"
_RTOL = 1e-3  # of the loss


def measure_steps(
    source: nn.Module,
    inputs: Sequence[torch.Tensor],
    ways: dict[str, Callable[[nn.Module], Any]],
    seconds: float,
    loss_of: Callable[[Any], torch.Tensor] = mean_square,
    rate: float = 1e-3,
) -> tuple[dict[str, Step], dict[str, Any]]:
    """Training steps from the same weights, each way and as a whole step, and what they took.

    Returns:
        The steps, and a row: "ms"; "peak_bytes", the most that a step has allocated at one time; "failed": why ways raised,
        or gave another loss than eager. The first way is eager; where it fails, the others do not run.
    """
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    eager = math.nan
    for way in (*ways, WHOLE):
        model = copy.deepcopy(source)
        try:
            if way == WHOLE:
                own = optim.SGD(model.parameters(), lr=rate)
                step = staticrt.compile_step(training_step(model, inputs, own, loss_of))
            else:
                theirs = torch.optim.SGD(model.parameters(), lr=rate)
                step = training_step(ways[way](model), inputs, theirs, loss_of)
            torch.manual_seed(0)
            loss = step().item()
            eager = loss if way == "eager" else eager
            if not math.isclose(loss, eager, rel_tol=_RTOL):
                raise AssertionError(f"its loss is {loss:g}, eager's {eager:g}")
        except Exception as error:
            failed[way] = f"{type(error).__name__}: {error}".split("\n")[0]
            if way == "eager":
                break
            continue
        steps[way] = step
    ms = time_in_turns(steps, seconds) if steps else {}
    peaks = {way: allocated_peak(step) for way, step in steps.items()}
    return steps, {"ms": ms, "peak_bytes": peaks, "failed": failed}


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
        torch.manual_seed(0)
        source, x = make(), torch.randn(*sizes)
        steps, row = measure_steps(source, (x,), {**WAYS, **(INDUCTOR if inductor else {})}, seconds)
        if row["failed"]:
            raise AssertionError(f"{name}: {row['failed']}")
        fast = torch.compile(source, backend="staticrt", dynamic=False)
        planned = planned_bytes(steps[WHOLE])
        rows.append(
            {
                "model": name,
                "target": target,
                **row,
                "speedup": {way: row["ms"]["eager"] / ms for way, ms in row["ms"].items()},
                "saved_bytes": {
                    "eager": saved_bytes(source, x, source),
                    "staticrt": saved_bytes(fast, x, source),
                },
                "arena_bytes": planned["arena"],
                "lower_bound_bytes": planned["lower_bound"],
            }
        )
    return rows


def render_training(rows: list[dict[str, Any]]) -> str:
    """The tables, targets beside values."""
    ways = list(rows[0]["ms"])
    steps, peaks, memory = [], [], []
    for row in rows:
        name, speedup, target = row["model"], row["speedup"], row["target"]
        cells = (f"{ms:.3f} ({speedup[way]:.2f})" for way, ms in row["ms"].items())
        steps.append([name, *cells, f"{target:.2f} {met(speedup[WHOLE] >= target)}"])
        peaks.append([name, *megabytes(row["peak_bytes"].values())])
        sizes = (*row["saved_bytes"].values(), row["arena_bytes"], row["lower_bound_bytes"])
        memory.append([name, *megabytes(sizes)])
    return "\n\n".join(
        [
            "Training step, ms (speedup over eager)\n" + table(steps, ["model", *ways, "target"]),
            "Peak of a step, MB (whole step: beside its arena, which is kept)\n"
            + table(peaks, ["model", *ways]),
            "Memory, MB\n"
            + table(memory, ["model", "saved, eager", "saved, staticrt", "step arena", "bound"]),
        ]
    )
