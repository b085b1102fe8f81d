"""Effects that a function has only on some of its paths.

Many libraries cache what their first call finds: after that, a function returns before it looks up `sys.modules` or writes
a global. The last instruction of a function that returned shows whether it reached that code.
"""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator

from staticrt.frontend.guards.code_objects import SUSPENDED, cached_by_code, steps_of

_WRITES = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "DELETE_GLOBAL"))
_ENDS = ("RETURN", "RAISE", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_SUBSCRIPTS = ("BINARY_SUBSCR", "BINARY_OP")


@cached_by_code
def global_writes(code: types.CodeType) -> frozenset[str]:
    """Names of the globals that code writes or deletes."""
    if _WRITES.isdisjoint(code.co_code[::2]):
        return frozenset()
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opcode in _WRITES)


@cached_by_code
def names_modules(code: types.CodeType) -> bool:
    """Whether code that reads an attribute `modules` looks up constant names there: `m.modules["a"]`, `"a" in m.modules`."""
    steps = steps_of(code)
    reads = [at for at, one in enumerate(steps) if one.argval == "modules"]

    def is_constant(at: int) -> bool:
        return 0 <= at < len(steps) and steps[at].opname == "LOAD_CONST"

    for at in reads:
        following = steps[at + 1] if at + 1 < len(steps) else steps[at]
        if following.opname == "CONTAINS_OP":
            if not is_constant(at - 2):
                return False
        elif following.argval == "get":
            if not is_constant(at + 2):
                return False
        elif not is_constant(at + 1) or steps[at + 2].opname not in _SUBSCRIPTS:
            return False
    return bool(reads)


@cached_by_code
def module_look_ups(code: types.CodeType) -> frozenset[int] | None:
    """Offsets of the instructions that may run after an attribute `modules` was read; None: any may."""
    if code.co_flags & SUSPENDED or getattr(code, "co_exceptiontable", None):
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
