"""What code keeps between calls and finds again: caches, context variables, enumerations, names in other modules."""

from __future__ import annotations

import contextvars
import enum
import functools
import itertools
import sys
import types

from tests.soundness.state_kinds.registry import kind, setter

_numbers = itertools.count()


def _module(source: str) -> types.ModuleType:
    module = types.ModuleType(f"kept_module_{next(_numbers)}")
    sys.modules[module.__name__] = module
    exec(compile(source, __file__, "exec"), vars(module))
    return module


@kind
def cache_emptied_later():
    table = {"a": 1.0}
    scale = functools.lru_cache(lambda: table["a"])

    def change(number):
        if table["a"] == number:
            scale.cache_clear()
        table["a"] = number

    return lambda x: x * scale(), change


@kind
def bounded_cache_that_forgets():
    table = {"a": 1.0}
    scale = functools.lru_cache(maxsize=1)(lambda key: table[key])

    def change(number):
        table["a"] = number
        if number > 1.5:
            table["b"] = 0.0
            scale("b")

    return lambda x: x * scale("a"), change


@kind
def list_of_a_cache():
    scales = functools.cache(lambda: [1.0])
    return lambda x: x * scales()[0], lambda number: scales().__setitem__(0, number)


@kind
def object_of_a_cache():
    @functools.lru_cache
    def config(name):
        return types.SimpleNamespace(name=name, scale=1.0)

    return lambda x: x * config("a").scale, lambda number: setattr(config("a"), "scale", number)


@kind
def cache_of_a_method():
    class Config:
        hidden = 1.0

        @functools.lru_cache  # noqa: B019
        def scale(self):
            return self.hidden

    config = Config()

    def change(number):
        config.hidden = number
        if number > 1:
            Config.scale.cache_clear()

    return lambda x: x * config.scale(), change


@kind
def cache_replaced():
    table = {"scale": functools.cache(lambda: 1.0)}
    return lambda x: x * table["scale"](), lambda number: table.update(scale=functools.cache(lambda: number))


@kind
def cache_by_size():
    table = {2: 1.0}
    scale = functools.lru_cache(lambda size: table[size])

    def change(number):
        table[2] = number
        scale.cache_clear()

    return lambda x: x * scale(x.shape[0]), change


@kind
def memo_by_hand():
    table, memo = {"a": 1.0}, {}

    def scale(key):
        if key not in memo:
            memo[key] = table[key]
        return memo[key]

    def change(number):
        table["a"] = number
        if number > 1:
            memo.clear()

    return lambda x: x * scale("a"), change


@kind
def size_as_key():
    table = {2: 1.0, 4: 1.0}
    return lambda x: x * table[x.shape[0]], lambda number: table.update({2: number})


@kind
def sizes_as_key():
    table = {(2, 4): 1.0}
    return lambda x: x * table.get(tuple(x.shape), 2.0), lambda number: table.update({(2, 4): number})


@kind
def text_of_size_as_key():
    table = {"size 2": 1.0}
    return lambda x: x * table[f"size {x.shape[0]}"], lambda number: table.update({"size 2": number})


@kind
def size_in_set():
    sizes = {2}
    return (
        lambda x: x * (2 if len(x) in sizes else 3),
        lambda number: sizes.discard(2) if number > 1.5 else sizes.add(2),
    )


@kind
def attribute_of_member():
    class Color(enum.Enum):
        RED = 1.0
        BLUE = 2.0

    Color.RED.scale = 1.0
    return lambda x: x * Color["RED"].scale, setter(Color.RED, "scale")


@kind
def member_held_by_object():
    class Color(enum.IntEnum):
        RED = 1
        BLUE = 2

    config = types.SimpleNamespace(color=Color.RED)

    def change(number):
        config.color = Color.BLUE if number > 1.5 else Color.RED

    return lambda x: x * config.color if config.color is Color.RED else x + config.color.value, change


@kind
def flags_held_by_object():
    class Mode(enum.Flag):
        A = 1
        B = 2

    config = types.SimpleNamespace(mode=Mode.A)

    def change(number):
        config.mode = Mode.A | Mode.B if number > 1.5 else Mode.B

    return lambda x: x * 3 if Mode.A in config.mode else x - 1, change


@kind
def method_of_enumeration():
    class Color(enum.Enum):
        RED = 1.0

        def scale(self):
            return self.value

    def change(number):
        Color.scale = lambda self: self.value * number

    return lambda x: x * Color.RED.scale(), change


@kind
def context_variable():
    scale = contextvars.ContextVar("scale", default=1.0)
    return lambda x: x * scale.get(), scale.set


@kind
def list_in_context_variable():
    scale = contextvars.ContextVar("scale")
    scale.set([1.0])
    return lambda x: x * scale.get()[0], lambda number: scale.get().__setitem__(0, number)


@kind
def attribute_that_a_metaclass_computes():
    class Meta(type):
        def __getattr__(cls, name):
            return cls.table[name]

    class Config(metaclass=Meta):
        table = {"scale": 1.0}  # noqa: RUF012

    return lambda x: x * Config.scale, lambda number: Config.table.update(scale=number)


@kind
def item_of_class():
    class Meta(type):
        def __getitem__(cls, name):
            return getattr(cls, name) * 2

    class Config(metaclass=Meta):
        scale = 1.0

    return lambda x: x * Config["scale"], setter(Config, "scale")


@kind
def call_of_metaclass():
    class Meta(type):
        made = 1.0

        def __call__(cls):
            made = super().__call__()
            made.scale = cls.made
            return made

    class Config(metaclass=Meta):
        pass

    return lambda x: x * Config().scale, setter(Meta, "made")


@kind
def property_that_keeps():
    class Config:
        source = 1.0

        @property
        def scale(self):
            if not hasattr(self, "_scale"):
                self._scale = self.source
            return self._scale

    config = Config()

    def change(number):
        Config.source = number
        if number > 1:
            vars(config).pop("_scale", None)

    return lambda x: x * config.scale, change


@kind
def property_that_is_set():
    class Config:
        @property
        def scale(self):
            return self._scale / 2

        @scale.setter
        def scale(self, number):
            self._scale = number * 2

    config = Config()
    config.scale = 1.0
    return lambda x: x * config.scale, setter(config, "scale")


@kind
def property_over_a_list():
    class Config:
        kept = [1.0]  # noqa: RUF012
        scale = property(lambda self: self.kept[-1])

    config = Config()
    return lambda x: x * config.scale, lambda number: Config.kept.append(number)


@kind
def global_of_another_module():
    module = _module("scale = 1.0\ndef scaled(x):\n    return x * scale\n")
    return lambda x: module.scaled(x), setter(module, "scale")


@kind
def function_of_another_module_replaced():
    module = _module("def scale():\n    return 1.0\ndef scaled(x):\n    return x * scale()\n")
    return lambda x: module.scaled(x), lambda number: setattr(module, "scale", lambda: number)


@kind
def global_that_another_module_writes():
    module = _module("scale = 1.0\ndef change(number):\n    global scale\n    scale = number\n")
    return lambda x: x * module.scale, module.change


@kind
def module_replaced_in_another_module():
    module = _module("import types\nconfig = types.ModuleType('config')\nconfig.scale = 1.0\n")

    def change(number):
        module.config = types.ModuleType("config")
        module.config.scale = number

    return lambda x: x * module.config.scale, change


@kind
def global_deleted_in_another_module():
    module = _module("def scaled(x):\n    return x * scale if 'scale' in globals() else x\n")

    def change(number):
        if number > 1.5:
            vars(module).pop("scale", None)
        else:
            module.scale = number

    return lambda x: module.scaled(x), change


@kind
def global_that_is_absent():
    module = _module(
        "def scaled(x):\n    try:\n        return x * scale\n    except NameError:\n        return x - 1\n"
    )

    def change(number):
        if number > 1.5:
            vars(module).pop("scale", None)
        else:
            module.scale = number

    return lambda x: module.scaled(x), change
