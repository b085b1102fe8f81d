"""Other programs that look at a run: compute-sanitizer, and the tests that need a GPU."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from staticrt.models.bench.kit.checks import FAILED, PASSED, SKIPPED, Row

# What compute-sanitizer says where it may not attach, besides lines that begin with "Error".
_REFUSALS = ("not supported", "Unable to", "unable to", "permission", "Target application terminated before")


def compute_sanitizer(device: str, seconds: float) -> Row:
    """memcheck of the allocator's section. A tool that refuses to run here is skipped, with its reason."""
    name = "compute-sanitizer on the allocator"
    if device != "cuda":
        return Row("tools", name, SKIPPED, f"it looks at CUDA, not at {device}")
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"
    )
    if tool is None:
        return Row("tools", name, SKIPPED, "compute-sanitizer is not installed")
    program = [sys.executable, "-m", "staticrt.models.bench.kit", "--device", device, "--only", "memory"]
    command = [tool, "--error-exitcode", "9", *program, "--without-tools"]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Row("tools", name, SKIPPED, f"it did not end within {seconds:.0f} s", seconds)
    said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("=========")]
    summary = next((line for line in reversed(said) if "ERROR SUMMARY" in line), "")
    took = time.perf_counter() - begin
    if done.returncode == 0 and "ERROR SUMMARY: 0 errors" in summary:
        return Row("tools", name, PASSED, "0 errors", took)
    refusal = next((line for line in said if any(word in line for word in _REFUSALS)), None)
    if refusal is not None and done.returncode != 9:
        return Row("tools", name, SKIPPED, refusal.strip("= "), took)
    last = (said or done.stderr.strip().splitlines() or ["it ended without output"])[-1]
    return Row("tools", name, FAILED, f"exit {done.returncode}: {last.strip('= ')}", took)


def marked_tests(device: str, seconds: float) -> Row:
    """`pytest -m cuda tests`, where pytest and the tests are there."""
    name = "tests marked cuda"
    if device != "cuda":
        return Row("tools", name, SKIPPED, f"they need a GPU, not {device}")
    if importlib.util.find_spec("pytest") is None:
        return Row("tools", name, SKIPPED, "pytest is not installed")
    if not Path("tests").is_dir():
        return Row("tools", name, SKIPPED, "there is no folder tests here")
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "--import-mode=importlib"]
    command += ["-m", "cuda", "tests"]
    paths = [os.environ.get("PYTHONPATH", ""), str(Path.cwd())]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
    except subprocess.TimeoutExpired:
        return Row("tools", name, FAILED, f"they did not end within {seconds:.0f} s", seconds)
    last = (done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"])[-1]
    status = PASSED if done.returncode == 0 else FAILED
    return Row("tools", name, status, last.strip("= "), time.perf_counter() - begin)
