"""Weights that change in place, as by `requires_grad_()` or `.data =`: Dynamo of torch 2.11 skips their guards while the dict that holds them is the same."""

from __future__ import annotations

import functools
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo's guards, once per process: those of graphs for us compare weights in each call."""
    from torch._dynamo import config
    from torch._dynamo.guards import CheckFunctionManager

    name = "skip_tensor_guards_with_matching_dict_tags"
    manager: Any = CheckFunctionManager
    build = manager.__init__
    if not hasattr(config, name):
        return

    @functools.wraps(build)
    def build_all(self: Any, code: Any, output_graph: Any, *args: Any, **kwargs: Any) -> None:
        skips = getattr(config, name) and not is_for_us(output_graph)
        with config.patch({name: skips}):  # type: ignore[attr-defined]
            build(self, code, output_graph, *args, **kwargs)

    manager.__init__ = build_all
