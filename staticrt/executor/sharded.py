"""Modules under FSDP2's `fully_shard`: the forwards of their parts run compiled, between the hooks that gather weights.

Those hooks are Python and collectives that no graph holds: they replace sharded parameters by whole ones, and restore them
after the call. The code between the hooks is traced like any module. All private names of `fully_shard` are here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from staticrt.executor.executor import Executor
from staticrt.executor.prepare import Readiness
from staticrt.executor.state import ExecutorState
from staticrt.options import Options
from staticrt.runtime.explain.explanation import EagerReport, Explanation
from staticrt.torch_private import hidden_from_dynamo, saved_tensors_are_packed

# Hooks that `nn.Module.__call__` runs before or after it calls the forward.
_HOOKS = (
    *("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called"),
    *("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
    *("_backward_hooks", "_backward_pre_hooks"),
)
_STATE = (
    "__composable_api_state_key"  # begins the names of the attributes in which `fully_shard` keeps its state
)
_PACKED = "a forward inside torch.utils.checkpoint or other hooks on saved tensors, outside of the module"


def is_sharded(function: Any) -> bool:
    """Whether a function is a module that `fully_shard` was applied to, or that holds such modules."""
    sharded = _class()
    if sharded is None or not isinstance(function, nn.Module):
        return False
    return any(isinstance(module, sharded) for module in function.modules())


class ShardedExecutor(Executor):
    """Runs a module eagerly, its parts compiled: the outermost ones that hold no other sharded module.

    Args:
        function: the module.
        options, name: as of `Executor`.
    """

    def __init__(self, function: nn.Module, options: Options, name: str) -> None:
        super().__init__(function, options, name)
        # Each call gathers a weight into new memory without a new version, so values derived from it are not kept.
        options = dataclasses.replace(options, values={**options.values, "freeze": False})
        self._parts = {
            path or name: _Part(module, Executor(module, options, path or name))
            for path, module in _parts("", function, set())
        }

    @hidden_from_dynamo
    def _serve(self, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for part in self._parts.values():
                stack.enter_context(part.compiled())
            return self.function(*args, **kwargs)

    def prepare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Readiness:
        """Nothing is prepared: the weights are gathered in a call only."""
        return Readiness(False, "fully_shard gathers the weights in a call only")

    def snapshot(self) -> ExecutorState:
        """As of `Executor`; the parts' states are those of partial graphs."""
        parts = tuple(part.executor.snapshot() for part in self._parts.values())
        return dataclasses.replace(super().snapshot(), partial_graphs=parts)

    def explain(self) -> Explanation:
        """What was compiled of each part, what runs eagerly, and why."""
        parts = [part.executor.explain() for part in self._parts.values()]
        eager = [
            EagerReport("call", _PACKED, path, part.eager_calls)
            for path, part in self._parts.items()
            if part.eager_calls
        ]
        notes = [f"{part.name}: {note}" for part in parts for note in part.notes]
        return Explanation(
            self.name,
            tuple(trace for part in parts for trace in part.traces),
            (*(item for part in parts for item in part.eager), *eager),
            (f"compiled between the hooks of fully_shard: {', '.join(self._parts)}", *notes),
        )


class _Part:
    """One module, compiled while a call of the whole runs.

    Args:
        executor: runs the module.

    Attributes:
        eager_calls: calls under hooks on saved tensors.
    """

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        self.executor = executor
        self.eager_calls = 0
        self._sharded = module
        # The same objects in each call: guards compare them.
        self._no_hooks: dict[str, Any] = {name: OrderedDict() for name in _HOOKS}

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """The module's forward runs compiled in this block."""
        own = self._sharded.__dict__
        before = own.get("forward")
        own["forward"] = self._forward
        try:
            yield
        finally:
            _put(own, "forward", before)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self._sharded.__dict__
        names = [*_HOOKS, "forward", *(name for name in own if name.startswith(_STATE))]
        hidden = {name: own.get(name) for name in names}
        for name in names:
            _put(own, name, self._no_hooks.get(name))
        try:
            if saved_tensors_are_packed():
                # The forward runs again, eagerly, and must save as many tensors.
                self.eager_calls += 1
                return self._sharded(*args, **kwargs)
            return self.executor.fast.call(*args, **kwargs)
        finally:
            for name, value in hidden.items():
                _put(own, name, value)


def _put(own: dict[Any, Any], name: str, value: Any) -> None:
    if value is None:
        own.pop(name, None)
    else:
        own[name] = value


def _parts(path: str, module: nn.Module, seen: set[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules with a forward that hold no sharded module besides themselves, with their paths."""
    if module in seen:
        return
    seen.add(module)
    held = any(isinstance(inner, _class()) for inner in module.modules() if inner is not module)
    own: Callable[..., Any] = type(module).forward
    if not held and own is not nn.Module.forward:
        yield path, module
        return
    for name, child in module.named_children():
        yield from _parts(f"{path}.{name}" if path else name, child, seen)


def _class() -> Any:
    module = sys.modules.get("torch.distributed.fsdp")
    return getattr(module, "FSDPModule", None)
