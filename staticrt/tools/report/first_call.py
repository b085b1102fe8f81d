"""Where the time of a first call goes: tracing, shapes, passes, lowering, planning and the first run.

Another thread samples the call's Python stack every half a millisecond and adds the time since its last sample to the
innermost function, whose file gives the phase. The time of a C function counts to its caller. Python's own profilers
see nothing of a trace, because the tracer uses the thread's profile function itself.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

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
_COLLECTOR = "Python's garbage collector"  # a callback of the trace is the innermost frame while it runs
_MODEL = "the model's code and other libraries"
_SECONDS_BETWEEN_SAMPLES = 0.0005

Function = tuple[str, int, str]  # file, first line, name
_Key = TypeVar("_Key", str, Function)


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
        seconds: the first call.
        second_seconds: the call after it.
        phases: largest first; their seconds sum up to the first call's.
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
        head = f"{self.name}: first call {self.seconds:.3f} s, second call {self.second_seconds * 1e3:.2f} ms"
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
    """Call a compiled callable for the first time, and report where the time goes.

    Args:
        args, kwargs: of the call. It runs under `torch.no_grad()`.
        limit: functions listed; None: all.
    """
    kwargs = kwargs or {}
    sampler = _StackSampler(threading.get_ident())
    with torch.no_grad():
        begin = time.perf_counter()
        with sampler:
            compiled(*args, **kwargs)
        end = time.perf_counter()
        compiled(*args, **kwargs)
        second = time.perf_counter() - end
    own = sampler.own
    phases: dict[str, float] = {}
    for function, seconds in own.items():
        phases[_phase(function)] = phases.get(_phase(function), 0.0) + seconds
    whole = sum(phases.values()) or 1.0
    return FirstCallReport(
        name=name,
        seconds=end - begin,
        second_seconds=second,
        phases=tuple(Phase(phase, value, value / whole) for phase, value in _largest(phases)),
        functions=tuple((_named(function), value) for function, value in _largest(own)[:limit]),
    )


def _largest(times: dict[_Key, float]) -> list[tuple[_Key, float]]:
    return sorted(times.items(), key=lambda item: item[1], reverse=True)


class _StackSampler:
    """Samples a thread's stack while the context is open.

    Attributes:
        own: time of each function by itself.
    """

    def __init__(self, thread: int) -> None:
        self.own: dict[Function, float] = {}
        self._watched = thread
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> None:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(_SECONDS_BETWEEN_SAMPLES)  # else a sample waits for 5 ms
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._done.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _sample(self) -> None:
        last = time.perf_counter()
        over = False
        while not over:
            over = self._done.wait(_SECONDS_BETWEEN_SAMPLES)
            frame = sys._current_frames().get(self._watched)
            code = None if frame is None else frame.f_code
            del frame  # a trace looks for other references to its values, and a frame would be one
            now = time.perf_counter()
            if code is not None:
                function = (code.co_filename, code.co_firstlineno, code.co_name)
                self.own[function] = self.own.get(function, 0.0) + now - last
            last = now


def _phase(function: Function) -> str:
    file = function[0].replace(os.sep, "/")
    if function[2] == "_before_collection":
        return _COLLECTOR
    if "importlib" in file:
        return _IMPORTS
    for folder, phase in _FOLDERS:
        if f"/{folder}/" in file or f"/{folder}.py" in file:
            return phase
    return _MODEL


def _named(function: Function) -> str:
    file, line, name = function
    return f"{'/'.join(file.replace(os.sep, '/').split('/')[-3:])}:{line} {name}"
