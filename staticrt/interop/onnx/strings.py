"""Strings in models: numbers while computing, text for the caller.

No tensor holds text. A model's own strings (labels, categories, keys) are numbered when it is imported; a string
tensor is an int64 tensor of these numbers, marked as `Strings`, and operators that move elements take it like any
other. The strings of a call's arguments are numbered in the same way, new ones after the model's own, so within a call
equal numbers mean equal strings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True, eq=False)
class Strings:
    """A tensor of strings.

    Args:
        codes: int64, numbers of texts.
    """

    codes: torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape


@dataclasses.dataclass(frozen=True, eq=False)
class Maps:
    """The result of ZipMap: one map per row.

    Args:
        scores: [rows, keys].
    """

    scores: torch.Tensor
    keys: tuple[int | str, ...]


class Vocabulary:
    """The texts of a model, numbered in order of appearance."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        """The number of a text of the model; a new one gets the next."""
        found = self._numbers.setdefault(text, len(self.texts))
        if found == len(self.texts):
            self.texts.append(text)
        return found

    def codes(self, texts: Sequence[str], shape: Sequence[int] | None = None) -> torch.Tensor:
        """Texts of the model as numbers, in row-major order."""
        flat = torch.tensor([self.number(text) for text in texts], dtype=torch.int64)
        return flat if shape is None else flat.reshape(list(shape))


class CallTexts:
    """The texts of one call: those of the model and of the arguments."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._known = vocabulary
        self._more: list[str] = []
        self._numbers: dict[str, int] = {}

    def encode(self, value: Any) -> torch.Tensor:
        """An array, a list or one text as numbers.

        Raises:
            TypeError: an element is not a string.
        """
        array = np.asarray(value, dtype=object)
        codes = [self._number(item) for item in array.reshape(-1)]
        return torch.tensor(codes, dtype=torch.int64).reshape(array.shape)

    def _number(self, item: Any) -> int:
        if isinstance(item, bytes):
            item = item.decode(errors="replace")
        if not isinstance(item, str):
            raise TypeError(f"expected strings, got {type(item).__name__}")
        known = self._known._numbers.get(item)
        if known is not None:
            return known
        found = self._numbers.setdefault(item, len(self._known.texts) + len(self._more))
        if found == len(self._known.texts) + len(self._more):
            self._more.append(item)
        return found

    def decode(self, codes: torch.Tensor) -> Any:
        """Numbers as a numpy array of texts."""
        found = np.empty(codes.numel(), dtype=object)
        found[:] = list(self._texts(codes.reshape(-1).tolist()))
        return found.reshape(tuple(codes.shape))

    def _texts(self, codes: Iterable[int]) -> Iterable[str]:
        known = self._known.texts
        return (known[code] if code < len(known) else self._more[code - len(known)] for code in codes)


def as_maps(scores: torch.Tensor, keys: Sequence[int | str]) -> list[dict[int | str, float]]:
    """Rows of scores as maps."""
    return [dict(zip(keys, row, strict=True)) for row in scores.tolist()]
