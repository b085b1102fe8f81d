"""Python constants as JSON: arguments and results of archives that are not tensors."""

from __future__ import annotations

import base64
import json
from typing import Any

import torch

from staticrt.errors import ArchiveError

# Types that a container's data may contain (`defaultdict(list)`). They are built in and safe to call.
_TYPES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, bytes, complex, dict, float, int, list, set, str, tuple)
}


class NotLiteral(Exception):
    """A value that cannot be restored from JSON; the message names its type."""


def encode(value: Any) -> Any:
    """JSON of a constant.

    Raises:
        NotLiteral: `decode` cannot restore its type.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is list:
        return [encode(item) for item in value]
    if kind is tuple:
        return {"tuple": [encode(item) for item in value]}
    if kind is torch.Size:
        return {"size": list(value)}
    if kind is dict:
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if kind in (torch.dtype, torch.layout, torch.memory_format):
        return {kind.__name__: str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {"device": str(value)}
    if isinstance(value, type) and _TYPES.get(value.__name__) is value:
        return {"type": value.__name__}
    raise NotLiteral(f"{kind.__module__}.{kind.__qualname__}")


def decode(value: Any) -> Any:
    """The constant that `encode` wrote.

    Raises:
        ArchiveError: the data is damaged.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        try:
            return _decode_tagged(kind, content)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArchiveError(f"archive is damaged: constant {value!r}") from error
    raise ArchiveError(f"archive is damaged: constant {value!r}")


def _decode_tagged(kind: str, content: Any) -> Any:
    if kind == "float":
        return float.fromhex(content)
    if kind == "complex":
        return complex(float.fromhex(content[0]), float.fromhex(content[1]))
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "size":
        return torch.Size(content)
    if kind == "dict":
        return {decode(key): decode(item) for key, item in content}
    if kind in ("dtype", "layout", "memory_format"):
        found = getattr(torch, content)
        if type(found) is not getattr(torch, kind):
            raise ValueError(content)
        return found
    if kind == "device":
        return torch.device(content)
    if kind == "type":
        return _TYPES[content]
    raise KeyError(kind)


def dumps(value: Any) -> str:
    """`encode` as text; equal constants give equal text."""
    return json.dumps(encode(value), separators=(",", ":"))
