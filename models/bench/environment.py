"""Facts that belong to a table of numbers: machine, threads, versions."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterable
from typing import Any

import torch

import staticrt
from staticrt.models.bench.peers import resolve
from staticrt.tools.cli import env


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
    machine = env.machine()
    overwritten = ("MKL_NUM_THREADS", "OMP_NUM_THREADS")
    return {
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": machine["cpu"],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cpus": machine["cpus"],
        "threads": threads,
        "workers": workers,
        "memory_bytes": machine.get("memory_bytes"),
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
        "variables": {name: value for name, value in env.variables().items() if name not in overwritten},
    }


def describe(facts: dict[str, Any]) -> str:
    """The facts as two lines of text, and a third where environment variables change what is measured."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    workers = f", {facts['workers']} pairs at a time" if facts["workers"] > 1 else ""
    lines = (
        f"{facts['cpu']} ({facts['cpu_capability']}), {facts['cpus']} CPUs, load {facts['load_average']:.1f}; "
        f"{facts['threads']} thread{'s' if facts['threads'] > 1 else ''}, float32, no gradients{workers}\n{versions}"
    )
    if variables := facts.get("variables"):
        lines += "\n" + ", ".join(f"{name}={value}" for name, value in variables.items())
    return lines
