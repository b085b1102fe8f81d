"""Run models whose forward reads Python state, change one thing that eager can see between calls, and compare with eager.

    python -m tests.soundness.state_fuzzer --seed 1 --changes 20000

Each model reads a few kinds of state (`state_kinds`); it is compiled anew after a few changes, since a state
that changes in every call is not worth a trace.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import staticrt
from tests.soundness.state_kinds import KINDS, RUN_IN_PARTS, Read
from tests.support import fuzz_command

READS = 3
CHANGES = 4
NUMBERS = (0.5, 1.5, 2.0, 3.0, 4.0)


class Model(nn.Module):
    """Calls what reads state, one after the other."""

    def __init__(self, reads: list[Read]) -> None:
        super().__init__()
        self.reads = reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for read in self.reads:
            x = read(x)
        return x


def compiled(function: Callable[..., Any], way: str) -> Callable[..., Any]:
    if way == "backend":
        return torch.compile(function, backend="staticrt")  # type: ignore[no-any-return]
    return staticrt.compile(function)


def answer(function: Callable[..., Any]) -> Any:
    """What a call gives: a tensor, or the type of what it raises."""
    x = torch.tensor([[0.5, 1.0, 2.0, 3.0], [3.0, 4.0, 0.5, 1.0]], dtype=torch.float32)
    try:
        with torch.no_grad():
            return function(x)
    except Exception as error:
        return type(error)


def same(got: Any, want: Any) -> bool:
    if not isinstance(want, torch.Tensor) or not isinstance(got, torch.Tensor):
        return got is want
    return got.dtype == want.dtype and torch.allclose(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def failure(seed: int, names: tuple[str, ...], changes: int = CHANGES, way: str = "compile") -> str:
    """Compile a model of these kinds and change its state; how the first different answer came about, or ""."""
    rng = random.Random(seed)
    made = [KINDS[name]() for name in names]
    model = Model([read for read, _change in made])
    fast = compiled(model, way)
    default_dtype = torch.get_default_dtype()
    try:
        for step in range(changes + 1):
            changed = ""
            if step:
                which = rng.randrange(len(made))
                number = rng.choice(NUMBERS)
                made[which][1](number)
                changed = f"{names[which]}, by {number}"
            for repeat in range(2):
                want = answer(model)
                got = answer(fast)
                if not same(got, want):
                    return f"change {step} ({changed}), call {repeat}: eager {want}, compiled {got}"
        return ""
    finally:
        torch.set_default_dtype(default_dtype)
        for _read, change in made:
            restore = getattr(change, "restore", None)
            if restore is not None:
                restore()


def kinds_of(seed: int) -> tuple[str, ...]:
    """The kinds of a model; where Dynamo splits it, one alone: Dynamo guards the others."""
    names = random.Random(seed).sample(sorted(KINDS), READS)
    return tuple([name for name in names if name in RUN_IN_PARTS][:1] or names)


def minimise(seed: int, names: tuple[str, ...]) -> tuple[str, ...]:
    """The fewest of these kinds with which answers still differ."""
    for name in names:
        if any(failure(each, (name,)) for each in (seed, seed + 1, seed + 2)):
            return (name,)
    return names


def run(seed: int, changes: int, report: Callable[[str], None] = print) -> int:
    """Change state `changes` times; returns how many models differ."""
    failures, start = 0, time.monotonic()
    changed: Counter[str] = Counter()
    for number in range(seed, seed + -(-changes // CHANGES)):
        names = kinds_of(number)
        changed.update(names)
        found = failure(number, names)
        if found:
            failures += 1
            report(f"seed {number}, {', '.join(minimise(number, names))}: {found}")
        fuzz_command.forget(number)
    seconds = time.monotonic() - start
    report(
        f"{failures} models differ; {changes} changes, {len(changed)} kinds, seed {seed} ({seconds:.0f} s)"
    )
    return failures


if __name__ == "__main__":
    sys.exit(fuzz_command.main(__doc__, "changes", run))
