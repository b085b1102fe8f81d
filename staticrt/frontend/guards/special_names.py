"""Names that code looks up: its own, and the special names by which Python runs operators, calls, iteration, formatting."""

import dis
import types
from collections.abc import Iterable

from staticrt.frontend.guards.code_objects import cached_by_code, with_inner

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "contains", "instancecheck", "subclasscheck")
_ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
    *("and", "xor", "or"),
)
_UNARY = (
    "neg", "pos", "abs", "invert", "int", "float", "complex", "index", "round", "trunc", "floor", "ceil",
)  # fmt: skip
_ITEMS = ("getitem", "setitem", "delitem", "missing", "len", "length_hint", "iter", "next", "reversed")
_ATTRIBUTES = ("getattr", "getattribute", "setattr", "delattr", "get", "set", "delete", "set_name", "dir")
_CALLS = (
    "call", "enter", "exit", "new", "init", "post_init", "init_subclass", "class_getitem", "mro_entries",
)  # fmt: skip
_TEXTS = ("str", "repr", "format", "bytes", "fspath", "array", "torch_function")
# What Python's library keeps in classes: of enumerations, data classes, and for patterns.
_LIBRARY = ("_member_map_", "_member_names_", "_value2member_map_", "__dataclass_fields__", "__match_args__")

_NAMES = (*_COMPARED, *_ARITHMETIC, *_UNARY, *_ITEMS, *_ATTRIBUTES, *_CALLS, *_TEXTS)

SPECIAL_NAMES = frozenset(
    (
        *(f"__{name}__" for name in _NAMES),
        *(f"__{kind}{name}__" for name in _ARITHMETIC for kind in "ri"),  # reflected and in place
        *_LIBRARY,
        "forward",  # which a module's call looks up
    )
)


@cached_by_code
def names_of(code: types.CodeType) -> frozenset[str]:
    """Names that a function may look up: its globals and attributes, strings it may give `getattr`, its own."""
    found = {*code.co_names, code.co_name}
    texts = [each for value in code.co_consts for each in (value if type(value) is tuple else (value,))]
    for value in texts:
        if type(value) is str and (parts := value.split(".")) and all(map(str.isidentifier, parts)):
            found.update((value, *parts))
    return frozenset(found)


def stored_only(functions: Iterable[types.FunctionType]) -> set[str]:
    """Names of attributes that some functions, and those that they make, set and never read, as `__init__` does."""
    stored: set[str] = set()
    read: set[str] = set()
    for code in (code for each in functions for code in with_inner(each.__code__)):
        steps = [(step.opname == "STORE_ATTR", step.argval) for step in dis.get_instructions(code)]
        only = {name for is_store, name in steps if is_store} - {
            name for is_store, name in steps if not is_store
        }
        stored |= only
        read |= names_of(code) - only
    return stored - read
