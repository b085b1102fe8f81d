"""Runs jobs in workers, and turns every outcome into a result."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from staticrt.errors import InternalError
from staticrt.models.bench import job as jobs
from staticrt.models.bench.job import Job, Result

START_SECONDS = 120.0
END_SECONDS = 30.0


class _ServerEnded(Exception):
    """The fork server is gone."""


class Runner:
    """Owns a fork server; `run` is called for one job at a time.

    A worker that crashes, hangs or raises gives a result that says so; the server outlives it. Used as a
    context manager: leaving it, by an exception too, ends the server and the worker.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._server: subprocess.Popen[bytes] | None = None
        self._pending = b""
        self._worker = 0

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_error: object) -> None:
        self._kill_worker()
        self.stop()

    def run(self, job: Job) -> Result:
        """The worker's result, with `status` and `reason`, and the seconds it took in all."""
        begin = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="staticrt-bench-"))
        try:
            result = self._run_in(job, folder)
        except _ServerEnded:
            self.stop()  # the next job starts another
            result = {"status": jobs.CRASHED, "reason": f"took the fork server along{_while(folder)}"}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return {"status": jobs.OK, "reason": None, "total_s": time.monotonic() - begin, **result}

    def cancel(self) -> None:
        """End worker and server now. May be called from another thread, whose `run` then returns."""
        self._kill_worker()
        server = self._server
        if server is not None:
            server.kill()

    def _run_in(self, job: Job, folder: Path) -> Result:
        self._start()
        assert self._server is not None
        assert self._server.stdin is not None
        request = json.dumps({"job": asdict(job), "folder": str(folder)})
        with contextlib.suppress(BrokenPipeError):  # the process has ended and will not reply
            self._server.stdin.write(request.encode() + b"\n")
            self._server.stdin.flush()
        started = self._reply(END_SECONDS)
        self._worker = started["pid"] if started else 0
        ended = self._reply(job.setting.timeout)
        if ended is None:
            self._kill_worker()
            if self._reply(END_SECONDS) is None:
                self.stop()  # it hangs; the next job starts another
            reason = f"not done after {job.setting.timeout:g} s{_while(folder)}"
            return {"status": jobs.TIMEOUT, "reason": reason, "log": _read(folder / "log")[-4000:]}
        self._worker = 0
        if ended["exit"] == 0 and (folder / "result.json").exists():
            result: Result = json.loads((folder / "result.json").read_text())
            return result
        return {
            "status": jobs.CRASHED,
            "reason": f"{_exit_name(ended['exit'])}{_while(folder)}",
            "log": _read(folder / "log")[-4000:],
        }

    def _start(self) -> None:
        if self._server is not None and self._server.poll() is None:
            return
        threads = str(self._threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._pending = b""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "staticrt.models.bench.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        ready = None
        with contextlib.suppress(_ServerEnded):
            ready = self._reply(START_SECONDS)
        if ready is None:
            code = self._server.poll()
            self.stop()
            raise InternalError(
                f"the benchmark's fork server did not start (exit code {code})",
                fix="run python -m staticrt.models.bench.fork_server to see why",
            )

    def _reply(self, seconds: float) -> dict[str, Any] | None:
        """The server's next line, or None after `seconds`."""
        assert self._server is not None
        assert self._server.stdout is not None
        end = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._server.stdout, selectors.EVENT_READ)
            while b"\n" not in self._pending:
                remaining = end - time.monotonic()
                if remaining <= 0 or not selector.select(remaining):
                    return None
                data = os.read(self._server.stdout.fileno(), 65536)
                if not data:
                    raise _ServerEnded
                self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _kill_worker(self) -> None:
        if self._worker:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._worker, signal.SIGKILL)
            self._worker = 0

    def stop(self) -> None:
        """End the server."""
        if self._server is None:
            return
        for pipe in (self._server.stdin, self._server.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._server.wait(5)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        self._server = None


def _exit_name(code: int) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _while(folder: Path) -> str:
    """The worker's last reported activity."""
    return f" while {_read(folder / 'stage') or 'starting'}"


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
