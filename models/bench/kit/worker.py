"""All checks of the kit, and the process that runs some of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch

from staticrt import memory
from staticrt.models.bench.kit import graphs as graphs  # these four register their checks
from staticrt.models.bench.kit import memory as allocator  # noqa: F401
from staticrt.models.bench.kit import suite as suite
from staticrt.models.bench.kit import zoo as zoo
from staticrt.models.bench.kit.checks import FAILED, Check, made, run_check, synchronize

SECTIONS = ("suite", "memory", "graphs", "zoo")


def all_checks() -> list[Check]:
    """Every check, in the order of SECTIONS."""
    return sorted(made, key=lambda each: SECTIONS.index(each.section))


def open_device(name: str) -> torch.device:
    """The device "cuda" or "sim" with float32 arithmetic that can be compared with the CPU's."""
    if name == "sim":
        memory.simulated.enable(devices=2)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch.device(name, 0)


def work(name: str, first: int, target: Path, sections: tuple[str, ...]) -> int:
    """Run checks from number `first` on and append their rows, as JSON lines, to a file.

    A line with the number alone says that a check has begun, so that a reader of the file sees which one ended the
    process. Returns 0, or 3 if the device no longer works and the remaining checks need another process.
    """
    device = open_device(name)
    with target.open("a") as rows:
        for number, each in enumerate(all_checks()):
            if number < first or each.section not in sections:
                continue
            print(json.dumps({"begun": number}), file=rows, flush=True)
            row = run_check(each, device)
            print(json.dumps(asdict(row)), file=rows, flush=True)
            if row.status == FAILED and not _works(device):
                return 3
    return 0


def _works(device: torch.device) -> bool:
    try:
        synchronize(device)
        return bool((torch.ones(4, device=device) + 1).sum().item() == 8)
    except Exception:
        return False
