"""Where the time of a first call goes: tracing, shapes, passes, lowering, planning and the first run.

Python's own profiler (`cProfile`) times the call; every function's own time is counted to the phase that its file
belongs to, and that of C functions to the phase of the Python function that calls them.
"""

from __future__ import annotations

import cProfile
import dataclasses
import os
import pstats
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tabulate import tabulate

_FOLDERS = (  # the first that a file lies in counts
    ("staticrt/frontend/guards", "guards: what the model's code reads"),
    ("staticrt/frontend/arguments", "arguments: flattened, made fake"),
    ("staticrt/frontend", "trace"),
    ("staticrt/shapes", "shapes and sizes, by our rules"),
    ("torch/_subclasses", "fake tensors of torch"),
    ("torch/_meta_registrations", "fake tensors of torch"),
    ("torch/_refs", "fake tensors of torch"),
    ("torch/_prims", "fake tensors of torch"),
    ("torch/_decomp", "fake tensors of torch"),
    ("torch/fx/experimental", "symbolic sizes of torch"),
    ("torch/utils/_sympy", "symbolic sizes of torch"),
    ("sympy", "symbolic sizes of torch"),
    ("torch/_dynamo", "Dynamo"),
    ("torch/_functorch", "Dynamo"),
    ("passes", "passes"),
    ("staticrt/lowering", "lowering"),
    ("staticrt/executor", "the executor, its cost trials"),
    ("staticrt/runtime", "plan, bind, first run"),
    ("staticrt/training", "training"),
    ("staticrt", "the rest of staticrt"),
    ("torch/fx", "trace"),
)
_IMPORTS = "imports"
_MODEL = "the model's code and other libraries"
_FIRST_RUN = "plan, bind, first run"

Function = tuple[str, int, str]  # as pstats names it: file, line, name


@dataclasses.dataclass(frozen=True)
class Phase:
    """A share of a first call.

    Attributes:
        seconds: own time of its functions.
        share: of the whole call.
    """

    name: str
    seconds: float
    share: float


@dataclasses.dataclass(frozen=True)
class FirstCallReport:
    """Where the time of a first call went; `print` it.

    Attributes:
        name: the model's.
        seconds: the first call, with the profiler, which makes Python code up to twice as slow.
        second_seconds: the call after it, without the profiler.
        phases: largest first; their seconds sum up to what the profiler saw.
        functions: the slowest functions, by own time: "file:line name", seconds.
    """

    name: str
    seconds: float
    second_seconds: float
    phases: tuple[Phase, ...]
    functions: tuple[tuple[str, float], ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        head = (
            f"{self.name}: first call {self.seconds:.3f} s under Python's profiler, "
            f"second call {self.second_seconds * 1e3:.2f} ms"
        )
        rows = [[p.name, f"{p.seconds * 1e3:.1f}", f"{100 * p.share:.1f}"] for p in self.phases]
        slow = [[name, f"{seconds * 1e3:.1f}"] for name, seconds in self.functions]
        return "\n\n".join(
            (
                head,
                tabulate(
                    rows, ["phase", "ms", "%"], disable_numparse=True, colalign=("left", "right", "right")
                ),
                tabulate(slow, ["function", "ms"], disable_numparse=True, colalign=("left", "right")),
            )
        )


def first_call(
    compiled: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str = "the model",
    limit: int | None = 10,
) -> FirstCallReport:
    """Call what was compiled and not called yet, and tell where the time goes.

    Args:
        args, kwargs: of the call. It runs under `torch.no_grad()`.
        limit: functions listed; None: all.
    """
    kwargs = kwargs or {}
    profiler = cProfile.Profile()
    with torch.no_grad():
        begin = time.perf_counter()
        profiler.enable()
        try:
            compiled(*args, **kwargs)
        finally:
            profiler.disable()
        end = time.perf_counter()
        compiled(*args, **kwargs)
        second = time.perf_counter() - end
    own = _own_times(pstats.Stats(profiler).stats)  # type: ignore[attr-defined]
    phases: Counter[str] = Counter()
    for function, seconds in own.items():
        phases[_phase(function)] += seconds
    whole = sum(phases.values()) or 1.0
    return FirstCallReport(
        name=name,
        seconds=end - begin,
        second_seconds=second,
        phases=tuple(Phase(phase, value, value / whole) for phase, value in phases.most_common()),
        functions=tuple((_named(function), value) for function, value in own.most_common(limit)),
    )


def _own_times(stats: Mapping[Function, Any]) -> Counter[Function]:
    """Own time of each Python function, with that of the C functions it called."""
    own: Counter[Function] = Counter()
    for function, (_calls, _primitive, seconds, _cumulative, callers) in stats.items():
        if not _is_c(function):
            own[function] += seconds
            continue
        known = {caller: times[2] for caller, times in callers.items() if not _is_c(caller)}
        for caller, part in known.items():
            own[caller] += part
        own[function] += seconds - sum(known.values())
    return own


def _is_c(function: Function) -> bool:
    return function[0] == "~"


def _phase(function: Function) -> str:
    file, _line, name = function
    if _is_c(function):
        return _FIRST_RUN if "staticrt" in name else _MODEL
    if "importlib" in file:
        return _IMPORTS
    parts = file.replace(os.sep, "/")
    for folder, phase in _FOLDERS:
        if f"/{folder}/" in parts or f"/{folder}.py" in parts:
            return phase
    return _MODEL


def _named(function: Function) -> str:
    file, line, name = function
    if _is_c(function):
        return name
    return f"{'/'.join(file.replace(os.sep, '/').split('/')[-3:])}:{line} {name}"
