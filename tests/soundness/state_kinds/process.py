"""Globals, modules, the process that a forward reads."""

from __future__ import annotations

import builtins
import csv
import importlib.util
import logging
import operator
import os
import pathlib
import sys
import tempfile
import types

import torch

from tests.soundness.state_kinds.registry import kind, setter
from tests.support import state_settings as settings

GLOBAL = types.SimpleNamespace(number=1.0)
NUMBER = 1.0


@kind
def global_number():
    def change(number):
        globals()["NUMBER"] = number

    return lambda x: x * NUMBER, change


@kind
def attribute_of_global_object():
    return lambda x: x * GLOBAL.number, setter(GLOBAL, "number")


@kind
def attribute_of_module():
    return lambda x: x * settings.SCALE, setter(settings, "SCALE")


@kind
def attribute_of_module_held_by_object():
    config = types.SimpleNamespace(where=settings)
    return lambda x: x * config.where.SCALE, setter(settings, "SCALE")


@kind
def attribute_of_module_in_sys_modules():
    return lambda x: x * sys.modules["tests.support.state_settings"].SCALE, setter(settings, "SCALE")


@kind
def name_among_modules():
    def change(number):
        sys.modules.pop("staticrt_absent", None)
        if number >= 2:
            sys.modules["staticrt_absent"] = settings

    change.restore = lambda: sys.modules.pop("staticrt_absent", None)
    return lambda x: torch.relu(x) * (5.0 if "staticrt_absent" in sys.modules else 1.0), change


@kind
def name_among_modules_held_by_object():
    config = types.SimpleNamespace(known=sys.modules)
    change = name_among_modules()[1]
    return lambda x: x * (5.0 if config.known.get("staticrt_absent") else 1.0), change


@kind
def computed_name_among_modules():
    name = "staticrt" + "_absent"
    change = name_among_modules()[1]
    return lambda x: torch.relu(x) * (5.0 if name in sys.modules else 1.0), change


@kind
def module_imported_inside():
    def read(x):
        from tests.support import state_settings

        return x * state_settings.SCALE

    return read, setter(settings, "SCALE")


def _module_on_path(name):
    """What puts a module into a folder of `sys.path` for numbers from 2 on, and takes it away for others."""
    folder = tempfile.mkdtemp()

    def restore():
        sys.modules.pop(name, None)
        if folder in sys.path:
            sys.path.remove(folder)

    def change(number):
        restore()
        if number >= 2:
            pathlib.Path(folder, f"{name}.py").write_text(f"SCALE = {number}\n")
            sys.path.append(folder)
        importlib.invalidate_caches()

    change.restore = restore
    return change


@kind
def module_that_may_be_absent():
    def read(x):
        try:
            import staticrt_absent_one  # type: ignore[import-not-found]
        except ImportError:
            return x * 0.5
        return x * staticrt_absent_one.SCALE

    return read, _module_on_path("staticrt_absent_one")


@kind
def module_that_may_be_absent_by_computed_name():
    def read(x):
        try:
            return x * importlib.import_module("_".join(["staticrt", "absent", "two"])).SCALE
        except ImportError:
            return x * 0.5

    return read, _module_on_path("staticrt_absent_two")


@kind
def whether_a_module_is_there():
    name = "staticrt_absent_three"
    return lambda x: x * (5.0 if importlib.util.find_spec(name) else 1.0), _module_on_path(name)


@kind
def module_by_dunder_import():
    def read(x):
        try:
            return x * __import__("staticrt_absent_four").SCALE
        except ImportError:
            return x * 0.5

    return read, _module_on_path("staticrt_absent_four")


@kind
def module_that_is_blocked():
    def read(x):
        try:
            import colorsys
        except ImportError:
            return x * 0.5
        return x * len(colorsys.__name__)

    def change(number):
        sys.modules.pop("colorsys", None)
        if number >= 2:
            sys.modules["colorsys"] = None

    change.restore = lambda: change(0)
    return read, change


@kind
def new_attribute_of_module():
    module = types.ModuleType("made")

    def change(number):
        module.scale = number

    return lambda x: x * module.scale if hasattr(module, "scale") else x - 1, change


@kind
def class_in_module():
    return lambda x: x + settings.Config.bias, setter(settings.Config, "bias")


@kind
def environment_variable():
    os.environ.setdefault("STATICRT_TEST_SCALE", "1.0")

    def change(number):
        os.environ["STATICRT_TEST_SCALE"] = str(number)

    return lambda x: x * float(os.environ["STATICRT_TEST_SCALE"]), change


@kind
def environment_variable_by_getenv():
    def change(number):
        os.environ["STATICRT_TEST_OTHER"] = str(number)

    return lambda x: x * float(os.getenv("STATICRT_TEST_OTHER", "1.0")), change


@kind
def builtin_shadowed():
    scope = {}
    exec("def read(x): return x * max(1.0, 2.0)", scope)

    def change(number):
        scope["max"] = lambda *numbers: number

    return scope["read"], change


@kind
def default_dtype():
    def change(number):
        torch.set_default_dtype(torch.float64 if number > 1 else torch.float32)

    return lambda x: x + torch.ones(()).to(x.dtype) * torch.ones(()).element_size(), change


@kind
def module_of_a_name_replaced():
    def put(number):
        module = types.ModuleType("staticrt_made_module")
        module.number = number
        sys.modules[module.__name__] = module

    def read(x):
        import staticrt_made_module

        return x * staticrt_made_module.number

    put(1.0)
    return read, put


@kind
def attribute_hook_of_module():
    kept = [1.0]
    module = types.ModuleType("staticrt_module_with_a_hook")
    module.__getattr__ = lambda _name: kept[0]
    return lambda x: x * module.scale, lambda number: operator.setitem(kept, 0, number)


@kind
def level_of_logger():
    logger = logging.getLogger("staticrt.tests.state.inner")
    parent = logging.getLogger("staticrt.tests.state")
    return (
        lambda x: x * (2.0 if logger.isEnabledFor(logging.INFO) else 1.0),
        lambda number: parent.setLevel(logging.INFO if number > 1 else logging.ERROR),
    )


@kind
def recursion_limit():
    return lambda x: x * (sys.getrecursionlimit() % 7), lambda number: sys.setrecursionlimit(
        1000 + int(number)
    )


@kind
def name_that_builtins_get_later():
    def read(x):
        try:
            return x * staticrt_scale  # type: ignore[name-defined]
        except NameError:
            return x

    change = lambda number: setattr(builtins, "staticrt_scale", number)  # noqa: E731
    change.restore = lambda: vars(builtins).pop("staticrt_scale", None)
    return read, change


@kind
def limit_of_csv_fields():
    change = lambda number: csv.field_size_limit(int(number * 1000))  # noqa: E731
    change.restore = lambda: csv.field_size_limit(131072)
    return lambda x: x * csv.field_size_limit(), change


@kind
def text_of_a_special_name_in_a_module():
    before = settings.__file__
    change = lambda number: setattr(settings, "__file__", "a" * int(number * 10))  # noqa: E731
    change.restore = lambda: setattr(settings, "__file__", before)
    return lambda x: x * len(settings.__file__), change


@kind
def globals_of_functions_with_one_code():
    def scale():
        return NUMBER

    scopes = [{"NUMBER": 1.0, "__name__": name} for name in ("a", "b")]
    first, second = (types.FunctionType(scale.__code__, scope) for scope in scopes)
    return lambda x: x * first() * second(), lambda number: scopes[1].update(NUMBER=number)
