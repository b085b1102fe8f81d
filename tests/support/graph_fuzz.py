"""Random programs on a tree, against the same programs run eagerly.

A program is 3 to 6 functions with views, aliases, writes and several sizes; a run calls them in random order on values
it holds, drops values, marks steps, runs backwards, and injects faults. After each step every held value is compared
with its eager twin, which has the same aliases.

    python -m tests.support.graph_fuzz --steps 100000 --device copy --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import random
from typing import Any

import torch

from staticrt.graphs.context import GraphContext
from staticrt.graphs.generations import mark_step_begin, reset_marks
from tests.support.cpu_copy_backend import CpuCopyBackend
from tests.support.fake_graph_backend import FakeBackend, Fault


class Interrupt(BaseException):
    """Stands for Ctrl-C: not an Exception."""


class Value:
    """A tensor under test and its eager twin."""

    def __init__(self, real: torch.Tensor, twin: torch.Tensor) -> None:
        self.real = real
        self.twin = twin


def make_function(rng: random.Random, number_of_inputs: int) -> Any:
    """A random function on a list of equally sized square matrices; it empties the list."""
    steps = [
        (
            rng.choice(["add", "mul", "mm", "view", "row", "alias", "relu", "const"]),
            rng.random(),
            rng.random(),
        )
        for _ in range(rng.randint(1, 5))
    ]
    keep = [rng.random() < 0.5 for _ in steps]
    returns_input = rng.random() < 0.2
    constant = float(rng.randint(1, 3))

    def function(args: list[Any]) -> list[Any]:
        values = list(args)
        args.clear()
        inputs = list(values)
        outputs: list[Any] = []
        for (kind, a, b), kept in zip(steps, keep, strict=True):
            x = values[int(a * len(values))]
            y = values[int(b * len(values))]
            if kind == "add":
                made = x + y
            elif kind == "mul":
                made = x * 0.5 + constant
            elif kind == "mm":
                made = (x @ y) * 0.1
            elif kind == "view":
                made = x.t()
            elif kind == "row":
                made = (x + constant)[0].expand(x.shape[0], -1)
            elif kind == "alias":
                made = x.view(x.shape[0], -1) if x.is_contiguous() else x.t()
            elif kind == "relu":
                made = x.relu()
            else:
                made = torch.full_like(x, constant)
            values.append(made)
            if kept:
                outputs.append(made)
        values.clear()
        if returns_input:
            outputs.append(inputs[0])
        inputs.clear()
        if not outputs:
            outputs.append(made)
        outputs.append(7)
        return outputs

    function.inputs = number_of_inputs  # type: ignore[attr-defined]
    return function


def bump(args: list[Any]) -> list[Any]:
    """Writes its first input."""
    x, y = args
    args.clear()
    x.add_(y * 0.25)
    return [x + 1]


def count(args: list[Any]) -> list[Any]:
    """Writes a buffer at a fixed place."""
    buffer, x = args
    args.clear()
    buffer.add_(1)
    return [x + buffer.sum()]


class Square(torch.autograd.Function):
    """x² by captured parts; the run's functions are set per program."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, run: Any) -> torch.Tensor:
        with run.context.step():
            out, saved = run.square([x.detach()])
        ctx.pending = run.context.new_pending()
        ctx.run = run
        ctx.save_for_backward(saved)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        given = [*ctx.saved_tensors, gradient]
        ctx.maybe_clear_saved_tensors()
        ctx.pending = None
        del gradient
        return ctx.run.square_backward(given)[0], None


class Fuzz:
    """One random program and its run.

    Args:
        device: "copy" or "rebind" of the fake backend, "cpu": the registered one, "cpu_copy": its recordings under
            CUDA's rules, "sim": the simulated accelerator's, with tensors made on the default device.
        live_outputs: the policy; with "error" a held value may raise instead of being right.
    """

    def __init__(
        self, seed: int, device: str = "copy", live_outputs: str = "clone", faults: bool = True
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.live_outputs = live_outputs
        self.backend: Any = {"cpu": lambda: None, "cpu_copy": CpuCopyBackend, "sim": lambda: None}.get(
            device, lambda: FakeBackend(device)
        )()
        self.faults = faults and isinstance(self.backend, FakeBackend)
        self.context = GraphContext(
            "sim" if device == "sim" else "cpu",
            backend=self.backend,
            live_outputs=live_outputs,
            max_graphs=self.rng.choice([2, 4, 16]),
        )
        self.plain = [make_function(self.rng, self.rng.randint(1, 3)) for _ in range(self.rng.randint(2, 5))]
        self.wrapped = [self.context.wrap(f, boxed=True, name=f"f{i}") for i, f in enumerate(self.plain)]
        self.bump = self.context.wrap(bump, boxed=True, mutated_inputs=(0,), name="bump")
        self.count = self.context.wrap(
            count, boxed=True, mutated_inputs=(0,), static_inputs=(0,), name="count"
        )
        self.buffer, self.buffer_twin = torch.zeros(3), torch.zeros(3)
        self.square = self.context.wrap(
            lambda args: [args[0] * args[0], args.pop() * 2], boxed=True, mode="forward", name="square"
        )
        self.square_backward = self.context.wrap(
            lambda args: [args.pop() * args.pop()], boxed=True, mode="backward", name="square'"
        )
        self.values: list[Value] = []
        self.losses: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self.log: list[str] = []
        self.replays = 0

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        kinds = {
            "call": 50,
            "drop": 18,
            "bump": 4,
            "count": 4,
            "forward": 5,
            "backward": 5,
            "mark": 1,
            "new": 10,
            "drop_all": 2,
            "nest": 4,
            "loop": 8,
        }
        kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
        self.log.append(kind)
        getattr(self, kind if kind != "bump" else "write")() if kind != "count" else self.tick()
        self.check()

    def pick(self, number: int) -> list[Value] | None:
        sizes = sorted({v.real.shape[0] for v in self.values if self.usable(v)})
        if not sizes:
            return None
        size = self.rng.choice(sizes)
        fitting = [v for v in self.values if v.real.shape[0] == size and self.usable(v)]
        return [self.rng.choice(fitting) for _ in range(number)]

    def usable(self, value: Value) -> bool:
        if self.live_outputs == "clone":
            return True
        try:
            value.real.data_ptr()
        except RuntimeError as error:
            if "overwritten by a subsequent run" not in str(error):
                raise
            return False
        return True

    def new(self) -> None:
        self.values.append(fresh_value(self.rng, self.rng.choice([2, 3, 4])))

    def plan_fault(self) -> str:
        if not self.faults or self.rng.random() > 0.04:
            return ""
        where = self.rng.choice(["warmup", "capture", "capture_end", "replay"])
        error = self.rng.choice([Fault("planned"), Interrupt("planned"), torch.OutOfMemoryError("planned")])
        self.backend.faults[where] = [error]
        return where

    def run(self, real: Any, plain: Any, given: list[Value], extra: tuple[Any, Any] | None = None) -> None:
        inputs = [v.real for v in given]
        twins = [v.twin for v in given]
        if extra is not None:
            inputs.insert(0, extra[0])
            twins.insert(0, extra[1])
        planned = self.plan_fault() if extra is None and plain is not bump else ""
        try:
            outputs = real(inputs)
        except (Fault, Interrupt, torch.OutOfMemoryError):
            assert planned, "a fault nobody planned"
            self.log[-1] += f" fault in {planned}"
            return
        finally:
            if planned:
                self.backend.faults.clear()
            del inputs
        expected = plain(twins)
        assert len(outputs) == len(expected)
        for out, want in zip(outputs, expected, strict=True):
            if isinstance(want, torch.Tensor):
                assert (out.shape, out.dtype) == (want.shape, want.dtype)
                self.values.append(Value(out, want))
            else:
                assert out == want

    def call(self) -> None:
        index = self.rng.randrange(len(self.plain))
        given = self.pick(self.plain[index].inputs)
        if given is None:
            return self.new()
        self.log[-1] += f" f{index}"
        # Arguments may be the last to hold a value.
        gone = self.rng.random() < 0.3
        if gone:
            self.values = [v for v in self.values if v not in given]
        self.run(self.wrapped[index], self.plain[index], given)
        return None

    def nest(self) -> None:
        with self.context.step():
            for _ in range(self.rng.randint(1, 3)):
                self.call()

    def loop(self) -> None:
        """The same calls several times, as programs do: the last rounds replay."""
        size = self.rng.choice([2, 3])
        body = [self.rng.randrange(len(self.plain)) for _ in range(self.rng.randint(1, 3))]
        chained, keep = self.rng.random() < 0.6, self.rng.random() < 0.4
        for _ in range(self.rng.randint(3, 7)):
            mine: list[Value] = []
            with self.context.step() if self.rng.random() < 0.8 else contextlib.nullcontext():
                for index in body:
                    given = []
                    for _input in range(self.plain[index].inputs):
                        fitting = [
                            v
                            for v in mine
                            if self.usable(v) and v.real.shape == (size, size) and v.real.is_contiguous()
                        ]
                        if not (chained and fitting):
                            mine.append(fresh_value(self.rng, size))
                            fitting = mine[-1:]
                        given.append(fitting[-1])
                    before = len(self.values)
                    self.run(self.wrapped[index], self.plain[index], given)
                    mine += self.values[before:]
                    if not keep:
                        del self.values[before:]
                    del given
            self.check_values([*self.values, *mine])

    def write(self) -> None:
        given = self.pick(2)
        if given is None or overlapping(given[0].real):
            return
        self.run(self.bump, bump, given)

    def tick(self) -> None:
        given = self.pick(1)
        if given is not None:
            self.run(self.count, count, given, (self.buffer, self.buffer_twin))

    def forward(self) -> None:
        given = self.pick(1)
        if given is None or len(self.losses) > 3:
            return
        leaf = given[0].real.detach().clone().requires_grad_()
        twin = given[0].twin.detach().clone().requires_grad_()
        out = Square.apply(leaf, self)
        self.losses.append((leaf, twin, out, twin * twin))

    def backward(self) -> None:
        if not self.losses:
            return
        leaf, twin, out, want = self.losses.pop(self.rng.randrange(len(self.losses)))
        if self.live_outputs != "clone":
            return
        if self.rng.random() < 0.2:
            return  # never run
        assert torch.equal(out.detach(), want.detach())
        out.sum().backward()
        want.sum().backward()
        del out
        self.values.append(Value(leaf.grad, twin.grad))

    def drop(self) -> None:
        if self.values:
            self.values.pop(self.rng.randrange(len(self.values)))

    def drop_all(self) -> None:
        self.values.clear()
        self.losses.clear()
        if self.rng.random() < 0.2:
            self.context.trim()

    def mark(self) -> None:
        if self.rng.random() < 0.2:
            mark_step_begin()

    # -- checks --------------------------------------------------------------------------------------------------

    def check(self) -> None:
        if len(self.values) > 12:
            del self.values[: len(self.values) - 12]
        self.check_values(self.values)
        assert torch.equal(self.buffer, self.buffer_twin)
        manager = self.context.manager
        if manager is not None:
            manager.validate()

    def check_values(self, values: list[Value]) -> None:
        for value in values:
            if not self.usable(value):
                continue
            real = value.real.clone()
            assert torch.allclose(real, value.twin, rtol=1e-4, atol=1e-5, equal_nan=True), (
                f"a held value changed: {real} is not {value.twin}"
            )

    def finish(self) -> None:
        """Let everything go; nothing may be left."""
        self.replays = self.context.explain().replays
        manager = self.context.manager
        held = self.values
        twins = [v.twin.clone() for v in held]
        self.context.close()
        for value, twin in zip(held, twins, strict=True):
            if self.live_outputs == "clone":
                assert torch.allclose(value.real, twin, rtol=1e-4, atol=1e-5, equal_nan=True)
        self.values.clear()
        self.losses.clear()
        del held, manager
        gc.collect()
        for pool in getattr(self.backend, "pools", ()):
            stats = pool.stats()
            assert stats.live_blocks == 0, stats
            assert stats.segments == 0, stats


def fresh_value(rng: random.Random, size: int) -> Value:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    tensor = torch.randn(size, size, generator=generator, device="cpu").to(torch.get_default_device())
    return Value(tensor, tensor.clone())


def overlapping(tensor: torch.Tensor) -> bool:
    return 0 in tensor.stride()


def run(seed: int, steps: int, **options: Any) -> Fuzz:
    """A program of `steps` steps.

    Raises:
        AssertionError: with the seed and the last steps.
    """
    fuzz = Fuzz(seed, **options)
    try:
        for _ in range(steps):
            fuzz.step()
        fuzz.finish()
    except BaseException as error:
        raise AssertionError(
            f"seed {seed}, {options}, step {len(fuzz.log)}: {type(error).__name__}: {error}\n"
            + ", ".join(fuzz.log[-12:])
        ) from error
    finally:
        reset_marks()
    return fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--program", type=int, default=200, help="steps per program")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="copy", choices=["copy", "rebind", "cpu", "cpu_copy"])
    parser.add_argument("--live-outputs", default="clone", choices=["clone", "error"])
    args = parser.parse_args()
    print(f"seed {args.seed}")
    replays = failed = 0
    for number in range(max(1, args.steps // args.program)):
        try:
            replays += run(
                args.seed + number, args.program, device=args.device, live_outputs=args.live_outputs
            ).replays
        except AssertionError as error:
            failed += 1
            print(error, flush=True)
        if number % 50 == 49:
            print(f"{(number + 1) * args.program} steps, {replays} replays, {failed} failed", flush=True)
    print(f"{args.steps} steps, {replays} replays, {failed} programs that failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
