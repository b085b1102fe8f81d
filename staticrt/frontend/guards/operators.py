"""The dispatcher's kernels of a trace's operators: a library may register others, or be removed, at any time."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

import torch

from staticrt import torch_private
from staticrt.frontend.reasons import CannotTrace, is_torch_file
from staticrt.native import _C

# Files of torch that register kernels for their callers.
_FOR_OTHERS = (os.path.join("torch", "library.py"), os.path.join("torch", "_library", ""))


def kernels_of(operators: Iterable[str], devices: Iterable[torch.device]) -> _C.OperatorKernels:
    """The kernels that calls with plain tensors of some devices meet.

    Args:
        operators: full names, as of `_C.OperatorWatch`.
        devices: those of the tensors; the CPU's are always among them.

    Raises:
        CannotTrace: a library outside of torch serves an operator of torch's, for which our kernels would not do, or
            defines one in torch's namespace, where every operator is taken for torch's.
    """
    keys = []
    for kind in sorted({"cpu", *(device.type for device in devices)} - {"meta"}):
        backend = torch._C._dispatch_key_for_device(kind)
        keys += [backend, f"Autograd{backend}"]
        if torch.amp.is_autocast_available(kind):  # the model may turn it on
            keys.append(f"Autocast{backend}")
    kernels = _C.OperatorKernels([*operators], keys)
    for name, defined, registered in kernels.in_python():
        if (where := _library_place(registered)) is not None:
            is_own = ".py:" in defined and _library_place(defined) is not None
            raise CannotTrace(f"a library {'defines' if is_own else 'replaces the kernel of'} {name}", where)
    return kernels


def _library_place(registered: str) -> str | None:
    """The line of Python outside of torch that registered something with the dispatcher; None where torch's did."""
    where = re.search(r"registered at (.*?):(\d+)", registered)
    file, line = where.groups() if where else ("", "")
    if is_torch_file(file) and not any(part in file for part in _FOR_OTHERS):
        return None
    return f"{os.path.basename(file)}:{line}"


def definitions_of(operators: Iterable[str]) -> list[dict[str, Any]]:
    """Dicts of the functions that `torch.library.custom_op` calls for some operators.

    `register_autograd` and `register_fake` replace them there; the dispatcher's kernels stay the same.
    """
    return [each for name in operators if (each := torch_private.custom_operator(name)) is not None]
