"""Inputs of a model from the command line: random tensors of given shapes, tensors from files, and values."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from staticrt.errors import InputError

_DTYPES = {
    str(getattr(torch, name)).removeprefix("torch."): getattr(torch, name)
    for name in (
        "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
        "complex64", "complex128",
    )
}  # fmt: skip
_DEFAULT_HIGH = 2  # integers are usually indices, and 0 and 1 are in range of most tables
_SHAPE = re.compile(
    r"(?:(?P<name>[^=]+)=)?(?P<sizes>\d+(?:x\d+)*|scalar)(?::(?P<dtype>\w+))?(?::(?P<high>\d+))?"
)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of one input.

    Args:
        sizes: None if they are unknown.
        dtype: None if not given: then the model's dtype if known, else float32.
        high: integers are drawn from [0, high).
        text: the model's declaration, for messages: "float32[batch, 3, 224, 224]".
    """

    sizes: tuple[int, ...] | None
    dtype: torch.dtype | None = None
    high: int | None = None
    text: str = ""

    def make(self, generator: torch.Generator) -> torch.Tensor:
        """Make a random tensor: normal floats, small integers, uniform booleans.

        Raises:
            InputError: the tensor cannot be allocated.
        """
        try:
            return self._make(generator)
        except (RuntimeError, MemoryError, OverflowError) as error:
            sizes = "x".join(map(str, self.sizes or ()))
            raise InputError(
                f"a tensor of {sizes} cannot be made: {str(error).splitlines()[0]}", fix="give smaller sizes"
            ) from error

    def _make(self, generator: torch.Generator) -> torch.Tensor:
        assert self.sizes is not None
        dtype = self.dtype or torch.float32
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(self.sizes, generator=generator).to(dtype)
        if dtype is torch.bool:
            return torch.randint(0, 2, self.sizes, generator=generator).bool()
        high = _DEFAULT_HIGH if self.high is None else self.high
        return torch.randint(0, high, self.sizes, generator=generator).to(dtype)


def add_input_arguments(parser: argparse.ArgumentParser, seed: bool = True) -> None:
    """Declare --shape, --input, --value and, if asked, --seed."""
    group = parser.add_argument_group(
        "inputs (of a model without example inputs, in the order of its arguments)"
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="[NAME=]SIZES[:DTYPE[:HIGH]]",
        help="a random tensor: x=1x3x224x224, ids=1x16:int64:30522 (integers below 30522), t=scalar; DTYPE: the model's, else float32",
    )
    group.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="a tensor from a .npy, .npz or .pt file",
    )
    group.add_argument(
        "--value",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="an argument that is not a tensor: n=3",
    )
    if seed:
        group.add_argument("--seed", type=int, default=0, metavar="N", help="of random tensors (0)")


def parse_shape(text: str) -> tuple[str, TensorSpec]:
    """Parse "x=1x3:float32" into the name ("" if absent) and the spec.

    Raises:
        InputError: the text is not a shape.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise InputError(
            f"--shape {text!r} is not a shape", fix="write [NAME=]SIZES[:DTYPE[:HIGH]], such as x=1x3x224x224"
        )
    dtype = match["dtype"]
    if dtype is not None and dtype not in _DTYPES:
        raise InputError(f"--shape {text!r}: unknown dtype {dtype!r}", fix=f"one of {', '.join(_DTYPES)}")
    sizes = () if match["sizes"] == "scalar" else tuple(map(int, match["sizes"].split("x")))
    high = int(match["high"]) if match["high"] else None
    if high == 0:
        raise InputError(f"--shape {text!r}: HIGH must be at least 1")
    return match["name"] or "", TensorSpec(sizes, _DTYPES[dtype] if dtype else None, high)


def read_tensors(path: str) -> list[torch.Tensor]:
    """Read the tensors of a .npy, .npz or .pt file (a tensor, or a list, tuple or dict of tensors). Other objects are not
    unpickled.

    Raises:
        InputError: the file cannot be read, or holds other objects.
    """
    import numpy as np

    try:
        suffix = Path(path).suffix.lower()
        if suffix == ".npy":
            found: Any = [np.load(path, allow_pickle=False)]
        elif suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                found = [archive[name] for name in archive.files]
        elif suffix in (".pt", ".pth"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            found = list(loaded.values()) if isinstance(loaded, dict) else loaded
            found = list(found) if isinstance(found, (list, tuple)) else [found]
        else:
            raise InputError(f"--input {path}: unknown kind of file", fix="give a .npy, .npz or .pt file")
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"--input {path}: there is no such file") from error
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"--input {path}: cannot be read: {reason}") from error
    tensors = [torch.from_numpy(item) if isinstance(item, np.ndarray) else item for item in found]
    if not tensors or not all(isinstance(item, torch.Tensor) for item in tensors):
        raise InputError(f"--input {path}: holds no tensors")
    return tensors


def _named(text: str) -> tuple[str, str]:
    """Split "x=file.npy" into the name ("" if absent) and the rest. A file's name may contain "=" itself."""
    name, equals, rest = text.partition("=")
    return ("", text) if not equals or Path(text).exists() else (name, rest)


def build_inputs(
    arguments: argparse.Namespace,
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    examples: Sequence[Any] | None,
    required: int,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make the positional and keyword arguments of a call.

    Args:
        arguments: the parsed arguments of `add_input_arguments`.
        names: the model's parameters, in order.
        specs: the model's declarations of its inputs, in the same order; may be shorter.
        examples: complete positional arguments, used if no input is given.
        required: how many parameters have no default.

    Raises:
        InputError: an unknown name, too many inputs, or a missing input.
    """
    generator = torch.Generator().manual_seed(arguments.seed)
    positional: list[Any] = []
    keyword: dict[str, Any] = {}

    def put(name: str, value: Any, what: str) -> None:
        if name and names and name not in names:
            raise InputError(f"{what}: the model has no argument {name!r}", fix=f"it has {', '.join(names)}")
        if name in keyword:
            raise InputError(f"{what}: the argument {name!r} is given twice")
        if name:
            keyword[name] = value
        else:
            positional.append(value)

    for text in arguments.shape:
        name, spec = parse_shape(text)
        put(name, spec, f"--shape {text}")
    for text in arguments.input:
        name, path = _named(text)
        tensors = read_tensors(path)
        if name and len(tensors) != 1:
            raise InputError(f"--input {text}: {len(tensors)} tensors in the file, one argument")
        for tensor in tensors:
            put(name, tensor, f"--input {text}")
    for text in arguments.value:
        name, value = _named(text)
        try:
            put(name, json.loads(value), f"--value {text}")
        except json.JSONDecodeError as error:
            raise InputError(f"--value {text}: not JSON: {error}") from error
    if not positional and not keyword and examples is not None:
        return tuple(examples), {}
    return _complete(positional, keyword, names, specs, required, generator)


def _complete(
    positional: list[Any],
    keyword: dict[str, Any],
    names: Sequence[str],
    specs: Sequence[TensorSpec],
    required: int,
    generator: torch.Generator,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if names and len(positional) > len(names):
        raise InputError(f"{len(positional)} inputs given, the model takes {len(names)}: {', '.join(names)}")

    def made(value: Any, place: int | None = None) -> Any:
        if not isinstance(value, TensorSpec):
            return value
        if value.dtype is None and place is not None and place < len(specs):
            value = dataclasses.replace(value, dtype=specs[place].dtype)
        return value.make(generator)

    if not names:
        return tuple(map(made, positional)), {name: made(value) for name, value in keyword.items()}
    # Unnamed inputs fill the remaining parameters in order.
    values: dict[str, Any] = dict(keyword)
    rest = iter(positional)
    for place, name in enumerate(names):
        given = values[name] if name in values else next(rest, None)
        if given is not None or name in values:
            values[name] = made(given, place)
        elif place < len(specs) and specs[place].sizes is not None:
            values[name] = specs[place].make(generator)
        elif place < required:
            said = f", {specs[place].text}" if place < len(specs) and specs[place].text else ""
            raise InputError(
                f"the model's argument {name!r}{said} is missing",
                fix=f"add --shape {name}=SIZES (such as {name}=1x3x224x224), or --input {name}=FILE",
            )
    ordered: list[Any] = []
    for name in names:
        if name not in values:
            break
        ordered.append(values.pop(name))
    return tuple(ordered), values
