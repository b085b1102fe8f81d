"""Running statistics: inputs that a training batch norm writes and that none of its results depends on."""

from __future__ import annotations

import torch
from torch import fx

_BATCH_NORM = (torch.nn.functional.batch_norm, torch.batch_norm)


def unread_inputs(gm: fx.GraphModule) -> frozenset[int]:
    """Positions of the inputs of a graph of torch calls that it writes and otherwise ignores.

    These are the running mean and variance of training batch norms, and counters. When a region runs again for second
    derivatives, their values do not matter.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    return frozenset(
        i
        for i, node in enumerate(placeholders)
        if node.users and all(_ignores(user, node) for user in node.users)
    )


def _ignores(user: fx.Node, value: fx.Node) -> bool:
    """Whether `user` only updates `value`."""
    if user.op == "call_method" and user.target == "add_":
        rest = (*user.args[1:], *user.kwargs.values())
        return not user.users and user.args[0] is value and value not in rest
    if user.op != "call_function" or user.target not in _BATCH_NORM:
        return False
    # batch_norm(input, running_mean, running_var, weight, bias, training, ...) in torch.nn.functional;
    # torch.batch_norm(input, weight, bias, running_mean, running_var, training, ...)
    names: tuple[str, ...] = ("input", "running_mean", "running_var", "weight", "bias", "training")
    if user.target is torch.batch_norm:
        names = ("input", "weight", "bias", "running_mean", "running_var", "training")
    given = dict(zip(names, user.args, strict=False)) | dict(user.kwargs)
    others = [arg for name, arg in given.items() if name not in ("running_mean", "running_var")]
    return given.get("training") is True and value not in others
