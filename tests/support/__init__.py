"""Helpers shared by tests: the only place for them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def run_fresh(
    code: str, *arguments: object, flags: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which must end well within five minutes.

    Args:
        arguments: what the code finds in `sys.argv[1:]`.
        flags: those of Python.
        variables: of the environment, besides those of this process.
    """
    command = [sys.executable, *flags, "-c", textwrap.dedent(code), *map(str, arguments)]
    environment = {**os.environ, **(variables or {})}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=_ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done
