"""Resident memory of this process, and its peak over a stretch of calls.

Only anonymous memory is compared: pages of program code, mapped when first run, differ between peers by
tens of megabytes and say nothing about a model. Linux only: elsewhere everything is None.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): "reset the peak resident set size"


def _status() -> dict[str, int]:
    """Fields of /proc/self/status in bytes, those given in kB."""
    fields = {}
    for line in STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith("kB"):
            fields[name] = int(value.split()[0]) * 1024
    return fields


def trim() -> None:
    """Collect garbage and give free pages back to the system, so that what remains is in use."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return  # not glibc: the figures are upper bounds then


def anonymous_bytes() -> int | None:
    """Anonymous resident memory now, in bytes; None where the system does not tell."""
    try:
        return _status()["RssAnon"]
    except (OSError, KeyError):
        return None


def peak_during(work: Callable[[], object]) -> int | None:
    """Highest anonymous resident memory while `work` runs, in bytes; None where the system does not tell."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        work()
        return None
    work()
    status = _status()
    return status["VmHWM"] - status["RssFile"] - status["RssShmem"]
