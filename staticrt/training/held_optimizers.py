"""Optimisers while a step is recorded: their state, what the step reads and changes of it, and their stand-ins."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace

_OWN = ("_staticrt_", "_opt_called")  # of ours, and of schedules
_PLAIN = (bool, int, float, str, type(None), torch.Tensor)


@dataclasses.dataclass(frozen=True)
class Read:
    """A hyperparameter that the step's own code read from an optimiser; its value is a constant of the graph."""

    optimizer: Any
    group: int
    name: str
    value: Any

    def holds(self) -> bool:
        """Whether it still has the same value."""
        groups = self.optimizer.param_groups
        now = groups[self.group].get(self.name) if self.group < len(groups) else None
        return now is self.value or (
            type(now) is type(self.value) and not isinstance(now, torch.Tensor) and bool(now == self.value)
        )


class HeldOptimizer:
    """The groups, hyperparameters, state and attributes of an optimiser before a step; until `restore`, what is read is noted."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._watches = True
        self._state = optimizer.state
        if not optimizer.reads_state:
            vars(optimizer)["state"] = _UnreadState()
        groups = self._groups = optimizer.param_groups
        self._own = list(groups)
        self._reads: dict[tuple[int, str], Any] = {}
        self._lists = [(each, list(each)) for each in (group["params"] for group in groups)]
        self._dicts = [(each, dict(each)) for each in (self._state, *self._state.values())]
        self._attributes = {name: vars(optimizer)[name] for name in self._names()}
        if any(self._attributes.get(name) is not None for name in ("grad_scale", "found_inf")):
            raise CannotTrace("an optimiser whose gradients are scaled")
        groups[:] = self._watched = [_Group(group, self, index) for index, group in enumerate(self._own)]

    def _names(self) -> list[str]:
        return [
            name for name in vars(self.optimizer) if not name.startswith(_OWN) and name not in StandIn.NAMES
        ]

    def note(self, group: int, name: str, value: Any) -> None:
        """Code reads a hyperparameter."""
        if self._watches and name != "params":
            if not all(
                isinstance(item, _PLAIN) for item in (value if isinstance(value, tuple) else (value,))
            ):
                raise CannotTrace(f"the step reads {name!r} of an optimiser, a {type(value).__name__}")
            self._reads.setdefault((group, name), value)

    @contextlib.contextmanager
    def unwatched(self) -> Iterator[None]:
        """Context manager: reads are not noted."""
        before, self._watches = self._watches, False
        try:
            yield
        finally:
            self._watches = before

    def reads(self) -> list[Read]:
        """What was noted."""
        return [Read(self.optimizer, group, name, value) for (group, name), value in self._reads.items()]

    def is_changed(self) -> bool:
        """Whether the optimiser holds other objects than before."""
        with self.unwatched():
            lists = [(self._groups, self._watched), *self._lists]
            dicts = [*zip(self._watched, self._own, strict=True), *self._dicts]
            return (
                any([*map(id, live)] != [*map(id, kept)] for live, kept in lists)
                or any(_ids(live) != _ids(kept) for live, kept in dicts)
                or any(
                    vars(self.optimizer).get(name) is not value for name, value in self._attributes.items()
                )
                or len(self._names()) != len(self._attributes)
            )

    def restore(self) -> None:
        """Put back everything."""
        changed = self.is_changed()
        self._groups[:] = self._own
        if changed:
            for items, known in self._lists:
                items[:] = known
            for entries, kept in self._dicts:
                entries.clear()
                entries.update(kept)
            for name in set(self._names()) - self._attributes.keys():
                del vars(self.optimizer)[name]
            vars(self.optimizer).update(self._attributes)
        vars(self.optimizer)["state"] = self._state


class _UnreadState:
    """Replaces the state of an optimiser whose updates run eagerly, so that no recording depends on it."""

    def __getattribute__(self, name: str) -> Any:
        raise CannotTrace("the step reads the state of an optimiser whose updates it does not record")

    def __getitem__(self, key: Any) -> Any:
        return self.items

    __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = __bool__ = __eq__ = __getitem__


class _Group(dict[str, Any]):
    """A copy of a parameter group that notes reads."""

    def __init__(self, group: dict[str, Any], held: HeldOptimizer, index: int) -> None:
        super().__init__(group)
        self._held = held
        self._index = index

    def _read(self, key: str) -> Any:
        value = super().get(key)
        self._held.note(self._index, key, value)
        return value

    def __getitem__(self, key: str) -> Any:
        self._read(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._read(key)
        return super().get(key, default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        self._read(key)
        return super().setdefault(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self._read(key)
        return super().pop(key, *default)

    def __contains__(self, key: object) -> bool:
        self._read(str(key))
        return super().__contains__(key)

    # Also of those that copy the dictionary.
    def __iter__(self) -> Iterator[str]:
        for key in super().__iter__():
            self._read(key)
            yield key

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]


def _ids(entries: dict[Any, Any]) -> list[tuple[int, int]]:
    return [(id(key), id(value)) for key, value in entries.items()]


class StandIn:
    """Lets a twin record the calls of an optimiser's methods, until `remove`.

    Args:
        optimizer: one of torch's.
        twin: what stands in for it.
        record: records an update, of the closure.
        is_recording: whether the calling thread records.
    """

    NAMES = ("step", "zero_grad")

    def __init__(
        self, optimizer: Any, twin: Any, record: Callable[[Any], Any], is_recording: Callable[[], bool]
    ) -> None:
        attributes = self._attributes = vars(optimizer)
        self._kept = {name: attributes[name] for name in self.NAMES if name in attributes}
        self._step = optimizer.step
        self._is_recording = is_recording
        if hasattr(self._step, "_wrapped_by_lr_sched"):
            self._wrapped_by_lr_sched = True  # a schedule warns where it finds another `step` than it wrapped

        # Only hooks of all optimisers run; an optimiser with its own hooks has no twin.
        @torch.optim.Optimizer.profile_hook_step
        def recorded(_optimizer: Any, closure: Any = None) -> Any:
            return record(closure)

        self._recorded = functools.partial(recorded, optimizer)
        attributes["step"] = self
        attributes["zero_grad"] = types.MethodType(type(twin).zero_grad, twin)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The optimiser's `step`."""
        if not self._is_recording():
            return self._step(*args, **kwargs)
        if hasattr(self._step, "_wrapped_by_lr_sched"):
            self._attributes["_opt_called"] = True  # a schedule warns that it steps before the optimiser
        return self._recorded(*args, **kwargs)

    def remove(self) -> None:
        """Let the optimiser run its own methods again."""
        for name in self.NAMES:
            self._attributes.pop(name, None)
        self._attributes.update(self._kept)
