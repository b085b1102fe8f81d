"""Run random programs compiled and eagerly, and minimise those that differ to a script.

    python -m tests.soundness.program_fuzzer --seed 1 --programs 20000

Each program is called at four sizes, 0 and 1 among them. Compared are results (against float64 where floating point
differs), strides, aliases among results and arguments, arguments afterwards, gradients, the generator's state, errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

import staticrt
from tests.soundness.program_grammar import SCOPE, Program, generate
from tests.support import fuzz_command

SIZES = ((3, 4), (2, 2), (1, 5), (0, 3), (4, 1), (1, 1), (5, 0), (6, 7))


@dataclasses.dataclass
class Seen:
    """What a call shows."""

    error: type | None
    values: list[Any]  # results, then arguments afterwards, then gradients
    layouts: list[Any]
    aliases: list[list[int]]
    random: float


# Functions whose results eager rounds; the arguments are such that most others are exact.
INEXACT = re.compile(
    r"norm|softmax|sigmoid|var|std|mean|div|exp|log|sqrt|lerp|conv|linear|bmm|matmul|einsum|interpolate|grid_sample|attention|prod|elu"
)


class Rounded(TorchFunctionMode):
    """Changes what inexact functions return by about a rounding error."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inexact = INEXACT.search(getattr(func, "__name__", ""))
        return tree_map_only(torch.Tensor, self._changed, result) if inexact else result

    def _changed(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_floating_point():
            return x
        noise = torch.rand(x.shape, generator=self.random, dtype=x.dtype).to(x.device) - 0.5
        return x + noise * (4 * torch.finfo(x.dtype).eps) * (x.detach().abs() + 1)


def call(
    function: Callable[..., Any],
    program: Program,
    size: tuple[int, int],
    widen: bool = False,
    rounding: int | None = None,
    again: str = "",
) -> Seen:
    """One call on new arguments.

    Args:
        widen: floating arguments are of float64.
        rounding: the seed of `Rounded`.
        again: the function is called once more with the same arguments, which the caller has "written", or also
            "transposed"; seen are the results of both calls.
    """
    args = program.arguments(*size)
    if widen:
        args = tree_map_only(torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, args)
    torch.manual_seed(0)
    results: list[Any] = []
    error = None
    try:
        with (
            torch.set_grad_enabled(program.gradients),
            contextlib.nullcontext() if rounding is None else Rounded(rounding),
        ):
            results = list(function(*args))
            if again:
                if not program.gradients:
                    _change(args, again == "transposed")
                results += function(*args)
    except Exception as raised:
        error = type(raised)
    return seen(program, results, args, error)


def _change(args: list[Any], transposes: bool) -> None:
    """What a caller may do to arguments between two calls: write views of them, and transpose them in place."""
    for x in tree_leaves(args):
        if not isinstance(x, torch.Tensor):
            continue
        with contextlib.suppress(RuntimeError, IndexError):  # memory that overlaps, a scalar
            x[:1].add_(1)
        if transposes and x.dim() == 2 and x.shape[0] == x.shape[1]:
            x.t_()


class Module(torch.nn.Module):
    """A program as a module with buffers: one that it reads as WEIGHT, and one that it writes."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        scope = dict(SCOPE)
        exec(compile(program.source.replace("):", ", WEIGHT):", 1), "<program>", "exec"), scope)
        self.function = scope["f"]
        self.register_buffer("weight", SCOPE["WEIGHT"].clone())
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, *args: Any) -> list[Any]:
        self.last.zero_().add_(1)
        before = self.last * 2
        results = self.function(*args, self.weight)
        self.last.mul_(self.weight[0, 1])
        return [*results, before, self.last.clone()]


def seen(program: Program, results: list[Any], args: list[Any], error: type | None = None) -> Seen:
    """What a call shows that gave these results, or raised an error of this type; its backward runs here."""
    grads: list[Any] = []
    try:
        if program.gradients and error is None:
            grads = _gradients(results, args)
    except Exception as raised:
        error = type(raised)
    everything = tree_leaves([*results, *args])
    return Seen(
        error,
        [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in (*everything, *grads)],
        [_layout(x) for x in everything],
        _aliases(everything),
        torch.rand(1).item(),
    )


def _gradients(results: list[Any], args: list[Any]) -> list[Any]:
    loss = sum(x.double().sum() for x in results if isinstance(x, torch.Tensor) and x.requires_grad)
    if not isinstance(loss, torch.Tensor):
        return []
    wanted = [x for x in tree_leaves(args) if isinstance(x, torch.Tensor) and x.requires_grad]
    grads = list(torch.autograd.grad(loss, wanted, allow_unused=True))
    for device in {grad.device for grad in grads if grad is not None and not grad.is_cpu}:
        torch.accelerator.synchronize(device)  # its errors are the backward's
    return grads


def _layout(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return type(x)
    strides = [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1]
    return x.dtype, tuple(x.shape), strides if x.numel() else [], x.requires_grad


def _aliases(values: list[Any]) -> list[list[int]]:
    memory = [
        x.untyped_storage().data_ptr() if isinstance(x, torch.Tensor) and x.numel() else 0 for x in values
    ]
    return [[j for j in range(i) if memory[j] == place != 0] for i, place in enumerate(memory)]


def difference(expected: Seen, got: Seen, eager: Callable[..., Seen]) -> str:
    """How a call differs from eager's; empty: it does not.

    A comparison near a tie may be decided by rounding: an answer that eager gives if it rounds differently is right.

    Args:
        eager: the same call again; takes the keywords of `call`.
    """
    found = _difference(expected, got, eager)
    for seed in range(8 if found else 0):
        if not _difference(eager(rounding=seed), got, eager):
            return ""
    return found


def _difference(expected: Seen, got: Seen, eager: Callable[..., Seen]) -> str:
    if expected.error or got.error:
        same = expected.error and got.error and issubclass(got.error, (expected.error, RuntimeError))
        return "" if same else f"error: eager {expected.error}, compiled {got.error}"
    if expected.layouts != got.layouts:
        return f"layout: eager {expected.layouts}, compiled {got.layouts}"
    if expected.aliases != got.aliases:
        return f"aliases: eager {expected.aliases}, compiled {got.aliases}"
    if expected.random != got.random:
        return "the generator's state"
    reference: Seen | None = None
    for index, (a, b) in enumerate(zip(expected.values, got.values, strict=True)):
        if _same(a, b):
            continue
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.is_floating_point():
            reference = reference or eager(widen=True)
            if reference.error or reference.random != expected.random or _near(a, b, reference.values[index]):
                continue
        return f"value {index}: eager {a}, compiled {b}"
    return ""


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) or (math.isnan(a) and math.isnan(b))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return bool(a is b or a == b)
    return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True)


def _near(a: torch.Tensor, b: torch.Tensor, exact: Any) -> bool:
    """Whether `b` is about as far from the exact values as eager's `a` is."""
    if a.shape != b.shape or not isinstance(exact, torch.Tensor) or exact.shape != a.shape:
        return False
    own, other = (torch.nan_to_num((x.double() - exact).abs()) for x in (a, b))
    scale = torch.nan_to_num(exact.double().abs()) + 1
    return bool((other <= 16 * own + 1e-4 * scale).all()) and bool((a.isnan() == b.isnan()).all())


def compiled(program: Program, way: str) -> Callable[..., Any] | None:
    """The program's function, compiled one way; None: that way does not take it."""
    function = program.function()
    if way == "compile":
        return staticrt.compile(function)
    if way == "nested":
        inner = staticrt.compile(function)
        return staticrt.compile(lambda *args: [x * 1 if type(x) is int else x for x in inner(*args)])
    if way == "module":
        return staticrt.compile(Module(program))
    if way == "backend":
        torch._dynamo.reset()
        return torch.compile(function, backend="staticrt")
    file = io.BytesIO()
    try:
        with torch.no_grad():
            staticrt.save(
                staticrt.compile(function), file, tuple(program.arguments(3, 4)), exported_program=False
            )
        return staticrt.load(file.getvalue())
    except Exception:
        return None


def failure(
    program: Program, way: str, sizes: Iterator[tuple[int, int]] | tuple[tuple[int, int], ...]
) -> str:
    """The first difference over some sizes, each called three times; empty: none."""
    function = Module(program) if way == "module" else program.function()
    fast = compiled(program, way)
    if fast is None:
        return ""
    for size in sizes:
        # An archive lays its arguments out as those it was saved for.
        for again in ("", "written" if way == "archive" else "transposed"):
            expected = call(function, program, size, again=again)
            if way != "compile" and expected.error:
                continue  # Dynamo and archives have errors of their own
            got = call(fast, program, size, again=again)
            if got.error and (way == "archive" or got.error.__module__.startswith("torch._dynamo")):
                break  # an archive refuses what it was not saved for; Dynamo, what its own rules do not cover
            found = difference(
                expected,
                got,
                lambda size=size, again=again, **how: call(function, program, size, again=again, **how),
            )
            if found:
                return f"{way} at {size}{again and f', {again}'}: {found}"
    return ""


def sizes_of(seed: int) -> tuple[tuple[int, int], ...]:
    """Four sizes, 0 and 1 among them."""
    choose = random.Random(seed)
    large = [size for size in SIZES if min(size) > 1]
    small = [size for size in SIZES if min(size) <= 1]
    picked = [*choose.sample(large, 2), *choose.sample(small, 2)]
    choose.shuffle(picked)
    return tuple(picked)


def minimise(
    program: Program, way: str, sizes: tuple[tuple[int, int], ...]
) -> tuple[Program, tuple[Any, ...]]:
    """A smaller program that still differs, and the sizes that it takes."""

    def differs(candidate: Program, some: tuple[Any, ...]) -> bool:
        try:
            found = failure(candidate, way, some)
        except Exception:
            return False
        return bool(found) and "NameError" not in found and "UnboundLocal" not in found

    for size in sizes:
        if len(sizes) > 1 and differs(program, (size,)):
            sizes = (size,)
    changed = True
    while changed:
        changed = False
        for index in reversed(range(len(program.lines))):
            if index >= len(program.lines):
                continue
            lines = (*program.lines[:index], *program.lines[index + 1 :])
            smaller = dataclasses.replace(program, lines=lines).pruned()
            if differs(smaller, sizes):
                program, changed = smaller, True
        for name in program.results if len(program.results) > 1 else ():
            fewer = dataclasses.replace(program, results=tuple(r for r in program.results if r != name))
            if fewer.results and differs(fewer, sizes):
                program, changed = fewer, True
    return program, sizes


def script(program: Program, way: str, sizes: tuple[tuple[int, int], ...]) -> str:
    """A program as a script that prints eager's answer and ours."""
    return (
        "from tests.soundness.program_fuzzer import failure\n"
        "from tests.soundness.program_grammar import Program\n\n"
        + "".join(f"# {line}\n" for line in program.source.splitlines())
        + f"program = {program!r}\nprint(failure(program, {way!r}, {sizes!r}))\n"
    )


def run(seed: int, programs: int, report: Callable[[str], None] = print) -> int:
    """Run programs from `seed` on; returns how many differ. One in 20 is also run by each slower way."""
    failures, start = 0, time.monotonic()
    for number in range(seed, seed + programs):
        gradients = number % 20 == 7
        ways = ["compile"]
        ways += ["backend"] if number % 20 == 3 else []
        ways += ["archive"] if number % 20 == 5 else []
        ways += ["nested"] if number % 40 in (7, 11, 17, 31) else []
        ways += ["module"] if number % 40 in (1, 13, 27, 33) else []
        program, sizes = generate(number, gradients=gradients), sizes_of(number)
        if not program.results:
            continue
        for way in ways:
            found = failure(program, way, sizes)
            if found:
                failures += 1
                smaller, few = minimise(program, way, sizes)
                report(f"# seed {number}: {failure(smaller, way, few) or found}\n{script(smaller, way, few)}")
        fuzz_command.forget(number)
    report(f"{failures} of {programs} programs from seed {seed} differ ({time.monotonic() - start:.0f} s)")
    return failures


if __name__ == "__main__":
    sys.exit(fuzz_command.main(__doc__, "programs", run))
