"""Watch model code while it is traced: what it reads from outside, and what it does besides computing.

A recorded graph replays tensor operators and nothing else, so a model that prints, reads the clock, draws from
Python's `random` or seeds a generator must not be recorded. Torch's own code and the tracer are not watched.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

from staticrt.frontend.reads import Reads
from staticrt.frontend.reasons import is_user_file, user_frame
from staticrt.frontend.state import Snapshot
from staticrt.frontend.tracing import ReplacedNames

_IMPURE_BUILTINS = frozenset({"print", "input", "open", "breakpoint", "exec"})
_IMPURE_MODULES = frozenset(
    {"time", "_random", "posix", "nt", "_io", "io", "_socket", "_thread", "_queue", "_asyncio"}
)
_RANDOM_FILE = random.__file__
_IMPURE_TYPES = (
    "numpy.random.",
    "_random.Random",
    "random.Random",
    "_io.",
    "_contextvars.ContextVar",
    "datetime.",
    "torch._C.Generator",
    "torch.Generator",
)
_TENSOR_ESCAPES = frozenset(
    {"numpy", "tolist", "data_ptr", "__array__", "storage", "untyped_storage", "__dlpack__"}
)
_PURE_POSIX = frozenset({"fspath", "getpid", "stat", "getcwd"})
_GLOBAL_WRITES = tuple(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))


class ImpureCall(BaseException):
    """Stops a recorded run before the model does what no graph replays; no model code should catch it."""


class Watcher:
    """Profiles model code between `start` and `stop`.

    Args:
        snapshot: gets what model code reads by name, before it can change it.
        plain_int: `int` stays Python's own, which makes symbolic sizes constants.
    """

    def __init__(self, snapshot: Snapshot, plain_int: bool = False) -> None:
        self._plain_int = plain_int
        self._reads = Reads(snapshot, self._note)
        self._codes: dict[types.CodeType, bool] = {}
        self._previous: Any = None
        self._names = ReplacedNames()
        self.impure: list[tuple[str, str]] = []  # what, model line

    def start(self) -> None:
        self._previous = sys.getprofile()
        sys.setprofile(self._event)

    def stop(self) -> None:
        sys.setprofile(self._previous)
        self._names.undo()

    def pause(self) -> None:
        """Do not watch until `resume`."""
        sys.setprofile(None)

    def resume(self) -> None:
        """Watch again."""
        sys.setprofile(self._event)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not watch within; afterwards as before."""
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            yield
        finally:
            sys.setprofile(profile)

    def _event(self, frame: types.FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            known = self._codes.get(code)
            if known and code.co_argcount and code.co_filename != _RANDOM_FILE:
                self._reads.enter(frame)  # the same method, maybe of another class
            elif known is None:
                user = is_user_file(code.co_filename)
                self._codes[code] = user or code.co_filename == _RANDOM_FILE
                if user:
                    self._enter(frame)
                elif code in _impure_codes():
                    if frame.f_locals.get("enabled") is False:  # fork_rng that does nothing
                        del self._codes[code]
                        return
                    self._note(f"calls {code.co_name}()", user_frame(frame) or frame)
        elif event == "c_call" and self._codes.get(frame.f_code):
            what = impure_call(arg)
            if what is not None:
                caller: types.FrameType | None = frame
                while caller is not None and caller.f_code.co_filename == _RANDOM_FILE:
                    caller = caller.f_back
                if caller is not None and is_user_file(caller.f_code.co_filename):
                    self._note(what, caller)

    def _note(self, what: str, frame: types.FrameType) -> None:
        filename = frame.f_code.co_filename.rsplit("/", 1)[-1]
        self.impure.append((what, f"{filename}:{frame.f_lineno}"))
        raise ImpureCall  # from a profiler it stops the call before it happens

    def _enter(self, frame: types.FrameType) -> None:
        code = frame.f_code
        opcodes = code.co_code[::2]
        if any(op in opcodes for op in _GLOBAL_WRITES):
            written = [i.argval for i in dis.get_instructions(code) if i.opcode in _GLOBAL_WRITES]
            if written:
                self._note(f"writes the global {written[0]!r}", frame)
        scope = frame.f_globals
        if "int" in code.co_names and not self._plain_int:
            self._names.replace_int(scope)
        self._reads.enter(frame)


@functools.cache
def _impure_codes() -> frozenset[types.CodeType]:
    """Python functions of torch that change the process's state."""
    functions = (
        torch.manual_seed,
        torch.seed,
        torch.random.set_rng_state,
        torch.random.fork_rng,
        torch.set_default_dtype,
        torch.set_default_device,
        torch.use_deterministic_algorithms,
        torch.save,
        torch.load,
    )
    return frozenset(inspect.unwrap(function).__code__ for function in functions)


def impure_call(function: Any) -> str | None:
    """What a C function does besides computing, or None."""
    name = getattr(function, "__name__", "")
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType) or owner is None:
        module = getattr(function, "__module__", None) or getattr(owner, "__name__", "")
        if module == "builtins":
            return f"calls {name}()" if name in _IMPURE_BUILTINS else None
        if module in _IMPURE_MODULES and name not in _PURE_POSIX:
            return f"calls {module}.{name}()"
        return None
    if isinstance(owner, torch.Tensor):
        return f"calls Tensor.{name}()" if name in _TENSOR_ESCAPES else None
    kind = owner if isinstance(owner, type) else type(owner)
    full = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(owner, torch._C.Generator):
        return f"calls Generator.{name}()"
    if full.startswith(_IMPURE_TYPES) and not (
        full.startswith("datetime.") and name not in ("now", "today", "utcnow")
    ):
        return f"calls {full}.{name}()"
    return None
