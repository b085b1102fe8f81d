"""A process that has torch imported and forks a worker for each job.

Importing torch takes seconds, a fork milliseconds. The server starts no thread and runs no operator, so
that a child may. It speaks JSON lines: {"job", "folder"} comes in on stdin; out go {"pid"} when the worker
has begun and {"exit"} when it has ended (negative: the signal that ended it). In the folder the worker
writes `stage` (what it is doing), `log` (its output), `result.json` and temporary files.

Run as `python -m staticrt.models.bench.fork_server`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

# Modules that some peers import at their first use. Importing them here keeps that time out of all measurements.
PRELOAD = (
    "torch", "torch.export._trace", "torch._dynamo", "torch._functorch.aot_autograd",
    "torch._higher_order_ops", "torch.onnx", "staticrt.models.zoo", "staticrt.models.bench.worker",
)  # fmt: skip


PR_SET_PDEATHSIG = 1  # linux/prctl.h
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")  # colours that some peers put into messages


def serve() -> None:
    """Answer requests until stdin ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the runner's to handle
    for name in PRELOAD:
        importlib.import_module(name)
    _reply({"ready": True})
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become_worker(request["job"], Path(request["folder"]))
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # the child does the same; either may be first
        _reply({"pid": pid})
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # processes it started and left behind
        _reply({"exit": os.waitstatus_to_exitcode(status)})


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends for any reason. Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _reply(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _become_worker(job: dict[str, Any], folder: Path) -> None:
    """Do the job, and exit the process in any case."""
    code = 1
    try:
        die_with_parent()
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _redirect(folder)
        result = _work(job, folder)
        partial = folder / "result.part"
        partial.write_text(json.dumps(result))
        partial.rename(folder / "result.json")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: a peer's destructors may crash after the work is done.
        sys.stderr.flush()
        os._exit(code)


def _redirect(folder: Path) -> None:
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    scratch = folder / "scratch"
    scratch.mkdir()
    tempfile.tempdir = str(scratch)
    os.environ["TMPDIR"] = str(scratch)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "inductor")


def _work(fields: dict[str, Any], folder: Path) -> dict[str, Any]:
    from staticrt.models.bench import job as jobs
    from staticrt.models.bench import worker

    job = jobs.Job(**fields | {"setting": jobs.Setting(**fields["setting"])})

    def stage(name: str) -> None:
        (folder / "stage").write_text(name)

    try:
        return worker.run(job, stage)
    except Exception as error:
        lines = ESCAPES.sub("", str(error)).strip().splitlines()
        return {
            "status": jobs.FAILED,
            "reason": f"{type(error).__name__}: {lines[0] if lines else ''}",
            "stage": (folder / "stage").read_text() if (folder / "stage").exists() else "starting",
            "traceback": traceback.format_exc()[-4000:],
        }


if __name__ == "__main__":
    serve()
