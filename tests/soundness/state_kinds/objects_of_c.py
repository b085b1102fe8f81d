"""Objects whose content only C code knows: no dict, slots or items hold it."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import logging
import sqlite3
import types
import xml.etree.ElementTree

from tests.soundness.state_kinds.registry import kind

OPAQUE = (
    *("attribute_of_element", "cell", "changes_of_database", "context", "handlers_of_logger"),
    *("context_of_decimals_that_an_object_holds", "result_of_future"),
)


@kind
def attribute_of_element():
    element = xml.etree.ElementTree.Element("layer", scale="1.0")
    return lambda x: x * float(element.attrib["scale"]), lambda number: element.set("scale", str(number))


@kind
def cell():
    held = types.SimpleNamespace(cell=types.CellType(1.0))
    return lambda x: x * held.cell.cell_contents, lambda number: setattr(held.cell, "cell_contents", number)


@kind
def context():
    scale = contextvars.ContextVar("scale", default=1.0)
    copied = contextvars.copy_context()
    return lambda x: x * copied.get(scale, 1.0), lambda number: copied.run(scale.set, number)


@kind
def context_of_decimals_that_an_object_holds():
    held = types.SimpleNamespace(context=decimal.Context(prec=9), number=decimal.Decimal(2) / 3)
    return lambda x: x * float(held.context.plus(held.number)), lambda number: setattr(
        held.context, "prec", int(number)
    )


@kind
def changes_of_database():
    database = sqlite3.connect(":memory:")
    database.execute("create table layers (scale)")
    change = lambda number: database.execute("insert into layers values (?)", (number,))  # noqa: E731
    change.restore = database.close
    return lambda x: x * (1 + database.total_changes), change


@kind
def result_of_future():
    loop = asyncio.new_event_loop()
    future = loop.create_future()
    loop.close()

    def change(_number):
        if not future.done():
            future.set_result(None)

    return lambda x: x * (2.0 if future.done() else 1.0), change


@kind
def handlers_of_logger():
    logger = logging.Logger("layers")
    return lambda x: x * (1 + len(logger.handlers)), lambda _number: logger.addHandler(logging.NullHandler())
