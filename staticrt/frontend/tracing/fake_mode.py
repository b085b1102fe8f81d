"""A fake tensor mode and the constructors behind a trace, without loading Dynamo.

torch's `FakeTensorMode` and `ShapeEnv` import Dynamo (and with it Inductor and torch.distributed, about a second) to
read a few settings of its, which a trace does not use. Where Dynamo is loaded already, they run as they are. Nor do sizes
without symbols need sympy, whose import takes as long.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch
import torch._functorch.config  # which the first mode would
from torch._library import simple_registry
from torch._library.fake_impl import FakeImplCtx, set_ctx_getter
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config
from torch.utils._python_dispatch import _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves

from staticrt.frontend.reasons import is_interrupt
from staticrt.shapes.fake_rules import fake_by_rule
from staticrt.shapes.size_env import SizeEnv

_VALIDATOR = "torch.fx.experimental.validator"
_SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"


class _SymbolicShapes:
    """Functions of `symbolic_shapes`, which imports sympy: it is loaded when one of them is called."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: getattr(importlib.import_module(_SYMBOLIC_SHAPES), name)(*args)


class _Sympy:
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("sympy"), name)


class _Overlay:
    """An object with some attributes replaced."""

    def __init__(self, base: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)
        self._base = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)


# What is read of Dynamo's settings: a cache of results, which a trace switches off, and kernels of a draft export.
_SETTINGS = {
    "fake_tensor_cache_enabled": False,
    "fake_tensor_cache_crosscheck_enabled": False,
    "_custom_ops_profile": None,
}
_TORCH = _Overlay(torch, _dynamo=types.SimpleNamespace(config=types.SimpleNamespace(**_SETTINGS)))
_LOADED_LATER = {_SYMBOLIC_SHAPES: _SymbolicShapes(), "sympy": _Sympy()}
_NO_VALIDATOR = types.SimpleNamespace(translation_validation_enabled=lambda: False)
# A mode keeps where it was made, for messages; reading the lines of those files takes a millisecond.
_NO_STACK = _Overlay(traceback, extract_stack=list)


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    """`__import__` that returns stand-ins for modules that would load Dynamo or sympy."""
    if name == _VALIDATOR:
        return _NO_VALIDATOR
    if name in _LOADED_LATER and name not in sys.modules:
        return _LOADED_LATER[name]
    if name == "torch._dynamo.config":
        return _TORCH
    found = builtins.__import__(name, *args, **kwargs)
    # `import torch.a.b` rebinds the function's `torch`, which must keep its stand-in.
    return _TORCH if found is torch else found


def without_dynamo(function: Any) -> Callable[..., Any]:
    """A function of torch that does not load Dynamo for its settings: the same code, with other imports.

    If Dynamo is loaded, its settings apply, and the function is returned as it is.
    """
    if "torch._dynamo" in sys.modules:
        return function  # type: ignore[no-any-return]
    if _config.translation_validation:  # type: ignore[attr-defined]
        importlib.import_module(_VALIDATOR)
        return function  # type: ignore[no-any-return]
    return _copy(function)


@functools.cache
def _copy(function: Any) -> Callable[..., Any]:
    scope = {**vars(builtins), "__import__": _import}
    return copied(function, torch=_TORCH, traceback=_NO_STACK, __builtins__=scope)


def copied(function: Any, **names: Any) -> types.FunctionType:
    """A function of the same code, in whose globals some names stand for something else."""
    scope = {**function.__globals__, **names}
    copy = types.FunctionType(
        function.__code__, scope, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        numbers = (*value.shape, *value.stride()) if value.layout == torch.strided else value.shape
        return any(isinstance(number, torch.SymInt) for number in numbers)
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


class TraceFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """The fake tensor mode of a trace.

    Dynamo never sees a recorded run, so the dispatch is not wrapped against it. Results are not cached, because with
    symbolic sizes that costs more than it saves and adds guards.

    Args:
        sizes: what answers for symbolic sizes: a ShapeEnv, or a SizeEnv, with which torch's own rules are asked
            about constant sizes only.
    """

    def __init__(self, sizes: Any) -> None:
        self.sizes = sizes
        shape_env = None if isinstance(sizes, SizeEnv) else sizes
        without_dynamo(FakeTensorMode.__init__)(self, shape_env=shape_env, allow_non_fake_inputs=True)
        self.cache_enabled = False
        self._around: list[Any] = []  # per `with`, the fake mode that it replaces
        self.sets_data = False  # model code has set a fake's `.data`
        self.raised = ""  # what raised last: an operator, or an index
        self.unseen_reads: list[
            tuple[str, str, bool]
        ] = []  # what model code asks of a fake that only tensors know, where, whether Dynamo must not split it

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    # torch's own also tell Dynamo in all threads that a mode is active, and prepare fake CUDA tensors.

    def __enter__(self) -> TraceFakeMode:
        around = torch._C._unset_dispatch_mode(self._mode_key)
        self._around.append(around)
        _push_mode(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _pop_mode(self._mode_key)
        around = self._around.pop()
        if around is not None:
            _push_mode(around)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(self.sizes, SizeEnv):
            return self.dispatch(func, types, args, kwargs or {})
        try:
            if any(_is_symbolic(value) for value in tree_leaves((args, kwargs))):
                return self._quick(func, args, kwargs or {})
            return self.dispatch(func, types, args, kwargs or {})
        except Exception as error:  # also where the model's call is wrong: torch's own sizes say it best
            if is_interrupt(error):
                raise
            self.sizes.give_up(f"{func}: {error}")

    def _quick(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of a rule for an operator, or for the operators of a composite one."""
        if func is torch.ops.prim.device.default:
            return args[0].device
        out = fake_by_rule(self, func, args, kwargs)
        if out is None and _is_composite(func):
            with self:  # what its parts return on symbolic sizes, as eager computes it
                out = func.decompose(*args, **kwargs)
        if out is None and func.namespace != "aten":
            out = self._registered(func, args, kwargs)
        if out is None or out is NotImplemented:
            self.sizes.give_up(func)
        return out

    def _registered(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of the rule of another library's operator; None: it has none, or sizes depend on data."""
        rule = simple_registry.singleton.find(func.name()).fake_impl.kernel
        if rule is None:
            return None
        context = FakeImplCtx(self, func)  # type: ignore[no-untyped-call]
        with set_ctx_getter(lambda: context), self:
            return rule(*args, **kwargs)

    def _dispatch_impl(self, *args: Any) -> Any:
        return without_dynamo(FakeTensorMode._dispatch_impl)(self, *args)
