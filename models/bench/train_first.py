"""`staticrt bench --train`: how long a first call takes, each in a process of its own, imports included."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from staticrt.models.bench.tables import table

# What is timed -> the compiled model, and whether gradients are on.
WAYS = {
    "without gradients": ("staticrt.compile(make())", False),
    "staticrt.compile": ("staticrt.compile(make())", True),
    "graph splits": ("staticrt.compile(make(), joint_trace=False)", True),
    "backend": ("torch.compile(make(), backend='staticrt')", True),
    "AOT eager": ("torch.compile(make(), backend='aot_eager')", True),
}
# Inductor's caches would serve all but the first of its processes.
INDUCTOR = {"Inductor": ("torch.compile(make(), options={'force_disable_caches': True})", True)}
_CODE = """
import time, torch, staticrt
from staticrt.models.bench.train import MODELS
torch.set_num_threads({threads})
make, sizes, _target = MODELS[{name!r}]
torch.manual_seed(0)
model, x = {compiled}, torch.randn(*sizes)
with torch.set_grad_enabled({gradients}):
    begin = time.perf_counter()
    out = model(x)
    if {gradients}:
        out.square().mean().backward()
    print((time.perf_counter() - begin) * 1e3)
"""


def measure_first_calls(names: list[str], *, threads: int, runs: int, inductor: bool) -> list[dict[str, Any]]:
    """One row for each model of `train.MODELS`: ms of a first call, with its backward; the least of some processes."""
    rows = []
    ways = {**WAYS, **INDUCTOR} if inductor else WAYS
    for name in names:
        ms: dict[str, float] = {}
        for _ in range(runs):
            for way, (compiled, gradients) in ways.items():
                code = _CODE.format(name=name, compiled=compiled, gradients=gradients, threads=threads)
                done = subprocess.run(
                    [sys.executable, "-c", code], capture_output=True, text=True, check=True
                )
                ms[way] = min(ms.get(way, float("inf")), float(done.stdout.split()[-1]))
        rows.append({"model": name, "first_ms": ms})
    return rows


def render_first_calls(rows: list[dict[str, Any]]) -> str:
    """The table, with what a first training call costs in first calls without gradients."""
    body = []
    for row in rows:
        least = row["first_ms"]["without gradients"]
        body.append([row["model"], *(f"{ms:.0f} ({ms / least:.1f})" for ms in row["first_ms"].values())])
    title = "First call of a process, ms (multiple of the call without gradients)"
    return f"{title}\n{table(body, ['model', *rows[0]['first_ms']])}"
