"""`staticrt COMMAND`: one module per command, imported only when its command is called.

A command's module has `add_arguments(parser)` and `main(args) -> int`, which returns the exit code:
0 done, 1 the command ran but failed (the model raised, results differ, a target was missed), 2 wrong use
(arguments, files, inputs).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from staticrt import __version__
from staticrt.errors import ArchiveError, InputError, OnnxError, OptionError, PlanError, StaticRuntimeError
from staticrt.tools.cli.output import json_only, print_json

# command -> (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("staticrt.tools.cli.run", "run a model once and show its results; --check compares with eager"),
    "bench": (
        "staticrt.models.bench.command",
        "measure a model, or the model zoo, against every installed peer",
    ),
    "inspect": (
        "staticrt.tools.cli.inspect",
        "show what is compiled: graph, passes, kernels, memory, eager parts",
    ),
    "profile": ("staticrt.tools.cli.profile", "show where a call's time goes, node by node"),
    "plan": ("staticrt.tools.cli.plan", "plan memory: of a model, or of CSV files of live ranges and sizes"),
    "memory": ("staticrt.tools.cli.memory", "draw a model's planned memory, or a memory snapshot"),
    "compile": ("staticrt.tools.cli.compile", "compile a model into a .pt2 archive"),
    "env": ("staticrt.tools.cli.env", "print versions, machine and build: what an issue report needs"),
}
EXIT_CODES = "exit codes: 0 done; 1 it failed or a check did; 2 wrong arguments, files or inputs"
_USAGE = (ArchiveError, InputError, OnnxError, OptionError, PlanError)
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Reports wrong arguments; with --json also as JSON."""

    wants_json = False

    def error(self, message: str) -> NoReturn:
        if _Parser.wants_json:
            print_json({"error": message, "exit_code": 2})
        super().error(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    _use_streams()
    try:
        return _run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # while torch is being imported, too
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _use_streams() -> None:
    """Let printing never fail, neither for characters that the terminal lacks nor for a closed stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # for the life of the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if name == "stdout" else "backslashreplace")


def _run(arguments: list[str]) -> int:
    _Parser.wants_json = "--json" in arguments
    parser = _Parser(prog="staticrt", description="A static runtime for PyTorch.", epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"staticrt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text, epilog=EXIT_CODES)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
            command.add_argument("--debug", action="store_true", help="show tracebacks")
    args = parser.parse_args(arguments)
    try:
        with json_only() if _wants_json(args) else contextlib.nullcontext():
            code: int = importlib.import_module(COMMANDS[args.command][0]).main(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except StaticRuntimeError as error:
        return _report(args, error, str(error), 2 if isinstance(error, _USAGE) else 1)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return _report(args, error, f"{error.strerror or error}{place}", 2)
    except MemoryError as error:
        return _report(args, error, f"out of memory: {error}", 1)
    except Exception as error:  # any other error: still a sentence and an exit code
        text = f"{type(error).__name__}: {error}\n  fix: --debug shows the traceback, which a report of this needs"
        return _report(args, error, text, 1)


def _wants_json(args: argparse.Namespace) -> bool:
    """Whether stdout must hold only JSON. `bench --json FILE` writes a file instead."""
    wanted = getattr(args, "json", None)
    return wanted is True or (wanted is not None and str(wanted) == "-")


def _report(args: argparse.Namespace, error: BaseException, text: str, code: int) -> int:
    if args.debug:
        traceback.print_exception(error)
    print(f"staticrt {args.command}: {text}", file=sys.stderr)
    if _wants_json(args):
        try:
            print_json({"error": text, "exit_code": code})
        except BrokenPipeError:
            raise
        except OSError:  # stdout itself cannot be written
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
