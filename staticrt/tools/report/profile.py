"""`compiled.profile(*args)`: the time of a call by node."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from staticrt.errors import InputError, OptionError
from staticrt.memory import html
from staticrt.runtime.explain.programs import Work
from staticrt.tools.report.chrome import chrome_trace
from staticrt.tools.report.roofline import Roofline, roofline
from staticrt.tools.report.runs import Call, Step, Tracer

MOST_SECONDS = 2.0  # of calls timed without a trace
_KEPT_CALLS = 3  # in a Chrome trace


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProfileRow(Work):
    """One step of the program. Times are medians over the profiled calls, in ns per call.

    Args:
        name: node; of a fused chain "first … last".
        nodes: all nodes it computes.
        op: operators, "mul+add+relu" for a chain.
        kind: call (a direct kernel call), chain (fused pointwise), out (an out variant), generic and unstable
            (the dispatcher), allocate, view, control, eager (a call that was not compiled); on the general path
            the binding: out, native, boxed_out, boxed.
        route: the kernel chosen.
        where: the model's line.
        module: the path of its layer, "layers.0.norm"; of a chain all, by space; "" if unknown, as in archives.
        shapes: "float32[8, 64], float32[64, 64] → float32[8, 64]".
        depth: 0; in a body of control flow 1 or more, whose time is in its control row's `time_ns` too.
        calls: runs of it per call.
        time_ns: time including bodies of control flow; self_ns: without them.
        share: `self_ns` over the time of a call that is not traced.
        flops, read_bytes, written_bytes: per call.
        floor_ns: the least time this machine needs for them; None where nothing is counted.
    """

    depth: int
    calls: float
    time_ns: float
    self_ns: float
    share: float = 0.0
    floor_ns: float | None = None

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    @property
    def gflops_per_s(self) -> float | None:
        return self.flops / self.self_ns if self.flops and self.self_ns else None

    @property
    def gbytes_per_s(self) -> float | None:
        return self.bytes / self.self_ns if self.bytes and self.self_ns else None

    @property
    def roofline_share(self) -> float | None:
        """Floor over time: 1.0 is as fast as this machine can be."""
        return self.floor_ns / self.self_ns if self.floor_ns and self.self_ns else None


@dataclasses.dataclass(frozen=True)
class KindRow:
    """All rows of one kind: their time, share, number of steps, FLOPs and bytes per call."""

    kind: str
    count: int
    time_ns: float
    share: float
    flops: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class ProfileReport:
    """The result of `profile`. `str()` is a table; `to_json()` and `to_chrome_trace(path)` are for tools.

    Args:
        name: the compiled callable's name.
        runs: profiled calls.
        threads: torch's intra-op threads.
        call_ns: median time of a call that is not traced.
        traced_ns: median time of a traced call.
        setup_ns: from a run's begin to its first step; alloc_ns: of it, memory; both per call.
        dealloc_ns: handing out outputs, emptying slots, giving back memory.
        outside_ns: neither in runs nor in eager calls: arguments, guards, Python between graphs.
        paths: how the runs went, "prepared" in steady state.
        rows: one per step, in execution order.
        hints: what would make the call itself faster.
        machine: the measured limits, or what a step reached where that was more.
    """

    name: str
    runs: int
    threads: int
    call_ns: float
    traced_ns: float
    setup_ns: float
    alloc_ns: float
    dealloc_ns: float
    outside_ns: float
    paths: tuple[str, ...]
    rows: tuple[ProfileRow, ...]
    machine: Roofline
    hints: tuple[str, ...] = ()
    calls: tuple[Call, ...] = dataclasses.field(default=(), repr=False, compare=False)

    def by_kind(self) -> tuple[KindRow, ...]:
        """Rows summed by kind, slowest first."""
        return self._grouped(lambda row: row.kind)

    def by_op(self) -> tuple[KindRow, ...]:
        """Rows summed by operator, slowest first."""
        return self._grouped(lambda row: row.op)

    def by_line(self) -> tuple[KindRow, ...]:
        """Rows summed by model line, slowest first."""
        return self._grouped(lambda row: row.where or "unknown line")

    def by_module(self) -> tuple[KindRow, ...]:
        """Rows summed by layer of the model, slowest first."""
        return self._grouped(lambda row: row.module or "no layer")

    def _grouped(self, key: Callable[[ProfileRow], str]) -> tuple[KindRow, ...]:
        groups: dict[str, list[ProfileRow]] = {}
        for row in self.rows:
            groups.setdefault(key(row), []).append(row)
        found = [
            KindRow(
                kind,
                len(rows),
                sum(r.self_ns for r in rows),
                sum(r.share for r in rows),
                sum(r.flops for r in rows),
                sum(r.bytes for r in rows),
            )
            for kind, rows in groups.items()
        ]
        return tuple(sorted(found, key=lambda row: (-row.time_ns, row.kind)))

    def table(self, limit: int | None = 25, sort: str = "time") -> str:
        """The rows as text.

        Args:
            limit: rows shown; None: all.
            sort: "time" (slowest first) or "order" (as executed).

        Raises:
            OptionError: an unknown `sort`.
        """
        if sort not in ("time", "order"):
            raise OptionError(f"cannot sort a profile by {sort!r}", fix="sort is 'time' or 'order'")
        rows = sorted(self.rows, key=lambda row: -row.self_ns) if sort == "time" else list(self.rows)
        shown = rows if limit is None else rows[:limit]
        body = [_cells(row) for row in shown]
        text = tabulate(body, _HEADERS, disable_numparse=True, colalign=_ALIGN if body else None)
        if len(shown) < len(rows):
            text += f"\n… and {len(rows) - len(shown)} more rows: table(limit=None)"
        return text

    def __str__(self) -> str:
        return f"{self.summary()}\n\n{self.table()}"

    def _repr_html_(self) -> str:
        """What a notebook shows: the summary, and a table of every step, slowest first."""
        rows = sorted(self.rows, key=lambda row: -row.self_ns)
        return html.preformatted(self.summary()) + html.table(map(_cells, rows), _HEADERS, _ALIGN)

    def summary(self) -> str:
        """Times of the whole call, the machine's limits, and steps by kind."""
        return "\n".join([
            f"{self.name}: {self.call_ns / 1e3:.2f} µs a call, {self.traced_ns / 1e3:.2f} µs while traced "
            f"({self.runs} calls, {self.threads} thread{'s' * (self.threads != 1)}, {', '.join(self.paths) or 'eager'})",
            f"setup {self.setup_ns / 1e3:.2f} µs (memory {self.alloc_ns / 1e3:.2f}), release {self.dealloc_ns / 1e3:.2f} µs, "
            f"outside the runtime {self.outside_ns / 1e3:.2f} µs; roof {self.machine.flops_per_s / 1e9:.0f} GFLOP/s, "
            f"{self.machine.bytes_per_s['memory'] / 1e9:.1f} GB/s from memory",
            *(f"hint: {hint}" for hint in self.hints),
            "",
            kind_table("kind", self.by_kind()),
        ])  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data; units are in the names."""
        rows = [
            {
                **vars(row),
                "gflops_per_s": row.gflops_per_s,
                "gbytes_per_s": row.gbytes_per_s,
                "roofline_share": row.roofline_share,
            }
            for row in self.rows
        ]
        own = {name: value for name, value in vars(self).items() if name not in ("rows", "machine", "calls")}
        return {
            **own,
            "machine": dataclasses.asdict(self.machine),
            "kinds": [dataclasses.asdict(kind) for kind in self.by_kind()],
            "rows": rows,
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict()` as JSON text."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def to_chrome_trace(self, path: str | Path) -> None:
        """Write the last calls in Chrome's trace format: open it in ui.perfetto.dev or chrome://tracing."""
        Path(path).write_text(json.dumps(chrome_trace(self.name, self.calls), allow_nan=False))


_HEADERS = ("node", "op", "kind", "route", "µs", "%", "MB", "GFLOP/s", "of roof", "line")
_ALIGN = ("left", "left", "left", "left", "right", "right", "right", "right", "right", "left")


def kind_table(title: str, rows: Sequence[KindRow]) -> str:
    """Summed rows as text; `title` says what they are summed by."""
    body = [
        [k.kind, k.count, f"{k.time_ns / 1e3:.2f}", f"{k.share:.1%}"[:-1], f"{k.flops / 1e6:.2f}"]
        for k in rows
    ]
    align = ("left", "right", "right", "right", "right") if body else None
    return tabulate(body, [title, "steps", "µs", "%", "MFLOP"], disable_numparse=True, colalign=align)


def _cells(row: ProfileRow) -> list[str]:
    """One row of the table, as text in the order of _HEADERS."""
    return [
        "↳ " * row.depth + _short(row.name, 36),
        _short(row.op, 28),
        row.kind,
        _short(row.route, 24),
        f"{row.self_ns / 1e3:.2f}",
        f"{row.share:.1%}"[:-1],
        f"{row.bytes / 1e6:.3f}",
        "" if row.gflops_per_s is None else f"{row.gflops_per_s:.1f}",
        "" if row.roofline_share is None else f"{row.roofline_share:.0%}",
        row.where,
    ]


def profile(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    runs: int = 20,
    warmup: int = 3,
) -> ProfileReport:
    """Profile calls of anything that runs compiled code: a compiled callable, or a function around it.

    Args:
        function: called `warmup + 2 * runs` times with the same arguments, half of them traced (untraced calls
            stop after two seconds).
        runs: traced calls; figures are their medians.

    Raises:
        InputError: `runs` is not positive, or a profile runs on this thread already.
    """
    if runs < 1:
        raise InputError(f"a profile takes at least one run, got runs={runs}")
    keywords = dict(kwargs or {})
    for _ in range(warmup):
        function(*args, **keywords)
    plain = _plain_times(function, args, keywords, runs)
    tracer = Tracer()
    calls = [tracer.call(function, args, keywords) for _ in range(runs)]
    return _report(name or getattr(function, "__name__", "call"), calls, plain)


def _plain_times(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], runs: int
) -> list[int]:
    times: list[int] = []
    end = time.perf_counter() + MOST_SECONDS
    while len(times) < runs and (not times or time.perf_counter() < end):
        begin = time.perf_counter_ns()
        function(*args, **kwargs)
        times.append(time.perf_counter_ns() - begin)
    return times


@dataclasses.dataclass
class _Sum:
    """Accumulates one row: sums within each call."""

    step: Step
    depth: int
    total: dict[int, int] = dataclasses.field(default_factory=dict)
    inner: dict[int, int] = dataclasses.field(default_factory=dict)
    count: int = 0

    def add(self, call: int, step: Step) -> None:
        self.total[call] = self.total.get(call, 0) + step.end_ns - step.begin_ns
        self.inner[call] = self.inner.get(call, 0) + step.inner_ns
        self.count += 1


def _report(name: str, calls: Sequence[Call], plain: Sequence[int]) -> ProfileReport:
    sums: dict[Any, _Sum] = {}
    eager: dict[tuple[str, str, str], list[int]] = {}
    for number, call in enumerate(calls):
        for run in call.runs:
            for step in run.steps:
                sums.setdefault(step.key, _Sum(step, run.depth)).add(number, step)
        for span in call.eager:
            eager.setdefault((span.name, span.reason, span.where), []).append(span.end_ns - span.begin_ns)
    traced = statistics.median(call.end_ns - call.begin_ns for call in calls)
    rows = [_row(entry, len(calls)) for entry in sums.values()]
    machine = roofline().raised_to((row.flops, row.bytes, row.self_ns) for row in rows)
    rows = [_with_floor(row, machine) for row in rows]
    for (what, reason, where), times in eager.items():
        total = sum(times) / len(calls)
        rows.append(
            ProfileRow(what, (), reason, "eager", "eager", where, depth=0, calls=len(times) / len(calls),
                       time_ns=total, self_ns=total)
        )  # fmt: skip
    # Tracing makes calls longer, so the times of steps are compared with calls without tracing.
    whole = max(statistics.median(plain), sum(row.self_ns for row in rows), 1.0)
    rows = [dataclasses.replace(row, share=row.self_ns / whole) for row in rows]
    return ProfileReport(
        name=name,
        runs=len(calls),
        threads=torch.get_num_threads(),
        call_ns=statistics.median(plain),
        traced_ns=traced,
        setup_ns=_median(calls, "setup_ns"),
        alloc_ns=_median(calls, "alloc_ns"),
        dealloc_ns=_median(calls, "dealloc_ns"),
        outside_ns=statistics.median(call.outside_ns for call in calls),
        paths=tuple(sorted({run.path for call in calls for run in call.runs if run.depth == 0})),
        rows=tuple(rows),
        machine=machine,
        calls=tuple(calls[-_KEPT_CALLS:]),
    )


def _median(calls: Sequence[Call], name: str) -> float:
    sums: list[float] = [sum(getattr(run, name) for run in call.runs if run.depth == 0) for call in calls]
    return statistics.median(sums)


def _row(entry: _Sum, num_calls: int) -> ProfileRow:
    work = entry.step.work
    per_call = entry.count / num_calls
    # A call in which the step did not run counts as zero.
    times = [entry.total.get(number, 0) for number in range(num_calls)]
    own = [entry.total.get(number, 0) - entry.inner.get(number, 0) for number in range(num_calls)]
    counts = {
        name: round(getattr(work, name) * per_call) for name in ("flops", "read_bytes", "written_bytes")
    }
    return ProfileRow(
        **{**vars(work), **counts},
        depth=entry.depth,
        calls=per_call,
        time_ns=statistics.median(times),
        self_ns=statistics.median(own),
    )


def _with_floor(row: ProfileRow, machine: Roofline) -> ProfileRow:
    if row.bytes == 0 or row.calls == 0:
        return row
    once = machine.floor_ns(round(row.flops / row.calls), round(row.bytes / row.calls))
    return dataclasses.replace(row, floor_ns=once * row.calls)


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
