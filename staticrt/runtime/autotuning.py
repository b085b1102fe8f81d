"""Routes: which kernel was chosen, by measuring, for each shape of a matrix product or convolution.

A process measures a shape once. `save` and `load` carry the choices to other processes, which then take the same
kernels and measure nothing: the same results in each, and quicker first calls.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from staticrt.errors import OptionError
from staticrt.native import _C


@dataclass(frozen=True)
class Route:
    """One choice.

    Attributes:
        kind: what was chosen: "matmul", "winograd".
        key: what the choice depends on: sizes, strides, threads.
        choice: number of the kernel chosen; its meaning is the kind's own.
    """

    kind: str
    key: tuple[int, ...]
    choice: int


def machine() -> str:
    """Vector instructions and processor: what choices are measured on."""
    return _C.machine_name()


def measured() -> list[Route]:
    """All choices of this process, measured or pinned, ordered by kind and key."""
    return [Route(kind, tuple(key), choice) for kind, key, choice in _C.route_choices()]


def pin(routes: Iterable[Route]) -> None:
    """Take these kernels for these shapes from now on.

    Programs that were prepared before keep their kernels. A choice that does not fit its shape is measured anew.

    Args:
        routes: as `measured` gives them.
    """
    _C.pin_routes([(route.kind, list(route.key), route.choice) for route in routes])


def save(path: str | os.PathLike[str]) -> None:
    """Write `measured()` to a JSON file."""
    routes = [{"kind": r.kind, "key": list(r.key), "choice": r.choice} for r in measured()]
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"machine": machine(), "routes": routes}, file, indent=1)


def load(path: str | os.PathLike[str], *, any_machine: bool = False) -> int:
    """Pin what `save` wrote; returns how many routes.

    Args:
        path: the file.
        any_machine: also pin choices that were measured on another machine: right, but perhaps slow.

    Raises:
        OptionError: the file holds no routes, or those of another machine.
    """
    where = os.fspath(path)
    with open(path, encoding="utf-8") as file:
        try:
            data = json.load(file)
            routes = [_route(item) for item in data["routes"]]
            measured_on = str(data["machine"])
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(
                f"no routes: {type(error).__name__}: {error}", at=where, fix="write the file with save()"
            ) from None
    if measured_on != machine() and not any_machine:
        raise OptionError(
            f"the routes were measured on {measured_on}, this is {machine()}",
            at=where,
            fix="measure here, or load(path, any_machine=True)",
        )
    pin(routes)
    return len(routes)


def _route(item: dict[str, Any]) -> Route:
    numbers = [*item["key"], item["choice"]]
    if not isinstance(item["kind"], str) or any(
        type(n) is not int or not -(2**63) <= n < 2**63 for n in numbers
    ):
        raise TypeError(f"not a route: {item}")
    return Route(item["kind"], tuple(item["key"]), item["choice"])
