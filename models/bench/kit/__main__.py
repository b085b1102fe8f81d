"""Runs the kit: checks in processes of their own, one table, one result file."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from tabulate import tabulate

from staticrt.models.bench import environment
from staticrt.models.bench.kit import tools
from staticrt.models.bench.kit.absent import why_absent
from staticrt.models.bench.kit.checks import FAILED, SKIPPED, Row
from staticrt.models.bench.kit.worker import SECTIONS, all_checks, work

OUT_OF_TIME = "the kit ran out of time"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="staticrt.models.bench.kit", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, or sim: the same code without a GPU")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="a section; several times: several")
    parser.add_argument("--seconds", type=float, default=480.0, help="of the whole run")
    parser.add_argument("--output", type=Path, help="result file, JSON")
    parser.add_argument("--without-tools", action="store_true", help="no compute-sanitizer, no pytest")
    parser.add_argument("--worker", nargs=2, metavar=("FIRST", "FILE"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    reason = why_absent(given.device)
    if reason is not None:
        print(f"kit: {reason}", file=sys.stderr)
        return 2
    sections = tuple(given.only or SECTIONS)
    if given.worker:
        return work(given.device, int(given.worker[0]), Path(given.worker[1]), sections)
    deadline = time.monotonic() + given.seconds
    rows = _run(given.device, sections, deadline)
    if not given.without_tools:
        for tool in (tools.marked_tests, tools.compute_sanitizer):
            rows.append(tool(given.device, max(10.0, deadline - time.monotonic())))
    print(render(rows))
    if given.output is not None:
        _save(given.output, given.device, rows)
        print(f"results: {given.output}")
    return 1 if any(row.status == FAILED for row in rows) else 0


def _run(device: str, sections: tuple[str, ...], deadline: float) -> list[Row]:
    """Every check once. One that ends its process has failed, and the next one begins in another process."""
    rows: list[Row] = []
    left = {number: each for number, each in enumerate(all_checks()) if each.section in sections}
    while left:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows"
            ended = _work(device, sections, min(left), target, deadline - time.monotonic())
            begun, made = _read(target)
        rows += made
        for row in made:
            left = {
                n: each for n, each in left.items() if (each.section, each.name) != (row.section, row.name)
            }
        if ended == OUT_OF_TIME:
            rows += [Row(each.section, each.name, FAILED, ended) for each in left.values()]
            return rows
        if begun in left:  # it ended the process
            each = left.pop(begun)
            rows.append(Row(each.section, each.name, FAILED, f"the process ended: {ended}"))
        elif not made:  # not one check began: the others would fail as well
            rows += [
                Row(each.section, each.name, FAILED, f"the process ended: {ended}") for each in left.values()
            ]
            return rows
    return rows


def _work(device: str, sections: tuple[str, ...], first: int, target: Path, seconds: float) -> str:
    """How a worker ended: OUT_OF_TIME, or its exit status with the last line it wrote."""
    command = [sys.executable, "-m", "staticrt.models.bench.kit", "--device", device]
    for section in sections:
        command += ["--only", section]
    try:
        done = subprocess.run(
            [*command, "--worker", str(first), str(target)],
            capture_output=True,
            text=True,
            timeout=max(1.0, seconds),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return OUT_OF_TIME
    said = done.stderr.strip().splitlines()
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return f"{how}; {said[-1]}" if said else how


def _read(target: Path) -> tuple[int | None, list[Row]]:
    """The number of the check that began last, and the rows of a worker's file."""
    begun, rows = None, []
    for line in target.read_text().splitlines() if target.exists() else []:
        record = json.loads(line)
        if "begun" in record:
            begun = record["begun"]
        else:
            rows.append(Row(**record))
    return begun, rows


def render(rows: list[Row]) -> str:
    """The rows as a table, and their number by status."""
    body = [
        (row.section, row.name, row.status, f"{row.seconds:.1f}", _short(row.details, row.status))
        for row in rows
    ]
    counts = {status: sum(row.status == status for row in rows) for status in ("passed", "failed", "skipped")}
    table = tabulate(body, ("section", "check", "status", "s", "figures"), disable_numparse=True)
    return f"{table}\n\n" + ", ".join(f"{count} {status}" for status, count in counts.items())


def _short(details: str, status: str) -> str:
    line = " ".join(details.split())
    line = f"skipped: {line}" if status == SKIPPED else line
    return line if len(line) <= 160 else line[:157] + "..."


def _save(target: Path, device: str, rows: list[Row]) -> None:
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    document = {
        "device": device,
        "time": now,
        "environment": environment.environment((), 1, 1),
        "rows": [asdict(row) for row in rows],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
