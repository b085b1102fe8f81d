"""`staticrt COMMAND`: one module per command, imported only when its command is called.

A command's module has `add_arguments(parser)` and `main(args) -> int`, which returns the exit code:
0 done, 1 the command ran but its check failed, 2 wrong use (arguments, files).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from staticrt.errors import StaticRuntimeError

# command -> (module, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "bench": ("staticrt.models.bench.command", "measure the model zoo against every installed peer, on CPU"),
    "memory": ("staticrt.memory_command", "draw a memory snapshot: its timeline and segments"),
    "plan": ("staticrt.plan_command", "plan memory for CSV files of live ranges and sizes"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="staticrt", description="A static runtime for PyTorch.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, (module, help_text) in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        if name == chosen:
            importlib.import_module(module).add_arguments(command)
    args = parser.parse_args(arguments)
    try:
        code: int = importlib.import_module(COMMANDS[args.command][0]).main(args)
        sys.stdout.flush()
        return code
    except StaticRuntimeError as error:
        print(f"staticrt {args.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
