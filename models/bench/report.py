"""The benchmark's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from staticrt.models.bench import job as jobs
from staticrt.models.bench.environment import describe
from staticrt.models.bench.gates import PASSED, UNKNOWN, Gate, geometric_mean
from staticrt.models.bench.limits import floor_s
from staticrt.models.bench.tables import table

MIB = 1 << 20

Row = dict[str, Any]
Document = dict[str, Any]


def render(document: Document, *, details: bool = False) -> str:
    """All tables of a finished or interrupted run."""
    parts = [describe(document["environment"])]
    parts += [_limits(document["limits"])] if document.get("limits") else []
    parts += [
        _pair_table(
            document,
            "Speed: eager's time / the peer's (eager itself: how far this scatters)",
            _speed,
            (("eager µs", _eager_us),),
            with_mean=True,
        ),
        _pair_table(document, "Seconds from module to first answer, imports aside", _first_answer),
        _pair_table(document, "Peak memory above the models in steady state, MiB", _memory),
    ]
    if any("flops" in counts for counts in document["models"].values()):
        parts.append(_work_table(document))
    if details:
        parts.append(_details(document["rows"]))
    parts += [text for text in (_problems(document["rows"]), _eager_parts(document["rows"])) if text]
    return "\n\n".join(parts)


def render_gains(documents: Sequence[Document]) -> str:
    """How much faster each peer becomes by more threads: its time in the first run over that in each other."""
    first, *others = documents
    before = {(row["model"], row["peer"]): row for row in first["rows"]}
    tables = []
    for document in others:
        gains = []
        for row in document["rows"]:
            old = before.get((row["model"], row["peer"]))
            if old is not None and old["status"] == row["status"] == jobs.OK:
                row = {**row, "speedup": old["candidate_ns"] / row["candidate_ns"]}
            gains.append(row)
        counts = [run["setting"]["threads"] for run in (first, document)]
        title = f"Gain from {counts[0]} to {counts[1]} threads: a peer's time on {counts[0]} / on {counts[1]}"
        tables.append(_pair_table({**document, "rows": gains}, title, _speed, with_mean=True))
    return "\n\n".join(tables)


def render_gates(gates: Sequence[Gate]) -> str:
    """Targets and values; how many are met."""
    rows = [[g.name, g.model, g.target, _number(g.value), g.verdict] for g in gates]
    passed = sum(g.verdict == PASSED for g in gates)
    unknown = sum(g.verdict == UNKNOWN for g in gates)
    rendered = table(rows, ["target", "model", "bound", "value", "verdict"])
    return f"Targets\n{rendered}\n{passed} of {len(gates) - unknown} measured targets met, {unknown} not measured"


def _number(value: float | str | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"


def _cell(row: Row | None, value: Callable[[Row], str]) -> str:
    if row is None:
        return ""
    return value(row) if row["status"] == jobs.OK else str(row["status"])


def _speed(row: Row) -> str:
    return f"{row['speedup']:.2f}"


def _first_answer(row: Row) -> str:
    return f"{row['first_answer_s']:.2f}"


def _memory(row: Row) -> str:
    peak = row["steady_peak_bytes"]
    return "-" if peak is None else f"{peak / MIB:.1f}"


def _eager_us(rows: Sequence[Row]) -> str:
    """Eager's time beside the peer with the best conditions: the least of all."""
    times = [row["baseline_ns"] for row in rows if row.get("baseline_ns") is not None]
    return f"{min(times) / 1e3:,.1f}" if times else "-"


def _pair_table(
    document: Document,
    title: str,
    value: Callable[[Row], str],
    extra: Sequence[tuple[str, Callable[[Sequence[Row]], str]]] = (),
    *,
    with_mean: bool = False,
) -> str:
    peers = document["peers"]
    lines = []
    for model in dict.fromkeys(row["model"] for row in document["rows"]):
        rows = {row["peer"]: row for row in document["rows"] if row["model"] == model}
        line = [model, *(make(list(rows.values())) for _, make in extra)]
        lines.append([*line, *(_cell(rows.get(peer), value) for peer in peers)])
    if with_mean and len(lines) > 1:
        means = []
        for peer in peers:
            right = [r for r in document["rows"] if r["peer"] == peer and r["status"] == jobs.OK]
            mean = geometric_mean(r["speedup"] for r in right)
            means.append("-" if mean is None else f"{mean:.2f} ({len(right)})")
        lines.append(["geometric mean (of)", *("" for _ in extra), *means])
    return f"{title}\n{table(lines, ['model', *(name for name, _ in extra), *peers])}"


def _limits(limits: dict[str, Any]) -> str:
    if limits["status"] != jobs.OK:
        return f"Limits: {limits['status']}: {limits['reason']}"
    bandwidths = ", ".join(
        f"{name} {speed / 1e9:.0f} GB/s" for name, speed in limits["copy_bytes_per_s"].items()
    )
    routes = ", ".join(f"{name} {speed / 1e9:.0f}" for name, speed in limits["gemm_routes"].items())
    return (
        f"Limits: float32 GEMM {limits['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s ({routes}); copying {bandwidths}; "
        f"empty calls: Python {limits['python_call_ns']:.0f} ns, module {limits['module_call_ns']:.0f} ns, "
        f"smallest op {limits['smallest_op_ns']:.0f} ns"
    )


def _work_table(document: Document) -> str:
    """Work of each model, the floor it implies, and how near eager and the fastest right peer come to it."""
    lines = []
    for model, counts in document["models"].items():
        if "flops" not in counts:
            continue  # counting failed; the reason is in the JSON
        rows = [r for r in document["rows"] if r["model"] == model and r["status"] == jobs.OK]
        floor = floor_s(counts, document.get("limits") or {})
        best = min(rows, key=lambda r: r["candidate_ns"], default=None)
        eager = min((r["baseline_ns"] for r in rows), default=None)
        lines.append(
            [
                model,
                "-" if counts["flops"] is None else f"{counts['flops'] / 1e6:,.3f}",
                "-" if counts["min_bytes"] is None else f"{counts['min_bytes'] / MIB:,.3f}",
                "-" if counts["traffic_bytes"] is None else f"{counts['traffic_bytes'] / MIB:,.3f}",
                _number(counts["ops"] and str(counts["ops"])),
                "-" if floor is None else f"{floor * 1e6:,.1f}",
                "-" if floor is None or eager is None else f"{floor * 1e9 / eager:.0%}",
                "-" if floor is None or best is None else f"{floor * 1e9 / best['candidate_ns']:.0%}",
                "" if best is None else best["peer"],
            ]
        )
    headers = ["model", "MFLOP", "MiB at least", "MiB eager moves", "ops", "floor µs", "eager", "best", "by"]
    return f"Work, and how much of the machine's limit is reached\n{table(lines, headers)}"


def _details(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if "speedup" not in row:
            lines.append([row["model"], row["peer"], row["status"], *[""] * 9])
            continue
        steady = row["steady_s"]
        lines.append(
            [
                row["model"],
                row["peer"],
                row["status"],
                f"{row['speedup']:.3f}",
                row["basis"],
                f"{row['wall_speedup']:.3f}",
                f"{row['cpu_speedup']:.3f}",
                f"{row['spread']:.1%}",
                f"{row['rounds']} / {row['clean_rounds']}",
                f"{row['candidate_ns'] / 1e3:,.2f}",
                "-" if steady is None else f"{steady:.2f}",
                "-" if row["max_abs_error"] is None else f"{row['max_abs_error']:.1e}",
            ]
        )
    headers = ["model", "peer", "status", "speed", "basis", "wall", "cpu", "spread", "rounds / clean"]
    headers += ["µs", "steady after s", "max error"]
    return f"Details\n{table(lines, headers)}"


def _problems(rows: Sequence[Row]) -> str:
    lines = [f"  {r['model']} × {r['peer']}: {r['status']}: {r['reason']}" for r in rows if r["reason"]]
    return "\n".join(["Rows without a valid number", *lines]) if lines else ""


def _eager_parts(rows: Sequence[Row]) -> str:
    """The part that a peer reports to run eagerly."""
    lines = [
        f"  {row['model']} × {row['peer']}: {reason}"
        for row in rows
        for reason in row.get("facts", {}).get("eager", ())
    ]
    return "\n".join(["Run eagerly", *lines]) if lines else ""
