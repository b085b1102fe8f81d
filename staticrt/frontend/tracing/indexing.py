"""Plain indexing of fake tensors while a model is recorded: `x[:, 3]`, `x[..., None]`.

torch's own indexing compares each symbolic size with the index, and sympy takes milliseconds for that. A model that
unrolls its steps does so hundreds of times. Plain indexing is turned into views here, with the same guards; torch handles
all other indexing, and all fake tensors that are not of a trace.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def getitem(self: torch.Tensor, index: Any) -> Any:
    """`self[index]`."""
    mode = self.fake_mode  # type: ignore[attr-defined]
    env = getattr(mode, "sizes", None)
    parts = index if type(index) is tuple else (index,)
    if env is not None and _is_plain(self, parts, env):
        return _view(self, parts, env)
    try:
        return torch.Tensor.__getitem__(self, index)
    except Exception:
        mode.raised = "an index"
        raise


def setitem(self: torch.Tensor, index: Any, value: Any) -> None:
    """`self[index] = value`."""
    try:
        torch.Tensor.__setitem__(self, index, value)
    except Exception:
        self.fake_mode.raised = "an index"  # type: ignore[attr-defined]
        raise


def _is_plain(x: torch.Tensor, parts: tuple[Any, ...], env: Any) -> bool:
    """Numbers, whole slices, `None` and one `...`, of which a number is at a symbolic size."""
    if not all(part is None or part is Ellipsis or type(part) in (int, slice) for part in parts):
        return False  # checked before anything is compared: tensors compare by running operators
    taken = len(parts) - sum(part is None or part is Ellipsis for part in parts)
    if taken > x.dim() or sum(part is Ellipsis for part in parts) > 1:
        return False
    symbolic = False
    dim = 0
    for part in parts:
        if part is None:
            continue
        if part is Ellipsis:
            dim += x.dim() - taken
            continue
        if type(part) is int:
            size = x.shape[dim]
            if isinstance(size, torch.SymInt):
                if not env.has_index(size, part):
                    return False
                symbolic = True
            elif not -size <= part < size:
                return False  # torch says so
        elif not (type(part) is slice and part.start is None and part.stop is None and part.step is None):
            return False
        dim += 1
    return symbolic


def _view(x: torch.Tensor, parts: tuple[Any, ...], env: Any) -> torch.Tensor:
    taken = len(parts) - sum(part is None or part is Ellipsis for part in parts)
    result = x
    dim = 0
    for part in parts:
        if part is Ellipsis:
            dim += x.dim() - taken
        elif part is None:
            result = aten.unsqueeze.default(result, dim)
            dim += 1
        elif type(part) is int:
            size = result.shape[dim]
            if isinstance(size, torch.SymInt):
                env.note_index(size, part)
            result = aten.select.int(result, dim, part)
        else:
            dim += 1
    return result
