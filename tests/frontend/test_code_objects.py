"""What is read of bytecode without `dis` is what `dis` says of it."""

import ast
import dis
import json
import sys
import types

import pytest

from staticrt.frontend.guards import code_reads

MODULES = (ast, json.decoder, dis, pytest, types, code_reads, sys.modules["torch.nn.modules.module"])


def codes(code):
    """A code object and those of the functions that it makes."""
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from codes(value)


def codes_of(module):
    with open(module.__file__) as source:
        return codes(compile(source.read(), module.__file__, "exec"))


MANY_NAMES = "\n".join(f"n{i} = 1\nm{i} = len(n{i})\nk{i} = len" for i in range(300))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_names_of_globals(module):
    for code in codes_of(module):
        expected = {i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))}
        assert code_reads.global_names(code) == expected


def test_names_beyond_the_first_256():
    names = f"def function():\n    global {', '.join(f'm{i}, n{i}, k{i}' for i in range(300))}\n"
    names += "\n".join(f"    {line}" for line in MANY_NAMES.splitlines())
    for code in codes(compile(names, "<test>", "exec")):
        expected = {i.argval for i in dis.get_instructions(code) if i.opname.endswith(("_GLOBAL", "_NAME"))}
        assert code_reads.global_names(code) == expected
    assert len(expected) == 901


def test_builtins_that_are_handed_on():
    def calls(x):
        return getattr(x, "a", hasattr(x, "b"))

    def hands_on(x):
        return [*map(getattr, x, "ab")]

    assert code_reads._hands_on(hands_on.__code__, "getattr")
    if sys.version_info >= (3, 11):
        assert not code_reads._hands_on(calls.__code__, "getattr")


def with_handlers():
    def bare(x):
        try:
            return x + 1
        except:  # noqa: E722
            return x

    def of_errors(x):
        try:
            return x + 1
        except (RuntimeError, KeyError):
            return x

    def of_python(x):
        try:
            return x.a
        except AttributeError:
            return x

    def finally_only(x):
        try:
            return x + 1
        finally:
            x.close()

    def blocks(x):
        with x:
            return x + 1

    return {bare: True, of_errors: True, of_python: False, finally_only: False, blocks: False}


@pytest.mark.parametrize(
    ("function", "expected"), with_handlers().items(), ids=lambda x: getattr(x, "__name__", x)
)
def test_code_that_goes_on_after_errors(function, expected):
    assert code_reads.catches(function.__code__) is expected


def test_written_free_variables():
    counted = 0

    def counts():
        nonlocal counted
        counted += 1

    def reads_it():
        return counted

    assert code_reads.written_free(counts.__code__) == {"counted"}
    assert code_reads.written_free(reads_it.__code__) == frozenset()
