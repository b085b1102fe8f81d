"""Facts to state beside a table of numbers: machine, threads, versions."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

import staticrt
from staticrt.models.bench.peers import resolve


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def environment(peers: Iterable[str], threads: int, workers: int) -> dict[str, Any]:
    """Machine, load and versions, as JSON."""
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "staticrt": staticrt.__version__,
    }
    for name in peers:
        peer = resolve(name)
        if not peer.missing():
            versions |= peer.versions()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": allowed,
        "threads": threads,
        "workers": workers,
        "memory_bytes": _memory_bytes(),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def describe(facts: dict[str, Any]) -> str:
    """The facts as two lines of text."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    workers = f", {facts['workers']} pairs at a time" if facts["workers"] > 1 else ""
    return (
        f"{facts['cpu']} ({facts['cpu_capability']}), {facts['cpus']} CPUs, load {facts['load_average']:.1f}; "
        f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}, float32, no gradients{workers}\n{versions}"
    )
