"""The process state under which a model is recorded."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

from staticrt.frontend import autocast
from staticrt.frontend.reasons import CannotCapture

lock = threading.RLock()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One capture at a time, and none while another thread is in Dynamo: some of this state belongs to the process.

    Both set torch's flag that something compiles and put it back as found: crosswise, it would stay set for ever.
    """
    dynamo = sys.modules.get("torch._dynamo.convert_frame")  # a capture does not wait for its import
    compile_lock = getattr(dynamo, "compile_lock", None) or contextlib.nullcontext()
    with compile_lock, lock:
        yield


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: a capture makes tens of thousands of objects, nearly all of which stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _IntMeta(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, builtins.int)

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, builtins.int)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is builtins.int

    def __hash__(cls) -> int:
        return hash(builtins.int)


class SymbolicInt(builtins.int, metaclass=_IntMeta):
    """Stands for `int` in model code that is recorded: `int(x.shape[0])` keeps a symbolic size symbolic."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and isinstance(args[0], torch.SymInt):
            return args[0]
        return builtins.int(*args, **kwargs)


class ReplacedNames:
    """Global names given another meaning while a model is recorded."""

    def __init__(self) -> None:
        self._added: list[tuple[dict[str, Any], str]] = []

    def replace_int(self, scope: dict[str, Any]) -> None:
        """Let `int` mean `SymbolicInt` in a module of model code."""
        if "int" not in scope:
            scope["int"] = SymbolicInt
            self._added.append((scope, "int"))

    def undo(self) -> None:
        for scope, name in self._added:
            scope.pop(name, None)
        self._added.clear()


@contextlib.contextmanager
def random_state() -> Iterator[None]:
    """Leave every random generator as it was: a recorded run draws nothing that counts."""
    python = random.getstate()
    torch_state = torch.get_rng_state()
    numpy_random = sys.modules.get("numpy.random")  # where it is not loaded, nobody has seeded it
    numpy_state = numpy_random.get_state() if numpy_random is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(torch_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)


def _refuse_nested_batch() -> bool:
    """Stands for `torch.backends.mha.get_fastpath_enabled`: layers take eager's path (`fast_paths.py`).

    `nn.TransformerEncoder` makes a nested tensor of a padded batch there, which has no graph form.

    Raises:
        CannotCapture: asked by an encoder that would do so.
    """
    encoder = torch.nn.TransformerEncoder.forward
    asker = sys._getframe(1)
    if asker.f_code is encoder.__code__:
        of = asker.f_locals
        module = of["self"]
        if (
            getattr(module, "use_nested_tensor", False)
            and not module.layers[0].training
            and of["src"].dim() == 3
            and of["src_key_padding_mask"] is not None
            and of["mask"] is None
            and not torch.is_autocast_enabled()
        ):
            raise CannotCapture(
                "nn.TransformerEncoder makes a nested tensor of a padded batch; enable_nested_tensor=False compiles",
                even_in_parts=True,
            )
    layers = (torch.nn.TransformerEncoderLayer, torch.nn.MultiheadAttention)
    if torch.is_autocast_enabled("cpu") and asker.f_code in [layer.forward.__code__ for layer in layers]:
        module = asker.f_locals["self"]
        if not module.training and not torch.is_grad_enabled():
            raise CannotCapture(
                f"nn.{type(module).__name__} takes a fused path under autocast, whose dtypes are its own; "
                "torch.backends.mha.set_fastpath_enabled(False) compiles",
                even_in_parts=True,
            )
    return asker.f_code is not encoder.__code__


@contextlib.contextmanager
def tracing(oblivious: bool) -> Iterator[None]:
    """Let models see that they are being compiled, and control flow reach the tracer whole.

    Args:
        oblivious: sizes 0 and 1 are like any other.
    """
    from torch.fx.experimental import _config

    from staticrt.frontend.hops import sequential_scan
    from staticrt.frontend.indexing import quick_indexing

    compiler: Any = torch.compiler
    # The package gives the function of that name, not the module.
    associative_scan: Any = importlib.import_module("torch._higher_order_ops.associative_scan")
    was_compiling = compiler._is_compiling_flag
    is_dynamo_compiling = compiler.is_dynamo_compiling
    generic_scan = associative_scan.generic_associative_scan
    fastpath = torch.backends.mha.get_fastpath_enabled()
    grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    compiler._is_compiling_flag = True
    compiler.is_dynamo_compiling = lambda: True  # cond and friends then call their operators at once
    associative_scan.generic_associative_scan = sequential_scan
    ask_fastpath = torch.backends.mha.get_fastpath_enabled
    if fastpath:
        torch.backends.mha.get_fastpath_enabled = _refuse_nested_batch
    # Autocast keeps casts of parameters until its block ends: a fake one would serve eager calls later.
    autocast_cache = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        with (
            quick_indexing(),
            autocast.noted(),
            _config.patch(backed_size_oblivious=oblivious),  # type: ignore[attr-defined]
            torch.inference_mode(False),
            torch.set_grad_enabled(grad),
        ):
            yield
    finally:
        compiler._is_compiling_flag = was_compiling
        compiler.is_dynamo_compiling = is_dynamo_compiling
        associative_scan.generic_associative_scan = generic_scan
        torch.backends.mha.get_fastpath_enabled = ask_fastpath
        torch.set_autocast_cache_enabled(autocast_cache)
