"""Names that Python itself looks up in classes: by operators, calls, iteration, formatting, and while objects are made."""

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "hash", "bool", "contains", "instancecheck", "subclasscheck")
_ARITHMETIC = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
    *("and", "xor", "or"),
)
_UNARY = (
    "neg",
    "pos",
    "abs",
    "invert",
    "int",
    "float",
    "complex",
    "index",
    "round",
    "trunc",
    "floor",
    "ceil",
)
_ITEMS = ("getitem", "setitem", "delitem", "missing", "len", "length_hint", "iter", "next", "reversed")
_ATTRIBUTES = ("getattr", "getattribute", "setattr", "delattr", "get", "set", "delete", "set_name", "dir")
_CALLS = (
    "call",
    "enter",
    "exit",
    "new",
    "init",
    "post_init",
    "init_subclass",
    "class_getitem",
    "mro_entries",
)
_TEXTS = ("str", "repr", "format", "bytes", "fspath", "array", "torch_function")
# What Python's library keeps in classes: of enumerations, data classes, and for patterns.
_LIBRARY = ("_member_map_", "_member_names_", "_value2member_map_", "__dataclass_fields__", "__match_args__")

SPECIAL_NAMES = frozenset(
    (
        *(
            f"__{name}__"
            for name in (
                *_COMPARED,
                *_ARITHMETIC,
                *(f"r{name}" for name in _ARITHMETIC),
                *(f"i{name}" for name in _ARITHMETIC),
                *_UNARY,
                *_ITEMS,
                *_ATTRIBUTES,
                *_CALLS,
                *_TEXTS,
            )
        ),
        *_LIBRARY,
        "forward",  # which a module's call looks up
    )
)
