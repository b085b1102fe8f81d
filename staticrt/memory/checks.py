"""Argument checks of `staticrt.memory`. An AllocatorError names the argument, its value and the accepted values."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from staticrt.errors import AllocatorError


def count(name: str, value: object, most: int = (1 << 64) - 1) -> int:
    """`value` if it is a whole number from 0 to `most`, by default what a 64-bit unsigned integer can hold."""
    if isinstance(value, bool):
        raise AllocatorError(f"{name} is {value!r}", fix="give a whole number")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise AllocatorError(f"{name} is {_shown(value)}", fix="give a whole number") from None
    if not 0 <= number <= most:
        exponent = most.bit_length()
        last = f"2**{exponent} - 1" if most + 1 == 1 << exponent and exponent > 20 else str(most)
        raise AllocatorError(f"{name} is {number}", fix=f"give a number from 0 to {last}")
    return number


def stream_number(value: object) -> int:
    """A stream: a `CUstream`, or a number that a simulated device gave."""
    return count("stream", value, (1 << 63) - 1)


def pairs_of_devices(name: str, values: object, count_of_devices: int) -> list[tuple[int, int]]:
    """`values` as a list, if each is two different numbers of devices."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise AllocatorError(f"{name} is {_shown(values)}", fix="give a list of pairs, [(0, 1)]")
    return [_pair_of_devices(value, count_of_devices) for value in values]


def _pair_of_devices(value: object, count_of_devices: int) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2 or value[0] == value[1]:
        raise AllocatorError(f"{_shown(value)} is not a pair of devices", fix="give two numbers, (0, 1)")
    most = count_of_devices - 1
    return count("a device's number", value[0], most), count("a device's number", value[1], most)


def flag(name: str, value: object) -> bool:
    """`value` if it is True or False."""
    if not isinstance(value, bool):
        raise AllocatorError(f"{name} is {_shown(value)}", fix="give True or False")
    return value


def text(name: str, value: object) -> str:
    """`value` if it is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise AllocatorError(f"{name} is {_shown(value)}", fix="give a string")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise AllocatorError(
            f"{name} is not valid text: {error}", fix="give a string without lone surrogates"
        ) from None
    return value


def one_of(name: str, value: object, known: tuple[object, ...]) -> None:
    """Raise unless `value` is one of the known ones."""
    if not (value is None or isinstance(value, str)) or value not in known:
        raise AllocatorError(f"{name} is {_shown(value)}", fix=f"give one of {', '.join(map(repr, known))}")


def several_of(name: str, values: object, known: tuple[object, ...]) -> list[str]:
    """`values` as a list, if each is one of the known names."""
    if not isinstance(values, (list, tuple, set, frozenset)):
        raise AllocatorError(f"{name} is {_shown(values)}", fix="give a list of names")
    found = []
    for value in values:
        one_of(name, value, known)
        found.append(str(value))
    return found


def _shown(value: object) -> str:
    """The value's repr in at most 100 characters, or its type if repr raises."""
    try:
        shown = repr(value)
    except Exception:  # a user's __repr__ may raise anything
        shown = f"a {type(value).__name__}"
    return shown if len(shown) <= 100 else shown[:97] + "..."
