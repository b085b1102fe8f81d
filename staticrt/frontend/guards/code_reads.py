"""What the instructions of code tell before it runs: the names that it looks up, and whether it goes on after an error."""

from __future__ import annotations

import dis
import itertools
import sys
import types

import torch

from staticrt.frontend.guards.code_objects import arguments_of, cached_by_code, name_of
from staticrt.frontend.guards.special_names import names_of

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_NAMES_GLOBALS = frozenset(
    opcode for name, opcode in dis.opmap.items() if name.endswith(("_GLOBAL", "_NAME"))
)
_OF_GLOBALS = frozenset(opcode for name, opcode in dis.opmap.items() if "GLOBAL" in name)
# With these, code may read attributes that it does not name: methods of objects, functions that list attributes or compute
# names in C. In the library's and torch's code also `getattr`, since only a model's calls of it are reported with the name.
_LIST_ATTRIBUTES = frozenset((
    "__dict__", "vars", "__getstate__", "__reduce__", "__reduce_ex__", "__getattribute__", "getattr_static",
    "extra_repr", "attrgetter", "methodcaller", "format", "format_map", "pickle", "dumps", "eval", "exec",
))  # fmt: skip
_LIST_ATTRIBUTES_OF_LIBRARY = _LIST_ATTRIBUTES | {"getattr"}
# Finds parameters and hooks, which are compared whole.
_MODULE_FILE = torch.nn.Module.forward.__code__.co_filename
_MATCH_CLASS = dis.opmap["MATCH_CLASS"]
_CONTAINS = dis.opmap["CONTAINS_OP"]
# Instructions that ask for the class of an error, classes that running operators raise none of, and names of context managers
# that let code go on.
_MATCH_ERROR = frozenset({"CHECK_EXC_MATCH", "CHECK_EG_MATCH", "JUMP_IF_NOT_EXC_MATCH"})
_MATCH_ERROR_CODES = frozenset(dis.opmap[name] for name in _MATCH_ERROR & dis.opmap.keys())
_BEGINS_HANDLER = bytes((dis.opmap.get("PUSH_EXC_INFO", 0), dis.opmap["POP_TOP"]))
_RAISES_AGAIN = bytes((dis.opmap["RAISE_VARARGS"], 0))
_OF_PYTHON = frozenset((
    "AttributeError", "ImportError", "KeyError", "ModuleNotFoundError", "NameError", "OSError", "StopIteration",
    "TypeError", "FileNotFoundError",
    "NotImplementedError",  # of an operator without a kernel: then there is no program
))  # fmt: skip
_SUPPRESS = frozenset({"suppress", "__exit__"})
_WRITES_FREE = frozenset(dis.opmap[name] for name in ("STORE_DEREF", "DELETE_DEREF"))


@cached_by_code
def lists_attributes(code: types.CodeType, is_model: bool) -> bool:
    """Whether code may read attributes of objects that it does not name."""
    if code.co_filename == _MODULE_FILE and code.co_name != "__repr__":
        return False
    listing = _LIST_ATTRIBUTES if is_model else _LIST_ATTRIBUTES_OF_LIBRARY
    names = names_of(code)
    if not listing.isdisjoint(names) or _MATCH_CLASS in code.co_code[::2]:
        return True
    return any(name in names and _hands_on(code, name) for name in ("getattr", "hasattr"))


def catches(code: types.CodeType) -> bool:
    """Whether code may go on after an error that something it calls raises."""
    if not _SUPPRESS.isdisjoint(names_of(code)):
        return True
    if sys.version_info >= (3, 11):
        opcodes = code.co_code[::2]
        if _MATCH_ERROR_CODES.isdisjoint(opcodes) and _BEGINS_HANDLER not in opcodes:
            return False
    steps = list(dis.get_instructions(code))
    begins = {step.argval for step in steps if step.opname == "SETUP_FINALLY"}  # Python 3.10
    last = ""
    wanted: set[str] = set()
    for step in steps:
        # Where a handler of all errors begins, nothing asks for their class.
        if step.opname == "POP_TOP" and (last == "PUSH_EXC_INFO" or step.offset in begins):
            return True
        if step.opname in _MATCH_ERROR and (not wanted or not wanted <= _OF_PYTHON):
            return True
        if step.opname == "LOAD_GLOBAL":
            wanted.add(step.argval)
        elif step.opname != "BUILD_TUPLE":
            wanted = set()
        last = step.opname
    return False


@cached_by_code
def asks_for_handled(code: types.CodeType) -> bool:
    """Whether code may read or raise an exception that its caller handles: by `e.__context__`, or `raise` outside of its
    own handlers."""
    if "__context__" in names_of(code):
        return True
    # Before Python 3.11 no instruction begins a handler.
    if _RAISES_AGAIN not in code.co_code or sys.version_info < (3, 11):
        return False
    depth = 0  # handlers around an instruction
    last = ""
    for step in dis.get_instructions(code):
        depth += step.opname == "PUSH_EXC_INFO"
        depth -= step.opname == "RERAISE" and last == "POP_EXCEPT"  # where a handler ends by an error
        if step.opname == "RAISE_VARARGS" and not step.arg and not depth:
            return True
        last = step.opname
    return False


def _hands_on(code: types.CodeType, name: str) -> bool:
    """Whether code uses a builtin without calling it: C code that gets it (`partial`) may call it."""
    loads = (each for each in arguments_of(code, _OF_GLOBALS) if name_of(code, *each) == name)
    # From Python 3.11 on, the lowest bit says that a call follows.
    return sys.version_info < (3, 11) or not all(argument & 1 for _opcode, argument in loads)


@cached_by_code
def global_names(code: types.CodeType) -> frozenset[str]:
    """Names that code looks up, or writes, as globals."""
    return frozenset(name_of(code, *each) for each in arguments_of(code, _NAMES_GLOBALS))


@cached_by_code
def asked_globals(code: types.CodeType) -> frozenset[str]:
    """Globals of which code only asks whether something is in them, or adds to them."""
    if _CONTAINS not in code.co_code[::2]:
        return frozenset()
    asked: set[str] = set()
    others: set[str] = set()
    for step, then in itertools.pairwise(dis.get_instructions(code)):
        if step.opcode in _NAMES_GLOBALS:
            adds = then.opname in ("LOAD_METHOD", "LOAD_ATTR") and then.argval == "add"
            is_asked = step.opname == "LOAD_GLOBAL" and (then.opname == "CONTAINS_OP" or adds)
            (asked if is_asked else others).add(step.argval)
    return frozenset(asked - others)


@cached_by_code
def imported_names(code: types.CodeType) -> frozenset[str]:
    """Full names of the modules that code imports."""
    steps = [
        step
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_CONST", "LOAD_SMALL_INT", "IMPORT_NAME")
    ]
    return frozenset(
        step.argval
        for level, _names, step in zip(steps, steps[1:], steps[2:], strict=False)
        if step.opcode == _IMPORT_NAME and level.argval == 0
    )


@cached_by_code
def written_free(code: types.CodeType) -> frozenset[str]:
    """Free variables that code writes."""
    if _WRITES_FREE.isdisjoint(code.co_code[::2]):
        return frozenset()
    free = set(code.co_freevars)
    return frozenset(
        i.argval for i in dis.get_instructions(code) if i.opcode in _WRITES_FREE and i.argval in free
    )
