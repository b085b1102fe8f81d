"""`staticrt bench MODEL`: one model of the user's against eager and every fast peer that can run it."""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from staticrt.errors import StaticRuntimeError
from staticrt.frontend.progress import long_work
from staticrt.models.bench.check import difference, leaves
from staticrt.models.bench.environment import environment
from staticrt.models.bench.peers import resolve, select
from staticrt.models.bench.tables import table
from staticrt.tools.cli.call import call
from staticrt.tools.cli.loading import LoadedModel, prepare_model
from staticrt.tools.cli.output import print_json
from staticrt.tools.report.compare import copied

SECONDS = 2.0  # of timing for each peer
QUICK_SECONDS = 0.3
MIN_CALLS = 20
_ROUNDS = 10  # each peer is timed in so many turns, between turns of the others
_WARM_UP_CALLS = 5
_RTOL, _ATOL = 1e-4, 1e-5  # as of the zoo; atol in units of the largest magnitude

Row = dict[str, Any]


class _Calls(nn.Module):
    """A function as a module, as peers want it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def bench_model(arguments: argparse.Namespace) -> int:
    """Measure, print a table or JSON; 1 if staticrt is wrong or failed."""
    loaded, compiled, args, kwargs = prepare_model(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    peers = select(arguments.peers) if arguments.peers else select(None, quick=True)
    rows: dict[str, Row] = {}
    calls: dict[str, Callable[..., Any]] = {}
    expected = None
    if loaded.eager is not None:
        expected = call(f"running {loaded.name} eagerly", loaded.eager, *copied(args), **copied(kwargs))
    for name in peers:
        rows[name] = {"peer": name}
        why = _why_not(name, loaded, args, kwargs)
        if why is not None:
            rows[name] |= dict(zip(("status", "reason"), why, strict=True))
            continue
        try:
            made, seconds, result = _prepare(name, loaded, compiled, args, kwargs)
        except Exception as error:  # a peer that fails gets a row; the others go on
            lines = str(error).strip().splitlines()
            rows[name] |= {
                "status": "failed",
                "reason": f"{type(error).__name__}: {lines[0] if lines else ''}",
            }
            continue
        rows[name] |= {"status": "ok", "first_answer_s": seconds}
        if expected is not None and (off := _off(result, expected)):
            rows[name] |= {"status": "wrong", "reason": off}
        calls[name] = made
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    with long_work(f"timing {loaded.name}"):
        times = _measure(calls, args, kwargs, seconds)
    for name, found in times.items():
        rows[name] |= _percentiles(found)
    base = rows.get("eager", {}).get("p50_us")
    for row in rows.values():
        row["speedup"] = base / row["p50_us"] if base and row.get("p50_us") else None
    document = {
        "model": loaded.name,
        "inputs": [describe(value) for value in (*args, *kwargs.values())],
        "environment": environment([p for p in peers if p in calls], torch.get_num_threads(), 1),
        "rows": list(rows.values()),
    }
    _show(document, arguments.json)
    if not calls:
        return 1
    own = rows.get("staticrt", {"status": "ok"})
    return 0 if own["status"] == "ok" else 1


def describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return repr(value)


def _why_not(
    name: str, loaded: LoadedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str] | None:
    """Status and reason of a peer that cannot take part in this comparison; None if it can."""
    if missing := resolve(name).missing():
        return "not installed", f"pip install {' '.join(missing)}"
    if name == "staticrt":
        return None
    if loaded.eager is None:
        return "skipped", "an archive of staticrt.save holds no eager form"
    if name != "eager" and (kwargs or not all(isinstance(a, torch.Tensor) for a in args)):
        return "skipped", "it takes positional tensors only"
    return None


def _prepare(
    name: str,
    loaded: LoadedModel,
    compiled: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Callable[..., Any], float, Any]:
    """The peer's callable, seconds from the model to its first answer, and that answer."""
    peer = resolve(name)
    peer.load()
    with long_work(f"{name}: preparing"), torch.no_grad():
        begin = time.perf_counter()
        if name == "staticrt":
            made = compiled
        elif name == "eager":
            assert loaded.eager is not None
            made = loaded.eager
        else:
            assert loaded.eager is not None
            module = (
                copy.deepcopy(loaded.eager) if isinstance(loaded.eager, nn.Module) else _Calls(loaded.eager)
            )
            made = peer.prepare(module, copied(args), torch.get_num_threads())
        result = copied(made(*copied(args), **copied(kwargs)))
        return made, time.perf_counter() - begin, result


def _off(result: Any, expected: Any) -> str:
    """How a result differs from eager's, "" if it does not."""
    found = difference(leaves(result), leaves(expected), rtol=_RTOL, atol=_ATOL)
    return found.reason or ""


def _measure(
    calls: dict[str, Callable[..., Any]], args: tuple[Any, ...], kwargs: dict[str, Any], seconds: float
) -> dict[str, list[int]]:
    """Nanoseconds of single calls, measured in turns, so that changes of the machine's speed affect all peers alike."""
    times: dict[str, list[int]] = {name: [] for name in calls}
    with torch.no_grad():
        for function in calls.values():
            for _ in range(_WARM_UP_CALLS):
                function(*args, **kwargs)
        for _ in range(_ROUNDS):
            for name, function in calls.items():
                end = time.perf_counter() + seconds / _ROUNDS
                enough = MIN_CALLS // _ROUNDS
                while enough > 0 or time.perf_counter() < end:
                    begin = time.perf_counter_ns()
                    function(*args, **kwargs)
                    times[name].append(time.perf_counter_ns() - begin)
                    enough -= 1
    return times


def _percentiles(times: list[int]) -> Row:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {
        "calls": len(times),
        "p50_us": cuts[49] / 1e3,
        "p90_us": cuts[89] / 1e3,
        "p99_us": cuts[98] / 1e3,
        "mean_us": statistics.fmean(times) / 1e3,
    }


def _show(document: dict[str, Any], target: Path | None) -> None:
    if target is not None:
        if str(target) == "-":
            print_json(document, indent=1)
            return
        try:
            target.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise StaticRuntimeError(f"--json {target}: cannot be written: {error.strerror}") from error
    facts = document["environment"]
    print(f"{document['model']}({', '.join(document['inputs'])}), {facts['threads']} threads, {facts['cpu']}")
    body = []
    for row in document["rows"]:
        if "p50_us" not in row:
            body.append([row["peer"], row["status"], "", "", "", "", "", row["reason"]])
            continue
        speedup = "" if row["speedup"] is None else f"{row['speedup']:.2f}"
        figures = [f"{row[key]:.1f}" for key in ("p50_us", "p90_us", "p99_us")]
        note = row.get("reason", "")
        body.append([row["peer"], row["status"], *figures, speedup, f"{row['first_answer_s']:.2f}", note])
    headers = ["peer", "", "p50 µs", "p90 µs", "p99 µs", "× eager", "first s", ""]
    print(table(body, headers, left=(0, 1, -1)))
