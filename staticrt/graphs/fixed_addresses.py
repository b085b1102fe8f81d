"""What graphs of devices have in common: a replay reads and writes where the capture did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from staticrt.errors import InputError


class FixedAddressCapture:
    """A `GraphCapture` whose replays take no other tensors, on a device whose driver records every launch.

    Attributes:
        what: names such a graph in messages.
    """

    what: str

    def _replay_in_place(self) -> None:
        raise NotImplementedError

    def replay(
        self,
        rebinds: Sequence[torch.Tensor] | None = None,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> None:
        if rebinds is not None or outputs is not None:
            raise InputError(
                f"{self.what} reads and writes at the addresses of the capture (caps.rebind_inputs is False)",
                fix="copy inputs into the tensors of the capture",
            )
        self._replay_in_place()

    def bind_outputs(self, outputs: Sequence[torch.Tensor]) -> None:
        raise self._fixed_outputs()

    def replay_new(self, rebinds: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise self._fixed_outputs()

    def _fixed_outputs(self) -> InputError:
        return InputError(
            f"{self.what} writes its outputs to the addresses of the capture (caps.rebind_outputs is False)"
        )

    @property
    def may_vary(self) -> bool:
        """Always False: reading a size from the device makes the capture fail."""
        return False

    @property
    def unexplained(self) -> int:
        """Always 0: the driver records every launch."""
        return 0

    def agrees_with(self, other: Any) -> bool:
        return True

    @property
    def constant_bytes(self) -> int:
        """Always 0: constants lie in the pool."""
        return 0
