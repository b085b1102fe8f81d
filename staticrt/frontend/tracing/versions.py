"""Version counters of real tensors that a recorded run writes.

Torch counts an in-place operator above the recording mode, so on the model's own tensor, although only its fake is
written. A compiled call counts its writes itself: a trace leaves every counter as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

_REAL = (torch.Tensor, torch.nn.Parameter)  # fakes are of classes of their own


class Versions:
    """What a recorded run adds to version counters."""

    def __init__(self) -> None:
        self._counted: dict[int, tuple[torch.Tensor, int, int]] = {}  # tensor, its version before, writes

    def count(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """An in-place operator was recorded for these arguments, some of which may be real tensors."""
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if type(tensor) in _REAL and not tensor.is_inference():
                    _, before, writes = self._counted.get(id(tensor), (tensor, tensor._version, 0))
                    self._counted[id(tensor)] = (tensor, before, writes + 1)

    def put_back(self) -> None:
        """Subtract what the run added; what other threads have added meanwhile stays."""
        while self._counted:
            _key, (tensor, before, writes) = self._counted.popitem()
            version = max(before, tensor._version - writes)
            torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
