"""`staticrt bench --soak`: many calls of random sizes from many threads; errors, growth of memory, latency.

Each peer runs in a process of its own. Eight threads share four models; each call takes the next of a fixed list of random
inputs, which is longer than the number of prepared programs that staticrt keeps. Resident memory is sampled as calls
go on, and a line is fitted to it after a warm-up.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from staticrt import compile
from staticrt.models import zoo
from staticrt.models.bench import memory
from staticrt.models.bench.check import difference, leaves
from staticrt.models.bench.gates import MISSED, PASSED
from staticrt.models.bench.peers.onnx_runtime import session_call
from staticrt.models.bench.processes import in_process
from staticrt.models.bench.tables import table
from staticrt.models.bench.threads import threads_set

CALLS, QUICK_CALLS = 1_000_000, 20_000
THREADS = 8
INPUTS = 320  # of each model: more sizes than prepared programs are kept (256 at most)
PEERS = ("eager", "onnxruntime", "staticrt")
# model -> its named sizes, from 1 to so many
SIZES: dict[str, dict[str, int]] = {
    "mlp": {"batch": 320},
    "wide_deep": {"batch": 320},
    "graph_network": {"nodes": 64, "edges": 128},
    "encoder_tiny": {"batch": 4, "seq": 48},
}
LEAST_SIZE = 2  # a size of 1 is another model for torch.onnx's exporter
WARM_UP = 0.25  # of the calls
CHECK_EVERY = 61  # calls of each thread, and every call whose result has a wrong shape
MOST_GROWTH_BYTES = 8 << 20  # in a million calls, by the upper end of the slope's interval
SAMPLES = 400
UNDECIDED = "undecided"
_KEPT_ERRORS = 5
_Z = 1.96  # both ends of a 95 % interval


@dataclass(frozen=True)
class Soak:
    """What one peer did.

    Args:
        errors: calls that raised, or whose answer differs from eager's.
        first_errors: the first few of them, as text.
        checked: answers that were compared with eager's value by value.
        p50_us, p99_us, p999_us: of single calls that answered after the warm-up, in microseconds, waiting for a core
            included; NaN if none did.
        rss_bytes: anonymous resident memory at the end; None where the system does not tell.
        slope: bytes per million calls after the warm-up, with the ends of its 95 % interval.
    """

    peer: str
    calls: int
    seconds: float
    errors: int
    first_errors: tuple[str, ...]
    checked: int
    p50_us: float
    p99_us: float
    p999_us: float
    rss_bytes: int | None
    slope: tuple[float, float, float] | None


def slope_with_interval(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """The least-squares slope of y over x, and its 95 % interval.

    Samples of memory depend on those before: the variance is that of Newey and West (Econometrica 55, 1987) with
    Bartlett weights over n^(1/3) lags.

    Args:
        x, y: at least 8 samples, in order; not all x are equal.
    """
    a, b = numpy.asarray(x, dtype=float), numpy.asarray(y, dtype=float)
    centred = a - a.mean()
    spread = float(centred @ centred)
    slope = float(centred @ b) / spread
    scores = centred * (b - b.mean() - slope * centred)
    variance = float(scores @ scores)
    lags = round(len(a) ** (1 / 3))
    for lag in range(1, lags + 1):
        variance += 2 * (1 - lag / (lags + 1)) * float(scores[lag:] @ scores[:-lag])
    half = _Z * max(variance, 0.0) ** 0.5 / spread
    return slope, slope - half, slope + half


class _Workload:
    """The models of one peer, their inputs and eager's answers."""

    def __init__(self, peer: str, seed: int) -> None:
        draw = random.Random(seed)
        self.calls: list[Any] = []
        self.inputs: list[list[tuple[Tensor, ...]]] = []
        self.expected: list[list[list[Any]]] = []
        self.tolerances: list[tuple[float, float]] = []
        for name, most in SIZES.items():
            entry = zoo.get(name)
            module = entry.build(seed)
            generator = torch.Generator().manual_seed(seed)
            sizes = [
                {size: draw.randint(LEAST_SIZE, limit) for size, limit in most.items()} for _ in range(INPUTS)
            ]
            inputs = [entry.feed(generator, chosen) for chosen in sizes]
            self.inputs.append(inputs)
            self.expected.append([leaves(module(*arguments)) for arguments in inputs])
            self.calls.append(_prepared(peer, module, inputs[0]))
            self.tolerances.append((entry.rtol, entry.atol))


def _prepared(peer: str, module: torch.nn.Module, example: tuple[Tensor, ...]) -> Any:
    if peer == "eager":
        return module
    if peer == "staticrt":
        return compile(module)
    from staticrt import to_onnx

    return session_call(to_onnx(module, example).SerializeToString(), threads=1)


class _Thread(threading.Thread):
    """Makes its share of the calls."""

    def __init__(self, work: _Workload, calls: int, seed: int) -> None:
        super().__init__(daemon=True)
        # Written ahead, so that memory does not grow as calls go on; -1: the call has raised.
        self.times_ns = numpy.full(calls, -1, dtype=numpy.int64)
        self.done = 0
        self.checked = 0
        self.errors: list[str] = []
        self.num_errors = 0
        self._work = work
        self._draw = random.Random(seed)

    def run(self) -> None:
        work, clock = self._work, time.perf_counter_ns
        with torch.no_grad():
            for number in range(len(self.times_ns)):
                model, index = self._draw.randrange(len(work.calls)), self._draw.randrange(INPUTS)
                begin = clock()
                try:
                    result = work.calls[model](*work.inputs[model][index])
                    self.times_ns[number] = clock() - begin
                    self._check(number, leaves(result), model, index)
                except Exception as error:
                    self._add_error(f"{type(error).__name__}: {error}")
                self.done = number + 1

    def _check(self, number: int, result: list[Any], model: int, index: int) -> None:
        expected = self._work.expected[model][index]
        same_shapes = [r.shape for r in result] == [e.shape for e in expected]
        if same_shapes and number % CHECK_EVERY:
            return
        self.checked += 1
        rtol, atol = self._work.tolerances[model]
        reason = difference(result, expected, rtol=rtol, atol=atol).reason
        if reason:
            self._add_error(f"{list(SIZES)[model]}: {reason}")

    def _add_error(self, text: str) -> None:
        self.num_errors += 1
        if len(self.errors) < _KEPT_ERRORS:
            self.errors.append(text)


def soak(peer: str, calls: int, *, threads: int = THREADS, seed: int = 0) -> Soak:
    """Make `calls` calls through one peer in this process.

    Args:
        peer: one of `PEERS`.
        calls: over all threads; at least 100 for each.
        threads: Python threads that call. torch's and ONNX Runtime's own threads are set to 1; torch's number is restored.
    """
    with threads_set(1):
        with torch.no_grad():
            work = _Workload(peer, seed)
        workers = [_Thread(work, calls // threads, seed + 1 + number) for number in range(threads)]
        total = sum(len(worker.times_ns) for worker in workers)
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        samples = _sample(workers, total)
        seconds = time.perf_counter() - begin
    times = numpy.concatenate([w.times_ns[int(WARM_UP * len(w.times_ns)) :] for w in workers]) / 1e3
    answered = times[times >= 0]
    percentiles = numpy.percentile(answered, (50, 99, 99.9)) if len(answered) else (numpy.nan,) * 3
    p50, p99, p999 = map(float, percentiles)
    late = [(done, rss) for done, rss in samples if done >= WARM_UP * total]
    slope = slope_with_interval(*zip(*late, strict=True)) if len(late) >= 8 else None
    return Soak(
        peer=peer,
        calls=total,
        seconds=seconds,
        errors=sum(worker.num_errors for worker in workers),
        first_errors=tuple(text for worker in workers for text in worker.errors)[:_KEPT_ERRORS],
        checked=sum(worker.checked for worker in workers),
        p50_us=p50,
        p99_us=p99,
        p999_us=p999,
        rss_bytes=samples[-1][1] if samples else None,
        slope=tuple(value * 1e6 for value in slope) if slope else None,  # type: ignore[arg-type]
    )


def _sample(workers: Sequence[_Thread], total: int) -> list[tuple[int, int]]:
    """(calls done, anonymous resident bytes) while the threads run, about `SAMPLES` times, evenly by calls."""
    samples: list[tuple[int, int]] = []
    wanted = 0.0
    while any(worker.is_alive() for worker in workers):
        done = sum(worker.done for worker in workers)
        if done >= wanted and (rss := memory.anonymous_bytes()) is not None:
            samples.append((done, rss))
            wanted = done + total / SAMPLES
        time.sleep(0.005)
    for worker in workers:
        worker.join()
    if (rss := memory.anonymous_bytes()) is not None:
        samples.append((total, rss))
    return samples


def verdict(found: Soak) -> str:
    """`PASSED` where nothing failed and memory grows by at most `MOST_GROWTH_BYTES` in a million calls.

    `UNDECIDED` where nothing failed but the interval holds both a growth that passes and one that does not, or there is
    none: more calls tell.
    """
    if found.errors or (found.slope is not None and found.slope[1] > MOST_GROWTH_BYTES):
        return MISSED
    return PASSED if found.slope is not None and found.slope[2] <= MOST_GROWTH_BYTES else UNDECIDED


def main(quick: bool) -> tuple[list[dict[str, Any]], str]:
    """Every installed peer, each in a process of its own: as JSON rows, and as a table."""
    rows = []
    for peer in PEERS:
        found = in_process(__name__, peer, str(QUICK_CALLS if quick else CALLS))
        if isinstance(found, str):
            # A peer that is not installed is not a failure.
            rows.append({"peer": peer, "failed": found, "verdict": MISSED if peer == "staticrt" else PASSED})
        else:
            rows.append({**found, "verdict": verdict(Soak(**found)) if peer == "staticrt" else ""})
    return rows, render(rows)


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `main` as a table."""
    body = []
    for row in rows:
        if "failed" in row:
            body.append((row["peer"], "failed", *[""] * 7, row["failed"]))
            continue
        rss, slope = row["rss_bytes"], row["slope"]
        body.append(
            (
                row["peer"],
                f"{row['calls']:,}",
                f"{row['calls'] / row['seconds']:,.0f}",
                row["errors"],
                *(f"{row[key]:,.0f}" for key in ("p50_us", "p99_us", "p999_us")),
                "" if rss is None else f"{rss / 2**20:.0f}",
                "" if slope is None else "{:+.2f} ({:+.2f} … {:+.2f})".format(*(v / 2**20 for v in slope)),
                row["verdict"] or "-",
            )
        )
    headers = ("soak", "calls", "calls/s", "errors", "p50 µs", "p99 µs", "p99.9 µs", "RSS MiB")
    rendered = table(body, (*headers, "MiB per million calls (95 %)", "verdict"))
    errors = [f"{row['peer']}: {text}" for row in rows for text in row.get("first_errors", ())]
    what = (
        f"{THREADS} threads, {len(SIZES)} models ({', '.join(SIZES)}), {INPUTS} inputs of random sizes each."
    )
    return "\n".join([rendered, *errors, "", what])


if __name__ == "__main__":
    print(json.dumps(asdict(soak(sys.argv[1], int(sys.argv[2])))))
