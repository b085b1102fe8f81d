"""What a call depends on besides its arguments: the state of the thread and of torch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._device import DeviceContext

from staticrt.frontend.guards.process_state import process_state

_current_transform = torch._C._functorch.peek_interpreter_stack
_num_function_modes = torch._C._len_torch_function_stack
_num_dispatch_modes = torch._C._len_torch_dispatch_stack


def surroundings() -> list[Any] | None:
    """Parts of the key of a call: what its Python code would see now. None: a mode or transform must see every operator.

    Modes (of functions or of dispatch) and transforms (`vmap`, `grad`) want every operator of a call; a replay runs none.
    A default device is a mode too, but one that only says where tensors are made.
    """
    if _num_dispatch_modes() or _current_transform() is not None:
        return None
    parts: list[Any] = [process_state()]
    if _num_function_modes():
        for index in range(_num_function_modes()):
            mode = torch._C._get_function_stack_at(index)
            if type(mode) is not DeviceContext:
                return None
            parts.append(mode.device)
    return parts
