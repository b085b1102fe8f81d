"""Fill a document with results: every model, every peer, one or more workers at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from types import FrameType
from typing import Any

from staticrt.models import zoo
from staticrt.models.bench import job as jobs
from staticrt.models.bench.job import Job, Result, Setting
from staticrt.models.bench.peers import resolve
from staticrt.models.bench.progress import Progress
from staticrt.models.bench.runner import Runner


def allowed_cpus() -> list[int]:
    """CPUs this process may use, in order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def measure(
    document: dict[str, Any],
    entries: list[zoo.Entry],
    peers: list[str],
    setting: Setting,
    workers: int,
    save: Callable[[], None],
) -> bool:
    """Fill `limits`, `models` and `rows`; `save` is called now and then. False if the user interrupted.

    The limits are measured alone. After that `workers` run at a time, each timed on CPUs of its own; rows
    are in the order of models and peers whichever ends first.
    """
    tasks = _tasks(entries, peers, setting)
    progress = Progress(1 + len(tasks))
    results: dict[int, Result] = {}
    try:
        with _sigterm_interrupts(), _RunnerPool(workers, setting.threads) as pool:
            progress.show("the machine's limits")
            ((_, document["limits"]),) = pool.results([Job(jobs.LIMITS, setting)])
            progress.advance()
            for index, result in pool.results(tasks):
                results[index] = result
                progress.advance()
                progress.show(", ".join(_name(job) for _, job in sorted(pool.running.copy().items())))
                _fill(document, tasks, results)
                model = tasks[index].model
                if all(at in results for at, task in enumerate(tasks) if task.model == model):
                    progress.say(_row_line(model, document["rows"]))
                if tasks[index].kind == jobs.FACTS:
                    save()
    except KeyboardInterrupt:
        return False
    finally:
        progress.finish()
    return True


def _tasks(entries: list[zoo.Entry], peers: list[str], setting: Setting) -> list[Job]:
    tasks = []
    for entry in entries:
        tasks.append(Job(jobs.FACTS, setting, entry.name))
        tasks += [Job(jobs.PAIR, setting, entry.name, peer) for peer in peers]
    return tasks


def _fill(document: dict[str, Any], tasks: list[Job], results: dict[int, Result]) -> None:
    done = [(tasks[index], results[index]) for index in sorted(results)]
    document["models"] = {job.model: result for job, result in done if job.kind == jobs.FACTS}
    document["rows"] = [
        {"model": job.model, "peer": job.peer, **result} for job, result in done if job.kind == jobs.PAIR
    ]


def _row_line(model: str | None, rows: list[Result]) -> str:
    """What a model's row of the table will say, as soon as its peers are measured."""
    speeds = (
        f"{row['peer']} {row['speedup']:.2f}" if "speedup" in row else f"{row['peer']} {row['status']}"
        for row in rows
        if row["model"] == model
    )
    return f"{model}, speed over eager: {', '.join(speeds)}"


def _name(job: Job) -> str:
    return f"{job.model} × {job.peer}" if job.peer else f"{job.model}: counting its work"


def _run(runner: Runner, job: Job) -> Result:
    missing = resolve(job.peer).missing() if job.kind == jobs.PAIR else []
    if missing:
        return {"status": jobs.ABSENT, "reason": f"not installed: {', '.join(missing)}", "total_s": 0.0}
    return runner.run(job)


class _RunnerPool:
    """Runs jobs in the order given, as many at a time as there are runners; each runner's workers have CPUs of their own."""

    def __init__(self, workers: int, threads: int) -> None:
        self.running: dict[int, Job] = {}
        self._runners = [Runner(threads) for _ in range(workers)]
        self._free: queue.SimpleQueue[tuple[Runner, tuple[int, ...]]] = queue.SimpleQueue()
        self._waiting = ThreadPoolExecutor(workers)
        # From the last CPU downwards: the first often serve interrupts.
        cpus = allowed_cpus()[::-1]
        for number, runner in enumerate(self._runners):
            self._free.put((runner, tuple(sorted(cpus[number * threads : (number + 1) * threads]))))

    def __enter__(self) -> _RunnerPool:
        return self

    def __exit__(self, *_error: object) -> None:
        self._waiting.shutdown(wait=False, cancel_futures=True)
        for runner in self._runners:
            runner.cancel()
        self._waiting.shutdown()
        for runner in self._runners:
            runner.stop()

    def results(self, new: list[Job]) -> Iterator[tuple[int, Result]]:
        """Positions in `new` and results, as jobs end; raises what a runner raised."""
        futures = {self._waiting.submit(self._run, index, job): index for index, job in enumerate(new)}
        for future in as_completed(futures):
            yield futures[future], future.result()

    def _run(self, index: int, job: Job) -> Result:
        runner, cpus = self._free.get()
        self.running[index] = job
        try:
            return _run(runner, replace(job, cpus=cpus))
        finally:
            del self.running[index]
            self._free.put((runner, cpus))


@contextlib.contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Treat SIGTERM as an interrupt: end the workers and keep the results so far."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
