"""Functions that a forward reads."""

from __future__ import annotations

import functools

from tests.soundness.state_kinds.registry import kind, setter


@kind
def variable_of_closure():
    number = 1.0

    def change(new):
        nonlocal number
        number = new

    return lambda x: x * number, change


@kind
def default_argument():
    def scaled(x, by=1.0):
        return x * by

    return lambda x: scaled(x), lambda number: setattr(scaled, "__defaults__", (number,))


@kind
def keyword_default():
    def scaled(x, *, by=1.0):
        return x * by

    return lambda x: scaled(x), lambda number: setattr(scaled, "__kwdefaults__", {"by": number})


@kind
def keyword_default_in_place():
    def scaled(x, *, by=1.0):
        return x * by

    return lambda x: scaled(x), lambda number: scaled.__kwdefaults__.update(by=number)


@kind
def code_replaced():
    def scaled(x):
        return x * 1.0

    def change(number):
        others = (lambda x: x * 3), (lambda x: x - 1)
        scaled.__code__ = others[number > 1].__code__

    return lambda x: scaled(x), change


@kind
def attribute_of_function():
    def scaled(x):
        return x * scaled.by

    scaled.by = 1.0
    return lambda x: scaled(x), setter(scaled, "by")


@kind
def first_attribute_of_function():
    def scaled(x):
        return x * getattr(scaled, "by", 1.0)

    return lambda x: scaled(x), setter(scaled, "by")


@kind
def keyword_of_partial():
    scaled = functools.partial(lambda x, by: x * by, by=1.0)
    return lambda x: scaled(x), lambda number: scaled.keywords.update(by=number)


@kind
def argument_of_partial():
    table = {"a": 1.0}
    scaled = functools.partial(lambda table, x: x * table["a"], table)
    return lambda x: scaled(x), lambda number: table.update(a=number)


@kind
def wrapped_function():
    table = {"a": 1.0}

    def decorate(function):
        @functools.wraps(function)
        def wrapper(x):
            return function(x) * table["a"]

        return wrapper

    @decorate
    def scaled(x):
        return x * 1.0

    return lambda x: scaled(x), lambda number: table.update(a=number)


@kind
def function_in_container():
    functions = {"f": lambda x: x * 1.0}

    def change(number):
        functions["f"] = lambda x: x * number

    return lambda x: functions["f"](x), change


@kind
def cached_function():
    table = {"a": 1.0}

    @functools.lru_cache
    def scale():
        return table["a"]

    def change(number):
        table["a"] = number
        scale.cache_clear()

    return lambda x: x * scale(), change


@kind
def cached_property():
    class Config:
        number = 1.0

        @functools.cached_property
        def scale(self):
            return self.number

    config = Config()
    _ = config.scale

    def change(number):
        Config.number = number
        vars(config).pop("scale", None)
        _ = config.scale

    return lambda x: x * config.scale, change


@kind
def single_dispatch():
    @functools.singledispatch
    def scale(value):
        return 1.0

    def change(number):
        scale.register(str, lambda value: number)

    return lambda x: x * scale("a"), change
