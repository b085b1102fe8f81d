"""State that Python itself and its library keep: names, documentation, locks, threads, contexts."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import decimal
import functools
import hashlib
import os
import tempfile
import threading
import types

import numpy as np
import torch

from tests.soundness.state_kinds.registry import kind, setter


def _text(number):
    return "a" * int(number * 10 + 1)


@kind
def name_of_function():
    def scaled(x):
        return x

    return lambda x: x * len(scaled.__name__), lambda number: setattr(scaled, "__name__", _text(number))


@kind
def docstring_of_function():
    def scaled(x):
        """Documentation."""
        return x

    return lambda x: x * len(scaled.__doc__), lambda number: setattr(scaled, "__doc__", _text(number))


@kind
def annotation_of_function():
    def scaled(x):
        return x

    scaled.__annotations__ = {"x": 1.0}
    return (
        lambda x: x * scaled.__annotations__["x"],
        lambda number: scaled.__annotations__.update(x=number),
    )


@kind
def annotations_that_are_others():
    def scaled(x):
        return x

    scaled.__annotations__ = {"x": 1.0}
    return (
        lambda x: x * scaled.__annotations__["x"],
        lambda number: setattr(scaled, "__annotations__", {"x": number}),
    )


@kind
def name_of_class():
    class Config:
        pass

    config = Config()
    return lambda x: x * len(type(config).__name__), lambda number: setattr(Config, "__name__", _text(number))


@kind
def qualified_name_of_class():
    class Config:
        pass

    return lambda x: x * len(Config.__qualname__), lambda number: setattr(
        Config, "__qualname__", _text(number)
    )


@kind
def attributes_listed():
    class Config:
        scale = 1.0

    config = Config()
    return (
        lambda x: x * len([name for name in dir(config) if name.startswith("scale")]),
        lambda number: setattr(Config, f"scale{number}", number),
    )


@kind
def subclasses_listed():
    class Base:
        pass

    kept = []
    return (
        lambda x: x * (1 + len(Base.__subclasses__())),
        lambda number: kept.append(types.new_class("Derived", (Base,))),
    )


@kind
def current_directory():
    before = os.getcwd()
    folders = contextlib.ExitStack()

    def change(number):
        os.chdir(folders.enter_context(tempfile.TemporaryDirectory(suffix=_text(number))))

    def restore():
        os.chdir(before)
        folders.close()

    change.restore = restore
    return lambda x: x * len(os.getcwd()), change


@kind
def numpy_array_of_objects():
    table = {"a": 1.0}
    array = np.array([table, None], dtype=object)
    return lambda x: x * array[0]["a"], lambda number: table.update(a=number)


@kind
def precision_of_decimals():
    price = types.SimpleNamespace(value=decimal.Decimal("1.23456789"))
    before = decimal.getcontext().copy()

    def change(number):
        decimal.getcontext().prec = 1 + int(number * 10) % 8

    change.restore = lambda: decimal.setcontext(before)
    return lambda x: x * float(price.value * 3), change


@kind
def rounding_of_decimals():
    before = decimal.getcontext().copy()

    def change(number):
        decimal.getcontext().rounding = decimal.ROUND_UP if number > 1 else decimal.ROUND_DOWN

    change.restore = lambda: decimal.setcontext(before)
    return lambda x: x * float(decimal.Decimal("1.25").quantize(decimal.Decimal("0.1"))), change


@kind
def errors_of_numpy():
    before = np.geterr()

    def change(number):
        np.seterr(divide="raise" if number > 1 else "warn")

    change.restore = lambda: np.seterr(**before)
    return lambda x: x * len(np.geterr()["divide"]), change


@kind
def division_by_numpy():
    before, zero = np.geterr(), np.float64(0)

    def change(number):
        np.seterr(divide="raise" if number > 1 else "ignore")

    change.restore = lambda: np.seterr(**before)
    return lambda x: x * min(float(np.float64(2) / zero), 3.0), change


@kind
def size_of_cache():
    @functools.lru_cache
    def cached(number):
        return number

    cached(0.0)
    return lambda x: x * cached.cache_info().currsize, cached


@kind
def name_of_thread():
    thread = threading.current_thread()
    before = thread.name

    def change(number):
        thread.name = _text(number)

    change.restore = lambda: setattr(thread, "name", before)
    return lambda x: x * len(threading.current_thread().name), change


@kind
def lock_that_is_held():
    lock = threading.Lock()

    def change(number):
        if lock.locked():
            lock.release()
        else:
            lock.acquire()

    return lambda x: x * 2 if lock.locked() else x * 3, change


@kind
def seed_of_torch():
    before = torch.get_rng_state()

    def change(number):
        torch.manual_seed(int(number * 1000))

    change.restore = lambda: torch.set_rng_state(before)
    return lambda x: x * (torch.initial_seed() % 100) + torch.get_rng_state()[0], change


@kind
def arguments_of_exception():
    error = ValueError(1.0)
    return lambda x: x * error.args[0], lambda number: setattr(error, "args", (number,))


@kind
def number_of_ctypes():
    number = ctypes.c_float(1.0)
    return lambda x: x * number.value, setter(number, "value")


@kind
def view_of_dict():
    table = {"a": 1.0}
    values = table.values()
    return lambda x: x * sum(values), lambda number: table.update(a=number)


@kind
def environment_that_the_library_reads():
    before = os.environ.get("HOME", "")

    def change(number):
        os.environ["HOME"] = "/" + _text(number)

    change.restore = lambda: os.environ.update(HOME=before)
    return lambda x: x * len(os.path.expanduser("~")), change


@kind
def global_of_the_library():
    before = tempfile.gettempdir()
    change = lambda number: setattr(tempfile, "tempdir", f"/{_text(number)}")  # noqa: E731
    change.restore = lambda: setattr(tempfile, "tempdir", before)
    return lambda x: x * len(tempfile.gettempdir()), change


@kind
def digest():
    hashed = hashlib.sha256(b"a")
    return lambda x: x * hashed.digest()[0], lambda number: hashed.update(str(number).encode())


@kind
def copied_context():
    scale = contextvars.ContextVar("scale", default=1.0)
    return lambda x: x * contextvars.copy_context().get(scale, 1.0), scale.set
