"""Containers that a forward reads."""

from __future__ import annotations

import array
import collections
import ctypes
import types
import weakref

import numpy as np

from tests.soundness.state_kinds.registry import kind, setter


@kind
def dict_value():
    table = {"a": 1.0}
    return lambda x: x * table["a"], lambda number: table.update(a=number)


@kind
def dict_key_renamed():
    table = {"a": 2.0}

    def change(number):
        (key,) = table
        table["b" if key == "a" else "a"] = table.pop(key)

    return lambda x: x * 2 if "a" in table else x - 1, change


@kind
def dict_reordered():
    table = {"a": 2.0, "b": 3.0}

    def change(number):
        first = next(iter(table))
        table[first] = table.pop(first)

    return lambda x: x * 2 if next(iter(table)) == "a" else x - 1, change


@kind
def ordered_dict_moved():
    table = collections.OrderedDict(a=2.0, b=3.0)
    return lambda x: x * 2 if next(iter(table)) == "a" else x - 1, lambda number: table.move_to_end(
        next(iter(table))
    )


@kind
def default_dict():
    table = collections.defaultdict(lambda: 1.0, a=1.0)
    return lambda x: x * table["a"], lambda number: table.update(a=number)


@kind
def chain_map():
    table = collections.ChainMap({}, {"a": 1.0})
    return lambda x: x * table["a"], lambda number: table.maps[1].update(a=number)


@kind
def list_item():
    items = [1.0, 2.0]
    return lambda x: x * items[0], lambda number: items.__setitem__(0, number)


@kind
def list_length():
    items = [1.0]
    return lambda x: x * len(items), lambda number: items.append(number)


@kind
def nested_list():
    items = {"a": [(1.0, [1.0])]}
    return lambda x: x * items["a"][0][1][0], lambda number: items["a"][0][1].__setitem__(0, number)


@kind
def set_members():
    members = {"a"}
    return lambda x: x * 2 if "a" in members else x - 1, lambda number: members.symmetric_difference_update(
        {"a"}
    )


@kind
def deque_items():
    items = collections.deque([1.0])
    return lambda x: x * items[0], lambda number: items.appendleft(number)


@kind
def tuple_replaced():
    config = types.SimpleNamespace(sizes=(1.0, 2.0))
    return lambda x: x * config.sizes[0], lambda number: setattr(config, "sizes", (number, 2.0))


@kind
def type_of_number():
    config = types.SimpleNamespace(number=2)

    def change(number):
        config.number = 2.0 if type(config.number) is int else 2

    return lambda x: x * (config.number if isinstance(config.number, float) else 5), change


@kind
def numpy_array():
    numbers = np.ones(4)
    return lambda x: x * float(numbers[1]), lambda number: numbers.__setitem__(1, number)


@kind
def item_of_derived_numpy_array():
    numbers = np.ones(4).view(type("Numbers", (np.ndarray,), {}))
    return lambda x: x * float(numbers[1]), lambda number: numbers.__setitem__(1, number)


@kind
def shape_of_numpy_array():
    numbers = np.arange(6.0).reshape(2, 3)
    return lambda x: x * float(numbers[1].sum()), lambda number: setattr(
        numbers, "shape", numbers.shape[::-1]
    )


@kind
def fields_of_numpy_array():
    numbers = np.array([(1.0, 3.0)], [("a", "f8"), ("b", "f8")])

    def change(number):
        numbers.dtype = np.dtype([(name, "f8") for name in reversed(numbers.dtype.names)])

    return lambda x: x * float(numbers["a"][0]), change


@kind
def flag_of_numpy_array():
    numbers = np.ones(4)

    def change(number):
        numbers.flags.writeable = not numbers.flags.writeable

    return lambda x: x * (2 if numbers.flags.writeable else 3), change


@kind
def attribute_of_derived_bytearray():
    data = type("Data", (bytearray,), {})(b"\x01")
    data.scale = 1.0
    return lambda x: x * data.scale + data[0], setter(data, "scale")


@kind
def number_that_a_pointer_leads_to():
    pointer = ctypes.pointer(ctypes.c_double(1.0))
    return lambda x: x * pointer.contents.value, lambda number: pointer.__setitem__(0, number)


@kind
def array_items():
    numbers = array.array("d", [1.0])
    return lambda x: x * numbers[0], lambda number: numbers.__setitem__(0, number)


@kind
def read_only_view_of_dict():
    table = {"a": 1.0}
    view = types.MappingProxyType(table)
    return lambda x: x * view["a"], lambda number: table.update(a=number)


@kind
def weak_reference():
    class Config:
        scale = 1.0

    config = Config()
    ref = weakref.ref(config)
    kept = [config]
    return lambda x: x * ref().scale, setter(kept[0], "scale")


@kind
def memoryview_of_bytearray():
    data = bytearray(b"\x01")
    view = memoryview(data)
    return lambda x: x * view[0], lambda number: data.__setitem__(0, int(number) + 1)
