"""Linear models and support vector machines (domain ai.onnx.ml)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F

from staticrt.errors import OnnxError
from staticrt.interop.onnx import scores
from staticrt.interop.onnx.coupling import couple
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.operators.ml_trees import DOMAIN
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.strings import Vocabulary

_Floats = tuple[float, ...]
_Ints = tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Linear:
    """Scores are x @ weight.T + bias."""

    weight: Tensor
    bias: Tensor
    transform: str
    labels: scores.Labels | None = None


def _matrix(numbers: _Floats, rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    if rows < 1 or not numbers or len(numbers) % rows:
        raise OnnxError(f"{len(numbers)} coefficients do not make {rows} rows", fix="the model is invalid")
    return torch.tensor(numbers, dtype=dtype).reshape(rows, -1)


def _linear_regressor(
    vocabulary: Vocabulary,
    *,
    coefficients: _Floats,
    intercepts: _Floats = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Linear:
    bias = torch.tensor(intercepts or (0.0,) * targets, dtype=torch.float32)
    return Linear(_matrix(coefficients, targets, torch.float32), bias, scores.check_transform(post_transform))


def _linear_classifier(
    vocabulary: Vocabulary,
    *,
    classlabels_ints: _Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: _Floats,
    intercepts: _Floats = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> Linear:
    labels = scores.Labels(classlabels_strings, classlabels_ints, vocabulary)
    count = len(intercepts) or labels.count
    bias = torch.tensor(intercepts or (0.0,) * count, dtype=torch.float32)
    return Linear(
        _matrix(coefficients, count, torch.float32), bias, scores.check_transform(post_transform), labels
    )


def _scores(x: Tensor, model: Linear) -> Tensor:
    x = scores.as_floats(scores.rows(x))
    return F.linear(x, model.weight, model.bias)


@op("LinearRegressor", domain=DOMAIN, prepare=_linear_regressor)
def linear_regressor(x: Tensor, *, prepared: Linear) -> Tensor:
    return scores.transform(_scores(x, prepared), prepared.transform)


@op("LinearClassifier", domain=DOMAIN, prepare=_linear_classifier)
def linear_classifier(x: Tensor, *, prepared: Linear) -> Any:
    labels, found = prepared.labels, _scores(x, prepared)
    assert labels is not None
    if found.shape[1] > 1:
        return labels.of(torch.argmax(found, 1)), scores.transform(found, prepared.transform)
    position = (found[:, 0] > 0).to(torch.int64)
    if labels.count == 2:
        return labels.of(position), scores.two_columns(found[:, 0], prepared.transform, True)
    return position, scores.transform(found, prepared.transform)


@dataclasses.dataclass(eq=False)
class Machine:
    """Scores are kernel(x, vectors) @ weight.T + bias, in float64: large kernels cancel.

    Args:
        vectors: support vectors, or None where the kernel is the weight itself.
        kernel: its name; gamma, coef0, degree: its parameters.
        pairs: [pairs, 2], the two classes that each score of a classifier decides between.
        chances: a classifier's prob_a and prob_b.
    """

    weight: Tensor
    bias: Tensor
    vectors: Tensor | None
    kernel: str
    gamma: float
    coef0: float
    degree: float
    transform: str
    one_class: bool = False
    labels: scores.Labels | None = None
    pairs: Tensor | None = None
    chances: tuple[Tensor, Tensor] | None = None
    positive: bool = False

    def scores(self, x: Tensor) -> Tensor:
        """[rows, weights' rows]."""
        x = scores.as_floats(scores.rows(x)).to(torch.float64)
        if self.vectors is None:
            return scores.as_floats(self._apply(x, self.weight) + self.bias)
        return scores.as_floats(F.linear(self._apply(x, self.vectors), self.weight, self.bias))

    def _apply(self, x: Tensor, vectors: Tensor) -> Tensor:
        if self.kernel == "RBF":
            # By differences: squares of norms cancel where features are large.
            far = torch.cdist(x, vectors, compute_mode="donot_use_mm_for_euclid_dist")
            return torch.exp(-self.gamma * far * far)
        found = F.linear(x, vectors)
        if self.kernel == "POLY":
            return (self.gamma * found + self.coef0) ** self.degree
        if self.kernel == "SIGMOID":
            return torch.tanh(self.gamma * found + self.coef0)
        return found


def _kernel(name: str, parameters: _Floats) -> dict[str, Any]:
    if name not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        raise OnnxError(f"kernel_type {name!r} is unknown", fix="known are LINEAR, POLY, RBF and SIGMOID")
    gamma, coef0, degree = parameters or (0.0, 0.0, 0.0)
    return {"kernel": name, "gamma": gamma, "coef0": coef0, "degree": degree}


def _svm_regressor(
    vocabulary: Vocabulary,
    *,
    coefficients: _Floats,
    kernel_params: _Floats = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: _Floats,
    support_vectors: _Floats = (),
) -> Machine:
    return Machine(
        weight=_matrix(coefficients, 1),
        bias=torch.tensor(rho[:1], dtype=torch.float64),
        vectors=_matrix(support_vectors, n_supports) if n_supports else None,
        transform=scores.check_transform(post_transform),
        one_class=bool(one_class),
        **_kernel(kernel_type if n_supports else "LINEAR", kernel_params),
    )


@op("SVMRegressor", domain=DOMAIN, prepare=_svm_regressor)
def svm_regressor(x: Tensor, *, prepared: Machine) -> Tensor:
    found = prepared.scores(x)
    return torch.where(found > 0, 1.0, -1.0) if prepared.one_class else found


def _svm_classifier(
    vocabulary: Vocabulary,
    *,
    classlabels_ints: _Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    coefficients: _Floats,
    kernel_params: _Floats = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: _Floats = (),
    prob_b: _Floats = (),
    rho: _Floats,
    support_vectors: _Floats = (),
    vectors_per_class: _Ints = (),
) -> Machine:
    labels = scores.Labels(classlabels_strings, classlabels_ints, vocabulary)
    transform = scores.check_transform(post_transform)
    positive = all(value >= 0 for value in coefficients)
    total = sum(vectors_per_class)
    if not total:
        return Machine(
            weight=_matrix(coefficients, labels.count),
            bias=torch.tensor(rho[:1], dtype=torch.float64),
            vectors=None,
            transform=transform,
            labels=labels,
            positive=positive,
            **_kernel("LINEAR", kernel_params),
        )
    count = labels.count
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    if len(vectors_per_class) != count or len(rho) < len(pairs) or count < 2:
        raise OnnxError(
            f"{count} classes, {len(vectors_per_class)} counts of vectors, {len(rho)} values of rho"
        )
    own = _matrix(coefficients, count - 1)
    if own.shape[1] != total:
        raise OnnxError(f"{len(coefficients)} coefficients for {total} vectors of {count} classes")
    starts = [sum(vectors_per_class[:i]) for i in range(count + 1)]
    weight = torch.zeros([len(pairs), total], dtype=torch.float64)
    for row, (i, j) in enumerate(pairs):
        # Row c of the coefficients: each vector's against class c, its own class left out.
        weight[row, starts[i] : starts[i + 1]] = own[j - 1, starts[i] : starts[i + 1]]
        weight[row, starts[j] : starts[j + 1]] = own[i, starts[j] : starts[j + 1]]
    chances = None
    if prob_a:
        if min(len(prob_a), len(prob_b)) < len(pairs):
            raise OnnxError(f"prob_a and prob_b have {len(prob_a)} and {len(prob_b)} of {len(pairs)} values")
        chances = (torch.tensor(prob_a[: len(pairs)]), torch.tensor(prob_b[: len(pairs)]))
    return Machine(
        weight=weight,
        bias=torch.tensor(rho[: len(pairs)], dtype=torch.float64),
        vectors=_matrix(support_vectors, total),
        transform=transform,
        labels=labels,
        pairs=torch.tensor(pairs, dtype=torch.int64),
        chances=chances,
        positive=positive,
        **_kernel(kernel_type, kernel_params),
    )


@op("SVMClassifier", domain=DOMAIN, prepare=_svm_classifier)
def svm_classifier(x: Tensor, *, prepared: Machine) -> Any:
    found, labels = prepared.scores(x), prepared.labels
    assert labels is not None
    if prepared.pairs is None:
        return labels.of(_by_score(found, prepared, labels.count)), scores.transform(
            found, prepared.transform
        )
    winner = torch.where(found > 0, prepared.pairs[:, 0], prepared.pairs[:, 1])
    position = torch.argmax(F.one_hot(winner, labels.count).sum(1), 1)
    if prepared.chances is not None:
        a, b = prepared.chances
        chance = (1 - torch.sigmoid(found * a + b)).clamp(1e-7, 1 - 1e-7)
        found = couple(chance, prepared.pairs, labels.count)
    elif labels.count == 2:
        name = prepared.transform
        return labels.of(position), scores.two_columns(found[:, 0], name, name != "NONE")
    return labels.of(position), scores.transform(found, prepared.transform)


def _by_score(found: Tensor, model: Machine, count: int) -> Tensor:
    """Labels of a linear machine."""
    position = torch.argmax(found, 1)
    if count != 2:
        return position
    largest = found.amax(1)
    second = largest >= 0.5 if model.positive else largest > 0
    return torch.where(second, 1, position)
