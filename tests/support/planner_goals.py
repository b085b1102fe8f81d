"""Measure the planner's goals: `python -m tests.support.planner_goals DIR`.

DIR holds folders of planning instances (CSV): fx/, minimalloc/, synth/, and where given somas/ and iopddl/. Times are
CPU times of one thread, and the median of five runs where they are milliseconds.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from staticrt.errors import InputError
from staticrt.memory.plan_instances import read_specs
from staticrt.memory.planner import ArenaPlan, DynamicPlan, plan, validate

Specs = list[tuple[int, int, int]]
MIB = 1 << 20


def _folder(root: Path, name: str) -> dict[str, Specs]:
    return {path.stem: read_specs(path) for path in sorted((root / name).glob("*.csv"))}


def _timed(call: Callable[[], ArenaPlan], repeats: int = 1) -> tuple[ArenaPlan, float]:
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = call()
        seconds.append(time.process_time() - start)
    return result, statistics.median(seconds)


def _planned(specs: Specs, effort: str, repeats: int = 1) -> tuple[ArenaPlan, float]:
    result, seconds = _timed(lambda: plan(specs, effort=effort), repeats)
    validate(specs, result)
    return result, seconds


def _line(goal: str, met: bool, text: str) -> bool:
    print(f"{goal:4} {'met' if met else 'MISSED':7} {text}", flush=True)
    return met


def _real_nets(nets: dict[str, Specs]) -> bool:
    runs = {name: _planned(specs, "default", 5) for name, specs in nets.items()}
    off = [name for name, (result, _) in runs.items() if not result.proved_optimal]
    seconds = [time_s for _, time_s in runs.values()]
    text = f"fx at the lower bound: {len(runs) - len(off)}/{len(runs)} {' '.join(off)}"
    worst, total = 1e3 * max(seconds), 1e3 * sum(seconds)
    met = _line("M1", not off, text)
    return (
        _line("M2", worst <= 2 and total <= 15, f"slowest {worst:.2f} ms (<= 2), sum {total:.2f} ms (<= 15)")
        and met
    )


def _challenging(instances: dict[str, Specs]) -> bool:
    seconds, missed = [], []
    for name, specs in instances.items():
        result, time_s = _planned(specs, "high")
        seconds.append(time_s)
        if result.arena_bytes > MIB:
            missed.append(f"{name}={result.arena_bytes}")
        print(f"       {name}: arena {result.arena_bytes}, bound {result.lower_bound}, {time_s:.2f} s")
    met = not missed and max(seconds) <= 10 and sum(seconds) <= 10
    return _line(
        "M3",
        met,
        f"above 1 MiB: {', '.join(missed) or 'none'}; slowest {max(seconds):.2f} s, sum {sum(seconds):.2f} s (<= 10)",
    )


def _large(root: Path) -> bool:
    met = True
    for folder, limit, seconds in (("somas", 1.0, 1.0), ("iopddl", 1.0139, 5.0)):
        for name, specs in _folder(root, folder).items():
            result, time_s = _planned(specs, "high" if folder == "somas" else "default")
            ratio = result.arena_bytes / result.lower_bound
            text = f"{name}: {ratio:.5f} (<= {limit}) in {time_s:.2f} s (<= {seconds})"
            met &= _line("M5", ratio <= limit and time_s <= seconds, text)
    return met


def _packings(instances: dict[str, Specs]) -> bool:
    runs = {name: _planned(specs, "high") for name, specs in instances.items()}
    at_bound = [name for name, (result, _) in runs.items() if result.proved_optimal]
    worst = max(result.arena_bytes / result.lower_bound for result, _ in runs.values())
    slowest = max(time_s for _, time_s in runs.values())
    met = len(at_bound) >= 9 and worst <= 1.1 and slowest <= 20
    return _line(
        "M6",
        met,
        f"synth at the bound {len(at_bound)}/{len(runs)} (>= 9), worst {worst:.3f}, slowest {slowest:.2f} s",
    )


def _shapes(nets: dict[str, Specs]) -> bool:
    generator = random.Random(8)
    worst_s, vectors = 0.0, 0
    for specs in nets.values():
        dynamic = DynamicPlan(specs)
        for _ in range(10):
            sizes = [generator.randrange(0, 1 << generator.randrange(1, 24)) for _ in specs]
            placed, _ = _timed(lambda dynamic=dynamic, sizes=sizes: dynamic.place(sizes))  # type: ignore[misc]
            validate([(b, e, size) for (b, e, _), size in zip(specs, sizes, strict=True)], placed)
            vectors += 1
        scaled = [size * 3 for _, _, size in specs]
        placed, seconds = _timed(lambda dynamic=dynamic, sizes=scaled: dynamic.place(sizes), 5)  # type: ignore[misc]
        validate([(b, e, 3 * size) for b, e, size in specs], placed)
        worst_s = max(worst_s, seconds)
    text = f"offsets for a new shape <= {1e6 * worst_s:.0f} us (<= 100), {vectors} random size vectors valid"
    return _line("M8", worst_s <= 1e-4, text)


def measure_goals(root: Path) -> int:
    """Print each goal with its value. Returns 0 if every measured goal is met, else 1.

    The runtime's tests measure M7 (the arena at run time), and tests/csrc/planner measures M9 (10,000 random instances
    against brute force). Every plan here passes the independent validator.

    Raises:
        InputError: the folder lacks one of the instance folders.
    """
    names = ("fx", "minimalloc", "synth")
    found = {name: _folder(root, name) for name in names}
    for name, instances in found.items():
        if not instances:
            raise InputError(
                f"no CSV files in {root / name}", fix="give a folder with fx/, minimalloc/, synth/"
            )
    met = [_real_nets(found["fx"]), _challenging(found["minimalloc"]), _large(root)]
    met += [_packings(found["synth"]), _shapes(found["fx"])]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(measure_goals(Path(sys.argv[1])))
