"""Measurements in processes of their own, which print what they found as a last line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def in_process(module: str, *words: str) -> dict[str, Any] | str:
    """What `python -m module words` found; if it failed, the last line that it wrote to stderr."""
    done = subprocess.run([sys.executable, "-m", module, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it ended without output"])[-1]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
