"""Fill a document with results: every model, every peer, one or more workers at a time."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from staticrt.models import zoo
from staticrt.models.bench import job as jobs
from staticrt.models.bench.job import Job, Result, Setting
from staticrt.models.bench.peers import resolve
from staticrt.models.bench.progress import Progress
from staticrt.models.bench.runner import Runner

POLL_SECONDS = 0.2  # how soon an interrupt is seen


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
            pool.start([Job(jobs.LIMITS, setting)])
            _, document["limits"] = pool.result()
            progress.advance()
            pool.start(tasks)
            for _ in tasks:
                progress.show(", ".join(_name(job) for job in pool.running()))
                index, result = pool.result()
                results[index] = result
                progress.advance()
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


@dataclass(frozen=True)
class _PooledRunner:
    """A runner, the thread that waits for it, and the CPUs its workers are timed on."""

    runner: Runner
    thread: threading.Thread


class _RunnerPool:
    """Runs jobs in the order given, as many at a time as there are runners.

    Thread safety: the runners' threads take from one deque and put into one queue; only the owner touches the rest.
    """

    def __init__(self, workers: int, threads: int) -> None:
        self._jobs: deque[tuple[int, Job]] = deque()
        self._given = threading.Condition()
        self._ended = False
        self._running: dict[int, Job] = {}
        self._done: queue.Queue[tuple[int, Result | Exception]] = queue.Queue()
        self._members = []
        # From the last CPU downwards: the first often serve interrupts.
        cpus = allowed_cpus()[::-1]
        for member in range(workers):
            runner = Runner(threads)
            own = tuple(sorted(cpus[member * threads : (member + 1) * threads]))
            thread = threading.Thread(target=self._work, args=(runner, own), daemon=True)
            self._members.append(_PooledRunner(runner, thread))

    def __enter__(self) -> _RunnerPool:
        for member in self._members:
            member.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        with self._given:
            self._ended = True
            self._given.notify_all()
        for member in self._members:
            member.runner.cancel()
        for member in self._members:
            member.thread.join()

    def start(self, new: list[Job]) -> None:
        """Queue `new` jobs; results carry their positions in it."""
        with self._given:
            self._jobs.extend(enumerate(new))
            self._given.notify_all()

    def running(self) -> list[Job]:
        return [self._running[index] for index in sorted(self._running.copy())]

    def result(self) -> tuple[int, Result]:
        """The next job to end, and what became of it; raises what its runner raised."""
        while True:
            with contextlib.suppress(queue.Empty):
                index, result = self._done.get(timeout=POLL_SECONDS)
                if isinstance(result, Exception):
                    raise result
                return index, result

    def _work(self, runner: Runner, cpus: tuple[int, ...]) -> None:
        with runner:
            while True:
                with self._given:
                    self._given.wait_for(lambda: self._jobs or self._ended)
                    if self._ended:
                        return
                    index, job = self._jobs.popleft()
                    self._running[index] = job
                result: Result | Exception
                try:
                    result = _run(runner, replace(job, cpus=cpus))
                except Exception as error:  # raised again by the owner
                    result = error
                self._running.pop(index)
                self._done.put((index, result))


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
