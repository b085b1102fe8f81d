"""Warns once if input sizes never repeat: such calls run on the general path and prepare nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from staticrt import tuning
from staticrt.frontend.reasons import warn

if TYPE_CHECKING:
    from staticrt.native import _C


class SizeWatch:
    """Looks at the first calls that the fast path did not serve.

    Args:
        names: the names of the user's inputs, which come last; "" for those whose sizes do not matter.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._calls = 0
        self._sizes: dict[tuple[int, int], set[int]] = {}

    def see(self, native: _C.Executable, flat_inputs: Sequence[Any]) -> None:
        """Note one call; warn if most of the first ones missed."""
        if self._calls >= tuning.VARYING_CALLS:
            return
        self._calls += 1
        inputs = flat_inputs[len(flat_inputs) - len(self._names) :]
        for index, (name, value) in enumerate(zip(self._names, inputs, strict=True)):
            if name and isinstance(value, torch.Tensor):
                for dim, size in enumerate(value.shape):
                    self._sizes.setdefault((index, dim), set()).add(size)
        if self._calls < tuning.VARYING_CALLS:
            return
        counters = native.cache_counters
        if counters["misses"] >= tuning.VARYING_CALLS // 2 and counters["misses"] > 4 * counters["hits"]:
            varying = [
                f"{self._names[index]} dim {dim} ({min(sizes)} to {max(sizes)})"
                for (index, dim), sizes in sorted(self._sizes.items())
                if len(sizes) > tuning.VARYING_CALLS // 4
            ]
            what = (
                ", ".join(varying)
                or "more combinations of sizes, strides and numbers than max_prepared keeps"
            )
            warn(
                f"staticrt: {counters['misses']} of {counters['misses'] + counters['hits']} calls found nothing "
                f"prepared: {what}. Pad inputs to a few sizes (buckets), or raise max_prepared"
            )
