"""What a check of the kit is, its row, and how one runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Row:
    """What one check found.

    Args:
        details: measured figures; of a failure what went wrong, of a skipped check the reason.
    """

    section: str
    name: str
    status: str
    details: str
    seconds: float = 0.0


class Skip(Exception):
    """The check cannot be made here; the message says why."""


@dataclass(frozen=True)
class Check:
    section: str
    name: str
    run: Callable[[torch.device], str | None]  # returns figures for the table


made: list[Check] = []  # by the modules that are imported


def check(section: str, name: str) -> Callable[[Callable[[torch.device], str | None]], Callable[..., object]]:
    """Register a function of the device, which raises where something is wrong."""

    def add(run: Callable[[torch.device], str | None]) -> Callable[..., object]:
        made.append(Check(section, name, run))
        return run

    return add


def synchronize(device: torch.device) -> None:
    torch.accelerator.synchronize(device.index)


def run_check(each: Check, device: torch.device) -> Row:
    """Run one check. What it left undone on the device belongs to it."""
    begin = time.perf_counter()
    try:
        found = each.run(device)
        synchronize(device)
        status, details = PASSED, found or ""
    except Skip as reason:
        status, details = SKIPPED, str(reason)
    except Exception as error:
        text = str(error).strip() or "no message"
        status, details = FAILED, f"{type(error).__name__}: {text}"
    return Row(each.section, each.name, status, details, time.perf_counter() - begin)
