"""Interrupt calls at random bytecodes, and look for what an interrupt leaves behind.

    python -m tests.soundness.interrupt_fuzzer --seed 1 --interrupts 5000

One exception is raised before one bytecode of this package's, or of torch's or Python's library beneath it. While the
exception is still alive, as in a debugger, the state of thread and process must be as before; another thread and this
one must then get eager's answers from the same compiled module, and the caller's module must hold what it held.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
import traceback
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from staticrt.native import _C
from tests.soundness import interrupt_cases
from tests.soundness.interrupt_cases import MODELS, WAYS, Case, infer
from tests.support import fuzz_command

TIMEOUT_SECONDS = 20  # that another thread may stay at one place


class Injected(BaseException):
    """No exception that any code handles."""


KINDS = (KeyboardInterrupt, Injected, MemoryError)


Place = tuple[types.CodeType, int]  # a bytecode: its code, and where it is in that


_OWN_FILES = (__file__, interrupt_cases.__file__)


class Bytecodes:
    """Counts the bytecodes that a thread runs, those of the fuzzer and its models apart."""

    def __init__(self) -> None:
        self.counts: Counter[Place] = Counter()

    def __enter__(self) -> Bytecodes:
        # Python 3.12 sends bytecodes only where a frame asked for them before tracing began.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._on_call)
        return self

    def __exit__(self, *_error: object) -> None:
        sys.settrace(None)

    def _on_call(self, frame: types.FrameType, _event: str, _argument: Any) -> Any:
        if frame.f_code.co_filename in _OWN_FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_bytecode

    def _on_bytecode(self, frame: types.FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode":
            self.counts[frame.f_code, frame.f_lasti] += 1
        return self._on_bytecode


class Interrupt(Bytecodes):
    """Raises once, before one bytecode.

    Args:
        kind: what it raises.
        place: the bytecode.
        times: how often it runs before.
    """

    def __init__(self, kind: type[BaseException], place: Place, times: int) -> None:
        super().__init__()
        self.kind = kind
        self.code, self.offset = place
        self.times = times
        self.where = ""

    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        return super()._on_call(frame, event, argument) if frame.f_code is self.code else None

    def _on_bytecode(self, frame: types.FrameType, event: str, _argument: Any) -> Any:
        if event == "opcode" and frame.f_lasti == self.offset:
            self.times -= 1
            if self.times < 0:
                self.where = (
                    f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name} {self.offset}"
                )
                raise self.kind("interrupt")
        return self._on_bytecode


# -- what is compared --------------------------------------------------------------------------------------------

_NAMES = (
    torch,
    torch.nn.functional,
    torch.nn.Module,
    torch.Tensor,
    torch.compiler,
    torch.random,
    random,
    time,
)


def state() -> dict[str, Any]:
    """The state of this thread and of the process that a call must leave as it was."""
    from torch._C._dynamo import eval_frame

    from staticrt.frontend.tracing import compiling

    callback = eval_frame.set_eval_frame(None)
    eval_frame.set_eval_frame(callback)
    return {
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "fake mode": torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE),
        "profiler": sys.getprofile(),
        "trace function": sys.gettrace(),
        "profiler of new threads": threading._profile_hook,  # type: ignore[attr-defined]
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast blocks": _C.autocast_nesting(),
        "included keys": torch._C._dispatch_tls_local_include_set().raw_repr(),
        "excluded keys": torch._C._dispatch_tls_local_exclude_set().raw_repr(),
        "default dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "generator": torch.get_rng_state().tolist()[:64],
        "collector": (gc.isenabled(), len(gc.callbacks)),
        "is tracing": compiling.thread.traces,
        "compiling for others": list(compiling._others),
        "is compiling": (torch.compiler.is_compiling(), torch.compiler._is_compiling_flag),
        "Dynamo's callback": callback,
        "oblivious sizes": torch.fx.experimental._config.backed_size_oblivious,
        "names": [{name: id(value) for name, value in vars(owner).items()} for owner in _NAMES],
    }


def held(model: nn.Module) -> dict[str, Any]:
    """What a module holds, buffers' values apart."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, dict):
                found |= {f"{name}.{key}.{k}": id(v) for k, v in value.items()}
            elif not isinstance(value, int):
                found[f"{name}.{key}"] = id(value)
            elif type(value) not in (int, bool):
                found[f"{name}.{key}"] = type(value)
    for name, parameter in model.named_parameters():
        found[f"{name} itself"] = (type(parameter), parameter.grad is None)
    return found


def left(model: nn.Module, error: BaseException | None) -> str:
    """Whether fake tensors are reachable from a module."""
    todo: list[Any] = [model]
    seen: set[int] = set()
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(
            value, (type, types.ModuleType, types.FunctionType, types.CodeType)
        ):
            continue
        seen.add(id(value))
        if isinstance(value, (FakeTensor, torch.SymInt)):
            return "a fake value is reachable from the module"
        if isinstance(value, (nn.Module, dict, list, tuple, torch.Tensor)):
            todo += gc.get_referents(value)
    return ""


def _answers(case: Case, x: torch.Tensor, where: str) -> str:
    try:
        with torch.set_grad_enabled(case.call is not infer):
            with torch.no_grad():
                case.same_values()
            wanted = case.call(case.eager, x)
            got = case.call(case.compiled, x)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    except BaseException as error:
        return f"the answer {where}: {type(error).__name__}: {error}\n" + traceback.format_exc()
    return ""


def _answers_in_another_thread(case: Case, x: torch.Tensor) -> str:
    found: list[str] = []
    thread = threading.Thread(
        target=lambda: found.append(_answers(case, x, "in another thread")), daemon=True
    )
    thread.start()
    waited, place = 0, None
    while thread.is_alive() and waited < TIMEOUT_SECONDS:
        thread.join(1)
        # A thread that works, however slowly, is at another place a while later.
        now = [(id(frame), frame.f_lasti) for frame in _frames(thread)]
        waited, place = (waited + 1 if now == place else 0), now
    if found:
        return found[0]
    stack = "".join(traceback.format_stack(next(iter(_frames(thread)), None), limit=8))
    return f"another thread waits for a lock, at\n{stack}"


def _frames(thread: threading.Thread) -> Iterator[types.FrameType]:
    """The frames of a thread, the innermost first."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame
        frame = frame.f_back


def interrupted(case: Case, x: torch.Tensor, interrupt: Bytecodes) -> str:
    """Interrupt one call, and say what that left behind; empty: nothing."""
    torch.set_grad_enabled(case.call is not infer)
    before, held_before = state(), held(case.model)
    error: BaseException | None = None
    try:
        with interrupt:
            case.call(case.compiled, x)
    except BaseException as raised:
        error = raised
    after = state()
    changed = [f"{name}: {before[name]} -> {after[name]}" for name in before if after[name] != before[name]]
    if changed:
        return "; ".join(changed)[:2000]
    held_after = held(case.model)
    if held_after != held_before:
        return f"the module: {dict(held_after.items() ^ held_before.items())}"
    return (
        left(case.model, error) or _answers_in_another_thread(case, x[:3]) or _answers(case, x, "afterwards")
    )


def make(way: str, model: type[nn.Module], seed: int) -> tuple[Case, torch.Tensor]:
    torch.manual_seed(seed)
    x = torch.randn(5, 4)
    case = WAYS[way](model().eval(), x)
    return case, x


def bytecodes(way: str, model: type[nn.Module]) -> tuple[list[tuple[Place, int]], list[tuple[Place, int]]]:
    """The bytecodes that a call runs and how often: this package's, and those of torch and Python beneath it."""
    case, x = make(way, model, 0)
    counted = Bytecodes()
    problem = interrupted(case, x, counted)
    assert not problem, problem
    found: tuple[list[tuple[Place, int]], list[tuple[Place, int]]] = ([], [])
    for place, times in counted.counts.items():
        found["/staticrt/" not in place[0].co_filename].append((place, times))
    return found


def run(interrupts: int, seed: int, ways: tuple[str, ...] = tuple(WAYS), models: Any = MODELS) -> list[str]:
    """Interrupt calls; the failures."""
    rng = random.Random(seed)
    failures: list[str] = []
    counts: Counter[tuple[str, str]] = Counter()
    found: dict[Any, Any] = {}
    with fuzz_command.quiet():
        for way in ways:
            for model in models:
                case, x = make(way, model, 0)  # what is loaded at a first call is loaded here
                for size in (5, 3, 2):
                    torch.set_grad_enabled(case.call is not infer)
                    case.call(case.compiled, x[:size])
        for number in range(interrupts):
            way, model = rng.choice(ways), rng.choice(models)
            if (way, model) not in found:
                found[way, model] = bytecodes(way, model)
            # Where Dynamo works, an interrupt of torch's code may leave torch's own state broken.
            others = way in ("first", "second") and rng.random() < 0.3
            place, times = rng.choice(found[way, model][others])
            case, x = make(way, model, number)
            interrupt = Interrupt(rng.choice(KINDS), place, rng.randrange(times))
            problem = interrupted(case, x, interrupt)
            counts[way, model.__name__] += bool(interrupt.where)
            if problem:
                text = f"{number}: {way} {model.__name__} {interrupt.kind.__name__} at {interrupt.where}: {problem}"
                print(text, flush=True)
                failures.append(text)
                if len(failures) >= 100:
                    break
                _restore()
    print(
        f"seed {seed}: {sum(counts.values())} interrupts, {len(failures)} failures; {dict(counts)}",
        flush=True,
    )
    return failures


def _restore() -> None:
    """After a failure: so that the next ones are not of its making."""
    from torch._C._dynamo import eval_frame

    sys.setprofile(None)
    eval_frame.set_eval_frame(None)
    while torch._C._len_torch_dispatch_stack():
        torch.utils._python_dispatch._pop_mode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--interrupts", type=int, default=5000)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    sys.exit(bool(run(options.interrupts, options.seed, tuple(options.ways))))


if __name__ == "__main__":
    main()
