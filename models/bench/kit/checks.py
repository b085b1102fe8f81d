"""What a check of the kit is, its row, and how one runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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


def close(got: Tensor, expected: Tensor, device: torch.device) -> None:
    assert got.device == device, f"the result is on {got.device}, expected {device}"
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


def draw_the_same(function: Callable[[Tensor], Tensor], run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check that `run` draws the random numbers of `function` in call after call."""
    answers = []
    for each in (function, run):
        torch.manual_seed(5)
        with torch.no_grad():
            answers.append([each(x).cpu() for _ in range(5)])
    for theirs, ours in zip(*answers, strict=True):
        assert torch.equal(ours, theirs), "the same seed gives other numbers"


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
