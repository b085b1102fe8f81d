"""Methods of a module that call the module again and again, run on the compiled one.

`generate` of Hugging Face's models calls `self(...)` once for each token, `encode` of sentence-transformers calls
`self.forward(...)` once for each batch, `predict` of its cross-encoders `self(...)`. Bound to the module itself, they would run eagerly. They are bound to a *twin*: an
object of a subclass that shares the module's attributes and differs in its call and its `forward` only.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.guards.global_hooks import has_global_hooks

_NAMES = frozenset({"generate", "encode", "encode_query", "encode_document", "predict", "rank"})


def bound_to_compiled(method: Any, module: torch.nn.Module, call: Callable[..., Any]) -> Any:
    """`method`, an attribute of `module`; a method in `_NAMES` is bound to a twin, which calls `call`."""
    if not isinstance(method, types.MethodType) or method.__self__ is not module:
        return method
    return types.MethodType(method.__func__, _twin(module, call)) if method.__name__ in _NAMES else method


def _twin(module: torch.nn.Module, call: Callable[..., Any]) -> torch.nn.Module:
    own: Any = type(module)
    made: Any = object.__new__(_kind(own))
    object.__setattr__(made, "__dict__", module.__dict__)
    object.__setattr__(made, "_twin_of", module)
    object.__setattr__(made, "_twin_call", call)
    found: torch.nn.Module = made
    return found


@functools.cache
def _kind(base: type[torch.nn.Module]) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._twin_call(*args, **kwargs)

    @functools.wraps(base.forward)  # `generate` reads its signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self._twin_of
        if module._forward_hooks or module._forward_pre_hooks or has_global_hooks():  # a call would run them
            return module.forward(*args, **kwargs)
        return self._twin_call(*args, **kwargs)

    def body(namespace: dict[str, Any]) -> None:
        namespace |= {
            "__slots__": ("_twin_call", "_twin_of"),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
            "__call__": call,
            "forward": forward,
            # Copies are copies of the module itself: their calls run its own forward.
            "__copy__": lambda self: copy.copy(self._twin_of),
            "__deepcopy__": lambda self, memo: copy.deepcopy(self._twin_of, memo),
            "__reduce_ex__": lambda self, protocol: self._twin_of.__reduce_ex__(protocol),
        }

    return types.new_class(base.__name__, (base,), exec_body=body)
