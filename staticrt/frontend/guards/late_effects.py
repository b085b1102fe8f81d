"""Effects that a function has only on some of its paths.

Many libraries cache what their first call finds: after that, a function returns before it looks up `sys.modules` or writes
a global. The last instruction of a function that returned shows whether it reached that code.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import types
from collections.abc import Iterator

from staticrt.frontend.guards.code_objects import cached_by_code

_WRITES = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))
_ENDS = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


@cached_by_code
def global_writes(code: types.CodeType) -> frozenset[str]:
    """Names of the globals that code writes or deletes."""
    if _WRITES.isdisjoint(code.co_code[::2]):
        return frozenset()
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opcode in _WRITES)


@cached_by_code
def module_look_ups(code: types.CodeType) -> frozenset[int] | None:
    """Offsets of the instructions that may run after an attribute `modules` was read; None: any may."""
    if code.co_flags & _SUSPENDED or getattr(code, "co_exceptiontable", None):
        return None  # other ways than jumps lead from one instruction to another
    instructions = list(dis.get_instructions(code))
    known = {one.offset: one for one in instructions}
    following = {a.offset: b.offset for a, b in itertools.pairwise(instructions)}

    def after(one: dis.Instruction) -> Iterator[int]:
        if one.opcode in _JUMPS:
            yield one.argval
        if not one.opname.startswith(_ENDS) and one.offset in following:
            yield following[one.offset]

    found: set[int] = set()
    queue = [one.offset for one in instructions if one.argval == "modules"]
    if not queue:  # a text names it
        return None
    while queue:
        offset = queue.pop()
        if offset not in found:
            found.add(offset)
            queue.extend(after(known[offset]))
    return frozenset(found)
