"""torch's gradient scalers in compiled steps.

A scaler checks in Python whether a gradient is infinite, and skips the update if so. While a step is recorded, the update
is recorded with that condition, so that one graph serves both cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from staticrt.frontend.reasons import CannotTrace

_UPDATE, _STATES = "_maybe_opt_step", "_per_optimizer_states"


class HeldScaler:
    """A gradient scaler while a step is recorded, until `restore`.

    Args:
        scaler: one of torch's.
        is_recordable: whether the calling thread records updates of an optimiser.
        update: records an optimiser's update with given arguments; the update is skipped where a tensor is not 0.
    """

    def __init__(
        self,
        scaler: Any,
        is_recordable: Callable[[Any], bool],
        update: Callable[[torch.Tensor, Any, tuple[Any, ...], dict[str, Any]], Any],
    ) -> None:
        attributes = self._attributes = vars(scaler)
        self._states = attributes[_STATES]
        self._items = dict(self._states)
        eager = getattr(scaler, _UPDATE)

        def maybe_update(optimizer: Any, state: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            if not is_recordable(optimizer):
                return eager(optimizer, state, *args, **kwargs)
            found: Any = sum(state["found_inf_per_device"].values())
            return update(found, optimizer, args, kwargs)

        attributes[_UPDATE] = maybe_update

    def check(self) -> None:
        """The step leaves the scaler as it found it, except for its tensors.

        Raises:
            CannotTrace: it does not, for the scaler is not updated yet.
        """
        now = self._attributes.get(_STATES)
        if type(now) is not defaultdict or now or self._items:
            raise CannotTrace("a gradient scaler that the step does not update")

    def restore(self) -> None:
        """Put back everything."""
        del self._attributes[_UPDATE]
        self._states.clear()
        self._states.update(self._items)
        self._attributes[_STATES] = self._states


def is_scaler(value: Any) -> bool:
    """Whether a value is a gradient scaler that `HeldScaler` can hold."""
    return (
        isinstance(value, torch.amp.GradScaler)
        and value.is_enabled()
        and getattr(type(value), _UPDATE) is getattr(torch.amp.GradScaler, _UPDATE)
        and _UPDATE not in vars(value)
        and _STATES in vars(value)
    )
