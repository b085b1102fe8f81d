"""Post-processing of raw scores for the classifiers and regressors of `ai.onnx.ml`, as in ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.strings import Strings, Vocabulary

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def check_transform(name: str) -> str:
    """The name of a transform, checked."""
    if name not in TRANSFORMS:
        raise OnnxError(
            f"post_transform {name!r} is none of {', '.join(TRANSFORMS)}", fix="the model is invalid"
        )
    return name


def transform(scores: Tensor, name: str) -> Tensor:
    """`post_transform` of rows of scores [rows, classes]. Of a single column only PROBIT is computed."""
    if name == "PROBIT":
        return _probit(scores)
    if scores.shape[-1] == 1 or name == "NONE":
        return scores
    if name == "LOGISTIC":
        return torch.sigmoid(scores)
    if name == "SOFTMAX":
        return torch.softmax(scores, -1)
    largest = scores.amax(-1, keepdim=True)
    counted = scores.abs() > 1e-7
    found = torch.where(counted, torch.exp(scores - largest), scores * torch.exp(-largest))
    return found / torch.where(counted, found, 0.0).sum(-1, keepdim=True)


def _probit(x: Tensor) -> Tensor:
    """Winitzki's approximation of the inverse of the normal distribution, as in ONNX Runtime."""
    x = 2 * x - 1
    log = torch.log((1 - x) * (1 + x))
    half = 2 / (3.14159 * 0.147) + 0.5 * log
    return math.sqrt(2) * torch.sign(x) * torch.sqrt(torch.sqrt(half * half - log / 0.147) - half)


def two_columns(score: Tensor, name: str, positive: bool) -> Tensor:
    """Both classes' scores from the one of the second class, [rows] -> [rows, 2].

    Args:
        positive: the score is a probability; else its sign decides.
    """
    if name == "LOGISTIC":
        return torch.stack([torch.sigmoid(-score), torch.sigmoid(score)], -1)
    return torch.stack([1 - score if positive else -score, score], -1)


class Labels:
    """The labels of a classifier: integers, or numbers of texts.

    Args:
        texts, ints: the two attributes, one of them empty.
    """

    def __init__(self, texts: Sequence[str], ints: Sequence[int], vocabulary: Vocabulary) -> None:
        if bool(texts) == bool(ints):
            raise OnnxError("a classifier needs either string labels or integer labels")
        self.are_texts = bool(texts)
        self.count = len(texts) or len(ints)
        self.values = vocabulary.codes(texts) if texts else torch.tensor(list(ints), dtype=torch.int64)

    def of(self, positions: Tensor) -> Tensor | Strings:
        """Labels by position in the list."""
        found = self.values[positions]
        return Strings(found) if self.are_texts else found


def rows(x: Tensor) -> Tensor:
    """Inputs as [rows, features]: a vector is one row."""
    if x.dim() == 1:
        return x.unsqueeze(0)
    if x.dim() != 2:
        raise OnnxError(f"expected rows of features [N, F], got a tensor of rank {x.dim()}")
    return x


def as_floats(x: Tensor) -> Tensor:
    """Inputs of any type as float32."""
    return x.to(torch.float32)


def check_features(x: Tensor, wanted: int) -> None:
    """Raise OnnxError unless rows have as many features as the model reads."""
    if (type(x.shape[1]) is int and x.shape[1] < wanted) or x.shape[1] < wanted:
        raise OnnxError(f"the model reads {wanted} features, the input has {x.shape[1]}")
