"""What the fast path needs to know of a program: how a call's arguments become inputs, and outputs its result."""

from __future__ import annotations

import dataclasses

import torch

from staticrt.frontend.arguments.structure import ResultSpec, Structure


@dataclasses.dataclass(frozen=True, eq=False)
class CallSpec:
    """The calling convention of one program, of a trace or from an archive.

    Args:
        in_spec: structure of the arguments `(args, kwargs)`.
        out_spec: how the flat outputs become the result.
        values: the model's own tensors, which are the first inputs.
        user_leaves: indices of the flat arguments that are the other inputs, in order.
        same: (index, first index) of each flat argument that is the same tensor as an earlier one.
    """

    in_spec: Structure
    out_spec: ResultSpec
    values: tuple[torch.Tensor, ...]
    user_leaves: tuple[int, ...]
    same: tuple[tuple[int, int], ...] = ()
