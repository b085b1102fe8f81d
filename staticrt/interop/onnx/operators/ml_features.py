"""Scaling, encoding and selecting features (domain ai.onnx.ml)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx.arguments import Ints, Value, expect
from staticrt.interop.onnx.numbers import Tensor, as_tensor
from staticrt.interop.onnx.operators.ml_trees import DOMAIN
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.scores import as_floats, rows
from staticrt.interop.onnx.strings import Maps, Strings, Vocabulary


@dataclasses.dataclass(eq=False)
class _Scale:
    offset: Tensor
    scale: Tensor


def _scale(vocabulary: Vocabulary, *, offset: Sequence[float], scale: Sequence[float]) -> _Scale:
    return _Scale(torch.tensor(offset, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32))


@op("Scaler", domain=DOMAIN, prepare=_scale)
def scaler(x: Tensor, *, prepared: _Scale) -> Tensor:
    x = x if x.dtype.is_floating_point else as_floats(x)
    return as_floats((x - prepared.offset) * prepared.scale)


@op("Normalizer", domain=DOMAIN)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    x = as_floats(x)
    if norm == "MAX":
        size = x.amax(-1, keepdim=True)
    elif norm == "L1":
        size = x.abs().sum(-1, keepdim=True)
    elif norm == "L2":
        size = (x * x).sum(-1, keepdim=True).sqrt()
    else:
        raise OnnxError(f"Normalizer supports MAX, L1 and L2, got {norm!r}")
    return torch.where(size == 0, x, x / size)


op("Binarizer", domain=DOMAIN)(lambda x, *, threshold=0.0: (x > threshold).to(x.dtype))


@op("Imputer", domain=DOMAIN)
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: Sequence[float] | None = None,
    imputed_value_int64s: Ints | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    real = x.dtype.is_floating_point
    values = imputed_value_floats if real else imputed_value_int64s
    expect(values, "Imputer has values of the type of its input")
    assert values is not None
    expect(len(values) in (1, x.shape[-1]), f"Imputer has {len(values)} values for {x.shape[-1]} features")
    if real:
        nan = math.isnan(replaced_value_float)
        missing = torch.isnan(x) if nan else x == replaced_value_float
    else:
        missing = x == replaced_value_int64
    return torch.where(missing, torch.tensor(values, dtype=x.dtype), x)


@op("ArrayFeatureExtractor", domain=DOMAIN, strings="moves")
def array_feature_extractor(x: Tensor, indices: Tensor) -> Tensor:
    where = indices.reshape(-1).to(torch.int64)
    found = torch.index_select(x, -1, where)
    return found.unsqueeze(0) if x.dim() == 1 else found


@op("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(*inputs: Value, inputdimensions: Ints) -> Tensor:
    parts = [as_floats(as_tensor(value)) for value in inputs]
    expect(len(parts) == len(inputdimensions), "FeatureVectorizer has a size for each input")
    found = []
    for part, size in zip(parts, inputdimensions, strict=True):
        part = part.reshape(1, -1) if part.dim() < 2 else part.flatten(1)
        have = part.shape[1]
        more = part.new_zeros([part.shape[0], size - have]) if have < size else None
        found.append(part[:, :size] if more is None else torch.cat([part, more], 1))
    return torch.cat(found, 1)


@dataclasses.dataclass(eq=False)
class _Categories:
    values: Tensor
    are_texts: bool
    zeros: bool


def _categories(
    vocabulary: Vocabulary, *, cats_int64s: Ints = (), cats_strings: Sequence[str] = (), zeros: int = 1
) -> _Categories:
    if bool(cats_int64s) == bool(cats_strings):
        raise OnnxError("OneHotEncoder needs either string categories or integer categories")
    texts = bool(cats_strings)
    values = vocabulary.codes(cats_strings) if texts else torch.tensor(cats_int64s, dtype=torch.int64)
    return _Categories(values, texts, bool(zeros))


@op("OneHotEncoder", domain=DOMAIN, prepare=_categories, strings="reads")
def one_hot_encoder(x: Value, *, prepared: _Categories) -> Tensor:
    if isinstance(x, Strings) != prepared.are_texts:
        raise OnnxError(
            "the categories of OneHotEncoder have another type than its input", fix="the model is invalid"
        )
    codes = x.codes if isinstance(x, Strings) else as_tensor(x).to(torch.int64)
    same = codes.unsqueeze(-1) == prepared.values
    if not prepared.zeros:
        torch._assert_async(same.any(-1).all(), "OneHotEncoder: an unknown category, and zeros = 0")
    return same.to(torch.float32)


@dataclasses.dataclass(eq=False)
class _Map:
    """Sorted keys, and what each stands for.

    Args:
        nan: what NaN stands for, or None.
    """

    keys: Tensor
    values: Tensor
    default: Tensor
    nan: Tensor | None
    from_texts: bool
    to_texts: bool

    def look_up(self, x: Value) -> Tensor | Strings:
        if isinstance(x, Strings) != self.from_texts:
            raise OnnxError("the keys have another type than the input", fix="the model is invalid")
        codes = x.codes if isinstance(x, Strings) else as_tensor(x)
        found = self.default.expand(codes.shape)
        if len(self.keys):
            codes = codes.to(self.keys.dtype)
            place = torch.searchsorted(self.keys, codes).clamp(max=len(self.keys) - 1)
            found = torch.where(self.keys[place] == codes, self.values[place], self.default)
        if self.nan is not None:
            found = torch.where(torch.isnan(codes), self.nan, found)
        return Strings(found) if self.to_texts else found


def _map(vocabulary: Vocabulary, keys: Any, values: Any, default: Any) -> _Map:
    """A map from keys to values, each a tensor, strings or a sequence; the first of equal keys counts."""
    from_texts, keys = _column(vocabulary, keys)
    to_texts, values = _column(vocabulary, values)
    _, default = _column(
        vocabulary, [default] if not isinstance(default, (torch.Tensor, Strings)) else default
    )
    if len(keys) != len(values):
        raise OnnxError(f"{len(keys)} keys and {len(values)} values", fix="the model is invalid")
    nan = None
    if keys.dtype.is_floating_point:
        lost = torch.isnan(keys)
        nan = values[lost][0] if lost.any() else None
        keys, values = keys[~lost], values[~lost]
    order = torch.argsort(keys, stable=True)
    keys, values = keys[order], values[order]
    first = torch.ones(len(keys), dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    return _Map(
        keys[first], values[first], default.reshape(-1)[0].to(values.dtype), nan, from_texts, to_texts
    )


def _column(vocabulary: Vocabulary, given: Any) -> tuple[bool, Tensor]:
    if isinstance(given, Strings):
        return True, given.codes.reshape(-1)
    if isinstance(given, torch.Tensor):
        return False, given.reshape(-1)
    if any(isinstance(item, str) for item in given):
        return True, vocabulary.codes(given)
    real = any(isinstance(item, float) for item in given)
    return False, torch.tensor(list(given), dtype=torch.float32 if real else torch.int64)


_DEFAULTS = {"string": "_Unused", "int64": -1, "float": -0.0}


def _label_map(vocabulary: Vocabulary, **given: Any) -> _Map:
    names = ("tensor", "strings", "int64s", "floats")

    def chosen(side: str) -> tuple[str, Any]:
        found = [(name, given[f"{side}_{name}"]) for name in names if given[f"{side}_{name}"] is not None]
        if len(found) != 1:
            raise OnnxError(
                f"LabelEncoder has one list of {side}, got {len(found)}", fix="the model is invalid"
            )
        return found[0]

    kind, values = chosen("values")
    default = given["default_tensor"]
    if default is None:
        if kind == "tensor":
            kind = _kind(values)
        singular = kind.removesuffix("s")
        default = given[f"default_{singular}"]
        default = _DEFAULTS[singular] if default is None else default
    return _map(vocabulary, chosen("keys")[1], values, default)


def _kind(values: Any) -> str:
    if isinstance(values, Strings):
        return "strings"
    return "floats" if values.dtype.is_floating_point else "int64s"


_LABELS: dict[str, Any] = {
    **{
        f"{side}_{name}": None
        for side in ("keys", "values")
        for name in ("tensor", "strings", "int64s", "floats")
    },
    **{f"default_{name}": None for name in ("tensor", "string", "int64", "float")},
}


@op("LabelEncoder", since=2, domain=DOMAIN, prepare=_label_map, prepared=_LABELS, strings="reads")
def label_encoder(x: Value, *, prepared: _Map) -> Any:
    return prepared.look_up(x)


def _both_ways(
    vocabulary: Vocabulary, texts: Sequence[str], numbers: Ints, text: str, number: int
) -> tuple[_Map, _Map]:
    return _map(vocabulary, texts, list(numbers), number), _map(vocabulary, list(numbers), texts, text)


def _classes(
    vocabulary: Vocabulary,
    *,
    classes_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> tuple[_Map, _Map]:
    numbers = range(len(classes_strings))
    return _both_ways(vocabulary, classes_strings, tuple(numbers), default_string, default_int64)


@op("LabelEncoder", domain=DOMAIN, prepare=_classes, strings="reads")
def label_encoder_1(x: Value, *, prepared: tuple[_Map, _Map]) -> Any:
    return prepared[not isinstance(x, Strings)].look_up(x)


def _mapper(
    vocabulary: Vocabulary,
    *,
    cats_int64s: Ints = (),
    cats_strings: Sequence[str] = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> tuple[_Map, _Map]:
    return _both_ways(vocabulary, cats_strings, cats_int64s, default_string, default_int64)


@op("CategoryMapper", domain=DOMAIN, prepare=_mapper, strings="reads")
def category_mapper(x: Value, *, prepared: tuple[_Map, _Map]) -> Any:
    return prepared[not isinstance(x, Strings)].look_up(x)


def _keys(
    vocabulary: Vocabulary, *, classlabels_int64s: Ints = (), classlabels_strings: Sequence[str] = ()
) -> tuple[int | str, ...]:
    return tuple(classlabels_strings) or tuple(classlabels_int64s)


@op("ZipMap", domain=DOMAIN, prepare=_keys)
def zip_map(x: Tensor, *, prepared: tuple[int | str, ...]) -> Maps:
    x = rows(x)
    expect(x.shape[1] == len(prepared), f"ZipMap has {len(prepared)} keys for {x.shape[1]} columns")
    return Maps(x, prepared)
