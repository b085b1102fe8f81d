"""The state of torch, of the process and of the thread, that decides what eager would compute.

Two tables define it. `process_flags` in `csrc/program/process_state.cpp` lists what torch keeps in C++, and
`PYTHON_FLAGS` below what torch keeps in Python variables; to guard one more flag, add one line to one of them. All
readers use these tables:

| reader | what it takes |
|---|---|
| key of a trace (`runtime/call_key.py`), key of a graph (`graphs/surroundings.py`) | `process_state()`: every flag |
| fast path (`csrc/bindings/bind_fast_call.cpp`) | every flag, the dispatch keys and the number of threads |
| work in other threads (`runtime/asynchronous.py`) | `ThreadState`: every flag that each thread has for itself |
| archives (`archive/writer.py`, `csrc/archive/saved_trace.cpp`) | `autocast_text`: autocasting, which is in the graph as casts |
| traced graphs run or evaluated in Python | `without_autocast` |

The number of threads is not a flag: it is part of the signature of a prepared program, and a model that asks for it while it is traced is
guarded by it (`frontend/guards/impure_calls.py`). Neither are modes that intercept every operator: nothing compiled
runs under them (`call_key.eager_reason`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from staticrt.native import _C

_opt_einsum: Any = torch.backends.opt_einsum

# name, dicts of which the first that holds the variable counts, variable
PYTHON_FLAGS: tuple[tuple[str, list[dict[str, Any]], str], ...] = (
    ("mha_fastpath", [vars(torch.backends.mha)], "_is_fastpath_enabled"),
    ("opt_einsum", [vars(_opt_einsum), vars(_opt_einsum.m)], "enabled"),
    ("opt_einsum_strategy", [vars(_opt_einsum), vars(_opt_einsum.m)], "strategy"),
)
for _flag in PYTHON_FLAGS:
    _C.add_python_flag(*_flag)

AUTOCAST_DEVICES: tuple[str, ...] = _C.AUTOCAST_DEVICES
# A backend outside of torch, of any name. Calls under its autocast run eagerly.
_OTHER_DEVICE = "privateuseone"

process_state = _C.process_state
autocast_text = _C.autocast_text


def named_state() -> dict[str, int]:
    """The number of each flag by its name, for reports and tests."""
    numbers = memoryview(process_state()).cast("H")
    return {name: number for (name, _of_thread), number in zip(_C.process_flags(), numbers, strict=False)}


def settings() -> dict[str, Any]:
    """What code may set for the process or the thread, and leave so: the flags, and what no kernel reads."""
    from staticrt.torch_private import other_settings

    return {**named_state(), "num_threads": torch.get_num_threads(), **other_settings()}


class AutocastState:
    """Autocasting of the thread that makes this object: devices, dtypes and the cache of casts."""

    def __init__(self) -> None:
        self._devices = [
            (d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d))
            for d in (*AUTOCAST_DEVICES, _OTHER_DEVICE)
        ]
        self._cache = torch.is_autocast_cache_enabled()

    def put(self) -> None:
        """Give the calling thread this state."""
        for device, enabled, dtype in self._devices:
            torch.set_autocast_enabled(device, enabled)
            torch.set_autocast_dtype(device, dtype)
        torch.set_autocast_cache_enabled(self._cache)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """A block in which the calling thread has this state."""
        before = AutocastState()
        torch.autocast_increment_nesting()
        self.put()
        try:
            yield
        finally:
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()
            before.put()


def _current_streams() -> list[torch.Stream]:
    """The current stream of each device of the accelerator, if there is one in use; that of the current device last."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or not getattr(torch.get_device_module(accelerator), "is_initialized", bool)():
        return []  # asking for its streams would initialize it
    indices = range(torch.accelerator.device_count())
    current = torch.accelerator.current_device_index()
    return [torch.accelerator.current_stream(index) for index in sorted(indices, key=lambda i: i == current)]


class ThreadState:
    """Every flag that each thread has for itself, of the thread that makes this object.

    The number of threads, the current device and the current stream of each device belong to it as well.
    """

    def __init__(self) -> None:
        self._streams = _current_streams()
        self._grad = torch.is_grad_enabled()
        self._inference = torch.is_inference_mode_enabled()
        self._autocast = AutocastState()
        self._flush_denormal = bool(named_state()["flush_denormal"])
        self._threads = torch.get_num_threads()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """A block in which the calling thread has this state. Threads and denormals stay so afterwards."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        if named_state()["flush_denormal"] != self._flush_denormal:
            torch.set_flush_denormal(self._flush_denormal)
        with (
            contextlib.ExitStack() as streams,
            torch.inference_mode(self._inference),
            torch.set_grad_enabled(self._grad),
            self._autocast.entered(),
        ):
            for stream in self._streams:
                streams.enter_context(stream)
            yield


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """A block without autocasting: traced graphs hold its casts already."""
    on = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    for device in on:
        torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        for device in on:
            torch.set_autocast_enabled(device, True)
