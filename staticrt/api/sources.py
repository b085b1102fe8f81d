"""What `staticrt.compile` takes besides modules and functions: exported programs, in memory and in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from staticrt.errors import InputError


def callable_of(source: Any) -> Any:
    """The module or function to compile.

    Args:
        source: either, a `torch.export.ExportedProgram`, or the path of a file of `torch.export.save`.

    Raises:
        InputError: it is none of these, or no such file can be read.
    """
    if isinstance(source, (str, os.PathLike)):
        source = _read(Path(source))
    if isinstance(source, torch.export.ExportedProgram):
        return source.module()
    if not callable(source):
        raise InputError(
            f"staticrt.compile takes a module, a function, an ExportedProgram or its file, got {type(source).__name__}",
            fix="pass the nn.Module itself, not its output or state dict",
        )
    return source


def _read(path: Path) -> Any:
    if path.suffix == ".onnx":
        raise InputError(f"{path} is an ONNX model", fix="staticrt.from_onnx(path)")
    from staticrt.archive.checked_export import load_exported  # loads torch.export, and with it sympy

    return load_exported(path)
