"""The order of keys, which Dynamo's guards compare only where code iterates over a dict: not in `f(**d)`, `{**d}`, `d | e`, `dict.update`."""

from __future__ import annotations

import functools
from typing import Any

from staticrt.frontend.dynamo.ours import is_for_us


@functools.cache
def guard() -> None:
    """Patch Dynamo, once per process: in graphs for us, what depends on all keys of a dict depends on their order."""
    from torch._dynamo.symbolic_convert import InstructionTranslator
    from torch._dynamo.variables import ConstDictVariable  # type: ignore[attr-defined]

    keys_match = ConstDictVariable.install_dict_keys_match_guard

    @functools.wraps(keys_match)
    def keys_match_in_order(self: Any) -> None:
        keys_match(self)
        output = InstructionTranslator.current_tx().output
        if self.source and is_for_us(output) and _is_plain(output, self.source):
            output.guard_on_key_order.add(self.source)

    ConstDictVariable.install_dict_keys_match_guard = keys_match_in_order  # type: ignore[method-assign]


def _is_plain(output: Any, source: Any) -> bool:
    """Whether a source is a dict of no subclass, of which Dynamo compares more than keys and values."""
    try:
        value = eval(source.name, {"L": output.local_scope, "G": output.global_scope})  # as guards do
        return type(value) is dict
    except Exception:  # the source has no value yet
        return False
