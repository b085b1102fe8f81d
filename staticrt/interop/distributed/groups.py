"""Process groups of a graph's collectives, and the check that this process has them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from staticrt.errors import InputError

_NAMESPACES = ("_c10d_functional", "_c10d_functional_autograd")


def group_names(gm: fx.GraphModule) -> tuple[str, ...]:
    """Names of the process groups in a graph's collectives, bodies of control flow included, each once, in order.

    Args:
        gm: ATen-level graph.
    """
    found: dict[str, None] = {}
    for module in gm.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            target = node.target
            if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
                for argument, value in zip(target._schema.arguments, node.args, strict=False):
                    if argument.name == "group_name":
                        found[str(value)] = None
                if "group_name" in node.kwargs:
                    found[str(node.kwargs["group_name"])] = None
    return tuple(found)


def check_groups(names: Iterable[str]) -> None:
    """Refuse to run a graph that names process groups which this process does not have.

    Raises:
        InputError: a group is missing; the message names it.
    """
    names = tuple(names)
    if not names:
        return
    for name in names:
        if not _exists(name):
            raise InputError(
                f"the graph uses process group {name!r}, which this process does not have",
                fix="call torch.distributed.init_process_group() first, and make groups in the same order",
            )


def _exists(name: str) -> bool:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed import distributed_c10d as c10d

    try:
        c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]
    except (RuntimeError, KeyError, ValueError):
        return False
    return True
