"""Random programs on the simulated accelerator, compiled and eagerly, while calls of its driver fail.

    python -m tests.device.sim_fuzzer --seed 1 --programs 10000

Each program runs one way, drawn by its seed, at four sizes, 0 and 1 among them; one way takes the results to sim:1 and back, another one to
another process. Some calls meet driver calls that fail: such a
call gives eager's answer or raises an error of the driver's, and the next call is right. Nothing of a program that was traced
whole may stay allocated.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import gc
import random
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import staticrt
from staticrt.errors import InternalError
from tests.soundness import program_grammar as grammar
from tests.soundness.program_fuzzer import Seen, call, difference, seen, sizes_of
from tests.support import fuzz_command
from tests.support.sharing_child import Child

FACTORIES = (
    "zeros",
    "ones",
    "tensor",
    "tril_indices",
    "full",
    "empty",
    "arange",
    "randperm",
    "randint",
    "randn",
)
OF_HOST = {"array_twice", "array_overlaps"}  # numpy's memory
WAYS: dict[str, dict[str, Any]] = {
    "compile": {},
    "general": {"prepared": False},
    "poison": {"poison": True},
    "no_freeze": {"freeze": False},
    "graphs": {"graphs": True},
    "plan_graphs": {"plan_graphs": True},
    "plan_graphs_on_stream": {"plan_graphs": True},
    "stream": {},
    "managed": {"manage_outputs": True},
    "peer": {},
    "process": {},
}
# All calls of the driver.
FAULTS = [
    "launch",
    "physical_create",
    "segment_alloc",
    "va_reserve",
    "map",
    "set_access",
    "event_create",
    "event_record",
    "stream_wait",
    "capture_begin",
    "capture_end",
    "graph_instantiate",
    "graph_launch",
    "memory_info",
    "pending_error",
    "segment_free",
    "va_release",
    "physical_release",
    "unmap",
    "reached_by",
    "enable_peer",
    "event_destroy",
    "event_query",
    "event_sync",
    "stream_sync",
    "device_sync",
    "capture_state",
    "exchange_capture_mode",
    "capture_marker",
    "capture_settled",
    "exec_destroy",
    "graph_destroy",
    "stream_create",
    "capture_copy",
    "exec_set_copy",
    "revoke_access",
    "physical_export",
    "physical_import",
    "processes",
]
# Calls under faults, by how they ended.
FAULTED: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass(frozen=True)
class SimProgram(grammar.Program):
    """A program whose arguments lie on sim:0."""

    def arguments(self, n: int, m: int) -> list[Any]:
        scope = {**grammar.SCOPE, "grid": on_sim, "n": n, "m": m}
        made = [x for kind in self.kinds for x in eval(grammar.ARGUMENTS[kind], scope)]
        if self.gradients:
            for x in tree_leaves(made):
                if isinstance(x, torch.Tensor) and x.is_floating_point():
                    x.requires_grad_()
        return made

    def function(self) -> Any:
        scope: dict[str, Any] = {**grammar.SCOPE, "WEIGHT": on_sim(8, 3)}
        for name in FACTORIES:
            scope[name] = functools.partial(getattr(torch, name), device="sim:0")
        source = re.sub(rf"\btorch\.({'|'.join(FACTORIES)})\(", r"\1(", self.source)
        exec(compile(source, "<program>", "exec"), scope)
        return scope["f"]


def on_sim(*sizes: int) -> torch.Tensor:
    return grammar.grid(*sizes).to("sim:0")


def by_way_of_peer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with results that have been on sim:1."""

    def called(*args: Any) -> Any:
        return tuple(
            x.to("sim:1").neg().to("sim:0").neg()
            if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x
            for x in function(*args)
        )

    return called


@functools.cache
def other_process() -> Child:
    return Child()


def by_way_of_process(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with results that another process got, copied, and sent."""

    def there_and_back(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.requires_grad or x.numel() == 0 or x.is_conj():
            return x
        with contextlib.closing(staticrt.memory.share(x.clone())) as mine:
            sent = other_process().call("copied", mine)
        with contextlib.closing(sent):
            copy = torch.empty_like(x).copy_(staticrt.memory.open_shared(sent))
            synchronize()  # the memory goes with `sent`, not in the stream's order
        return copy

    return lambda *args: tuple(map(there_and_back, function(*args)))


def synchronize() -> None:
    for index in range(2):
        torch.accelerator.synchronize(index)


def waits(
    function: Callable[..., Any], draws: bool, stream: torch.Stream | None = None
) -> Callable[..., Any]:
    """The function, which returns when its work is done, so that late errors are this call's.

    Args:
        draws: the last result says where the device's generator stands.
    """

    def called(*args: Any) -> Any:
        current = torch.accelerator.current_stream()
        try:
            if stream is None:
                result = function(*args)
            else:
                stream.wait_stream(current)
                with stream:
                    result = function(*args)
                current.wait_stream(stream)
        except Exception:
            with contextlib.suppress(Exception):  # of work before the mistake
                synchronize()
            raise
        synchronize()
        return [*result, torch.rand(1, device="sim:0")] if draws else result

    return called


def wrong_error(error: BaseException) -> str:
    """Why an error is not one that a failing driver explains; empty: it is."""
    text = str(error)
    if not isinstance(error, RuntimeError) or isinstance(error, InternalError) or "INTERNAL ASSERT" in text:
        return f"{type(error).__name__}: {text[:500]}"
    return ""


class Run:
    """One program, compiled one way."""

    def __init__(self, seed: int, made: grammar.Program) -> None:
        self.choose = random.Random(seed)
        self.program = SimProgram(made.kinds, made.lines, made.results, made.gradients)
        self.way = self.choose.choice(list(WAYS))
        self.sizes = sizes_of(seed)
        # A program that catches RuntimeError may answer otherwise than without faults, as in eager.
        self.fault_rate = 0.0 if "or_else(" in self.program.source else 0.4
        self.sims = [
            staticrt.memory.device(f"sim:{index}") for index in range(2 if self.way == "peer" else 1)
        ]
        # Whether it is or may be: Dynamo keeps partial graphs in the module's globals, where they stay.
        self.is_split = False

    def failure(self) -> str:
        """What is wrong; empty: nothing."""
        function = self.program.function()
        if self.way == "peer":
            function = by_way_of_peer(function)
        compiled = run = staticrt.compile(function, **WAYS[self.way])
        if self.way == "process":
            function, run = by_way_of_process(function), by_way_of_process(compiled)
        stream = torch.Stream("sim:0") if self.way.endswith("stream") else None
        draws = not self.program.gradients  # AOTAutograd drops numbers that nobody reads
        eager, fast = waits(function, draws), waits(run, draws, stream)
        for size in self.sizes:
            expected = call(eager, self.program, size)
            for _ in range(self.choose.randint(1, 4)):
                found = (
                    self.with_faults(fast, expected, size, eager)
                    if self.choose.random() < self.fault_rate
                    else ""
                )
                if self.way == "managed":
                    gc.collect()  # tracebacks of the error hold results
                    compiled.deallocate_output_tensors()
                found = found or self.differs(fast, expected, size, eager)
                if self.way == "managed":
                    compiled.deallocate_output_tensors()
                if found:
                    return f"{self.way} at {size}: {found}"
        report = str(compiled.explain())
        self.is_split = self.program.gradients or "(partial, " in report or "not traced whole" in report
        return self.reported()

    def differs(self, fast: Any, expected: Seen, size: tuple[int, int], eager: Callable[..., Any]) -> str:
        got = call(fast, self.program, size)
        return difference(expected, got, lambda **how: call(eager, self.program, size, **how))

    def with_faults(self, fast: Any, expected: Seen, size: tuple[int, int], eager: Callable[..., Any]) -> str:
        """One call while the driver fails; its backward runs when the driver works again."""
        args = self.program.arguments(*size)
        synchronize()
        torch.accelerator.empty_cache()
        for _ in range(self.choose.randint(1, 3)):
            self.choose.choice(self.sims).fail(
                self.choose.choice(FAULTS),
                self.choose.randint(1, 4),
                self.choose.choice(("oom", "oom", "error")),
                times=self.choose.choice((1, 2, 30)),
            )
        try:
            with torch.set_grad_enabled(self.program.gradients):
                torch.manual_seed(0)
                results = fast(*args)
            if self.choose.random() < 0.3:
                torch.accelerator.empty_cache()
            FAULTED["answered"] += 1
        except Exception as error:
            FAULTED["raised"] += 1
            self.clear_faults()
            with contextlib.suppress(Exception):  # of work before the mistake
                synchronize()
            if wrong_error(error) and not expected.error:
                return f"under faults: {wrong_error(error)}"
            return ""
        finally:
            self.clear_faults()
        synchronize()
        got = seen(self.program, results, args)
        found = difference(expected, got, lambda **how: call(eager, self.program, size, **how))
        return f"under faults: {found}" if found else ""

    def clear_faults(self) -> None:
        for sim in self.sims:
            sim.clear_faults()

    def reported(self) -> str:
        synchronize()
        found: list[str] = []
        for sim in self.sims:
            sim.validate()
            found += sim.reports
            sim.clear_reports()
        return f"reported: {found[0]}" if found else ""


def held_bytes() -> int:
    if other_process.cache_info().currsize:
        other_process().call("drop_all")
    for _ in range(3):
        if not gc.collect():
            break
    synchronize()
    torch.accelerator.empty_cache()  # finds out which blocks the other process has closed
    return sum(
        int(torch.accelerator.memory_stats(index)["allocated_bytes.all.current"]) for index in range(2)
    )


def run(seed: int, programs: int, report: Callable[[str], None] = print) -> int:
    """Run programs from `seed` on; returns how many fail."""
    try:
        return _run(seed, programs, report)
    finally:
        gc.unfreeze()


def _run(seed: int, programs: int, report: Callable[[str], None]) -> int:
    failures, start = 0, time.monotonic()
    for number in range(seed, seed + programs):
        if number % 50 == 0:
            gc.unfreeze()
            gc.collect()
        gc.freeze()  # else collections, which visit each object of torch and sympy, take half of the time
        made = grammar.generate(number, gradients=number % 4 == 3)
        if OF_HOST & set(made.kinds) or not made.results:
            continue
        staticrt.memory.simulated.order("random", number)
        torch._dynamo.reset()
        before = held_bytes()
        one = Run(number, made)
        try:
            found = one.failure()
        except Exception as error:
            found = f"{one.way}: {type(error).__name__}: {error}"
        one.clear_faults()
        with contextlib.suppress(Exception):
            synchronize()
        for sim in one.sims:
            sim.clear_reports()
        source, is_split = one.program.source, one.is_split
        del one
        if not found and not is_split and held_bytes() > before:
            found = f"{held_bytes() - before} bytes stay allocated"
        if found:
            failures += 1
            report(f"# seed {number}: {found}\n{source}")
        fuzz_command.forget(number)
    report(
        f"{failures} of {programs} programs from seed {seed} fail ({dict(FAULTED)}; {time.monotonic() - start:.0f} s)"
    )
    return failures


if __name__ == "__main__":
    staticrt.memory.simulated.enable(devices=2)
    sys.exit(fuzz_command.main(__doc__, "programs", run))
