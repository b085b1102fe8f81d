"""Serve an archive of `staticrt.save` with Ray Serve: batches of any size, replicas that share weights, new weights without a pause.

    pip install "ray[serve]"
    python examples/serve_ray.py model.pt2 --row 784 --replicas 2 --threads 1
    curl -d '{"inputs": [[0.1, 0.2, …]]}' http://127.0.0.1:8000/

The model takes one tensor, float32 [rows, *row], and gives one tensor with as many rows. Requests have one or more rows; Ray
collects those that wait into one batch, which runs as it is: no padding, since staticrt takes every number of rows. A replica
reports ready when it is prepared for each of them. Saving the same model with other weights over the archive
(`staticrt.save` writes beside it and renames) reloads every replica within seconds, between two batches. Ray's metrics page,
where Prometheus finds it, has `staticrt_calls`, `staticrt_misses`, `staticrt_arena_bytes` and `staticrt_queue_seconds` of
each replica. docs/serving.md explains the choices.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from ray import serve
from ray.serve import metrics

import staticrt

log = logging.getLogger("ray.serve")
Rows = tuple[float, torch.Tensor]  # when a request arrived, and its rows
QUEUE_SECONDS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
HEALTH_SECONDS = 2.0  # how often Ray asks a replica, which then looks at the archive


def count_rows(requests: list[Rows]) -> int:
    """The size of a batch."""
    return sum(len(rows) for _arrived, rows in requests)


class Replica:
    """One process that serves the archive.

    Args:
        archive: its path on this machine. Replicas map the file: its pages are in memory once, however many there are.
        row: sizes of one row of the input.
        max_rows: of a batch; each number up to it is prepared. A larger request runs alone.
        threads: of torch in this process; replicas × threads is at most the number of cores.
        wait_s: how long a request waits for others.
    """

    def __init__(
        self, archive: str, row: tuple[int, ...], max_rows: int, threads: int, wait_s: float
    ) -> None:
        torch.set_num_threads(threads)
        self._archive, self._row, self._max_rows = archive, row, max_rows
        self._version = _version(archive)
        self.model = self.open(archive)
        sizes = [torch.empty(rows, *row, device="meta") for rows in range(1, max_rows + 1)]
        unready = [str(ready) for ready in self.model.prepare_many(sizes) if not ready]
        if unready:
            log.warning("first calls prepare: %s", unready[0])
        self._warm_misses = self._count("misses")
        self._calls = metrics.Counter("staticrt_calls", "Batches that ran")
        self._misses = metrics.Gauge("staticrt_misses", "Batches of a size that was not prepared")
        self._arena = metrics.Gauge("staticrt_arena_bytes", "Planned memory of the largest batch")
        self._queue = metrics.Histogram(
            "staticrt_queue_seconds", "From a request's arrival to its batch", boundaries=QUEUE_SECONDS
        )
        self._publish()
        self.predict.set_max_batch_size(max_rows)
        self.predict.set_batch_wait_timeout_s(wait_s)

    def open(self, archive: str) -> Any:
        """The model; subclasses may serve another."""
        return staticrt.load(archive)

    # -- what Ray calls --------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Follow the archive, and say what was counted."""
        version = _version(self._archive)
        if version not in (self._version, None):
            try:
                # Calls go on: those that have begun finish on the old weights.
                await asyncio.to_thread(self.model.swap_weights, self._archive)
                log.info("weights of %s are in use", self._archive)
            except staticrt.errors.StaticRuntimeError as error:
                log.error("the old weights stay in use: %s", error)
            self._version = version
        self._publish()

    async def __call__(self, request: Any) -> Any:
        """POST {"inputs": rows} gives {"outputs": rows}; GET says which replica this is and what it holds."""
        from starlette.responses import JSONResponse

        if request.method == "GET":
            return JSONResponse(self.status())
        try:
            rows = torch.tensor((await request.json())["inputs"], dtype=torch.float32)
            if tuple(rows.shape[1:]) != self._row or rows.numel() == 0:
                raise ValueError(f"inputs have sizes {list(rows.shape)}, expected {['rows', *self._row]}")
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            return JSONResponse({"error": str(error)}, status_code=400)
        return JSONResponse({"outputs": (await self.run(rows)).tolist()})

    async def run(self, rows: torch.Tensor) -> torch.Tensor:
        """The model's rows for these; also for calls through a handle."""
        request = (time.monotonic(), rows)
        if len(rows) > self._max_rows:  # in one call all the same: every answer is of one model
            return (await self._predict([request]))[0]
        result: torch.Tensor = await self.predict(request)
        return result

    @serve.batch(batch_size_fn=count_rows)
    async def predict(self, requests: list[Rows]) -> list[torch.Tensor]:
        return await self._predict(requests)

    async def _predict(self, requests: list[Rows]) -> list[torch.Tensor]:
        now = time.monotonic()
        for arrived, _rows in requests:
            self._queue.observe(now - arrived)
        parts = [rows for _arrived, rows in requests]
        # In another thread: requests are taken in meanwhile.
        result = await asyncio.to_thread(self._infer, parts[0] if len(parts) == 1 else torch.cat(parts))
        self._calls.inc()
        return list(result.split([len(part) for part in parts]))

    # -- the model -------------------------------------------------------------------------------------------------

    def _infer(self, rows: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():  # of this thread
            result: torch.Tensor = self.model(rows)
            return result

    def _count(self, what: str) -> int:
        return sum(getattr(graph, what) for graph in self.model.metrics().graphs)

    def _publish(self) -> None:
        self._misses.set(self._count("misses") - self._warm_misses)
        self._arena.set(self._count("arena_bytes"))

    def status(self) -> dict[str, Any]:
        """Process, threads, CPU time, and bytes of the archive that are in memory: all, and those that this process alone holds."""
        mapped = [0, 0]
        wanted = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            name, *rest = line.split()
            if not name.endswith(":"):
                wanted = line.endswith(self._archive)
            elif wanted and name in ("Rss:", "Private_Clean:", "Private_Dirty:"):
                mapped[name != "Rss:"] += int(rest[0]) * 1024
        fields = dict(
            line.split(":") for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
        )
        return {
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
            "cpu_seconds": time.process_time(),
            "archive_bytes": mapped[0],
            "archive_private_bytes": mapped[1],
            "rss_bytes": int(fields["Rss"].split()[0]) * 1024,
            "proportional_bytes": int(fields["Pss"].split()[0]) * 1024,
        }


def _version(path: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def application(
    archive: str | os.PathLike[str],
    row: tuple[int, ...],
    *,
    replicas: int = 1,
    threads: int = 1,
    max_rows: int = 16,
    wait_s: float = 0.002,
    kind: type[Replica] = Replica,
) -> serve.Application:
    """The deployment, for `serve.run`. Arguments are those of `Replica`."""
    deployment = serve.deployment(kind).options(
        name="staticrt",
        num_replicas=replicas,
        # Ray starts as many replicas as there are cores for, and gives each process OMP_NUM_THREADS=threads.
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=4 * max_rows,  # one batch runs, others collect
        health_check_period_s=HEALTH_SECONDS,
    )
    return deployment.bind(os.path.abspath(archive), tuple(row), max_rows, threads, wait_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive")
    parser.add_argument("--row", required=True, help="sizes of one row of the input, as 3x224x224")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="of each replica")
    parser.add_argument("--max-rows", type=int, default=16, help="of a batch")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    row = tuple(int(size) for size in args.row.split("x"))
    serve.start(http_options={"host": "127.0.0.1", "port": args.port})
    app = application(args.archive, row, replicas=args.replicas, threads=args.threads, max_rows=args.max_rows)
    serve.run(app, blocking=True)


if __name__ == "__main__":
    main()
