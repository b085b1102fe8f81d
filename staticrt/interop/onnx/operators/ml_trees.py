"""Ensembles of decision trees (domain ai.onnx.ml).

Source for what the specification leaves open (binary classifiers, base values, classes without a weight): ONNX
Runtime's kernels, with which tests/interop/onnx/test_ml.py compares.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from staticrt.errors import OnnxError
from staticrt.interop.onnx import scores, trees
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.registry import op
from staticrt.interop.onnx.strings import Vocabulary

DOMAIN = "ai.onnx.ml"
_Floats = tuple[float, ...]
_Ints = tuple[int, ...]


@dataclasses.dataclass(eq=False)
class Ensemble:
    """A node's attributes as tables."""

    trees: trees.Trees
    count: int
    transform: str
    aggregate: str = "SUM"
    base: Tensor | None = None
    labels: scores.Labels | None = None
    binary: bool = False
    positive: bool = False


def _values(given: _Floats, tensor: Tensor | None) -> Tensor:
    return torch.tensor(given, dtype=torch.float32) if tensor is None else tensor.reshape(-1)


def _tables(
    count: int,
    ids: _Ints,
    nodes: _Ints,
    in_trees: _Ints,
    weights: Tensor,
    given: dict[str, Any],
) -> trees.Trees:
    """Build the trees of an ensemble. The model numbers nodes within each tree; here they are positions in the lists."""
    tree_ids, node_ids = given["nodes_treeids"], given["nodes_nodeids"]
    place = {key: index for index, key in enumerate(zip(tree_ids, node_ids, strict=True))}
    if len(place) != len(tree_ids):
        raise OnnxError("two nodes of a tree ensemble have the same number", fix="the model is invalid")
    modes = [trees.LEAF if mode == "LEAF" else _mode(mode) for mode in given["nodes_modes"]]

    def child(name: str) -> list[int]:
        found = zip(tree_ids, given[name], modes, strict=True)
        return [-1 if mode == trees.LEAF else place.get((tree, node), -1) for tree, node, mode in found]

    starts = [i for i, tree in enumerate(tree_ids) if i == 0 or tree != tree_ids[i - 1]]
    return trees.build(
        features=given["nodes_featureids"],
        thresholds=_values(given["nodes_values"], given["nodes_values_as_tensor"]),
        mode=modes,
        true=child("nodes_truenodeids"),
        false=child("nodes_falsenodeids"),
        roots=starts,
        missing=given["nodes_missing_value_tracks_true"],
        members=None,
        leaf=[place.get(key, -1) for key in zip(in_trees, nodes, strict=True)],
        targets=ids,
        weights=weights,
        count=count,
    )


def _mode(name: str) -> int:
    if name not in trees.MODES:
        raise OnnxError(f"a tree has nodes of mode {name!r}", fix=f"known are LEAF, {', '.join(trees.MODES)}")
    return trees.MODES.index(name)


def _classifier(
    vocabulary: Vocabulary,
    *,
    class_ids: _Ints = (),
    class_nodeids: _Ints = (),
    class_treeids: _Ints = (),
    class_weights: _Floats = (),
    class_weights_as_tensor: Tensor | None = None,
    classlabels_strings: tuple[str, ...] = (),
    classlabels_int64s: _Ints = (),
    **given: Any,
) -> Ensemble:
    labels = scores.Labels(classlabels_strings, classlabels_int64s, vocabulary)
    weights = _values(class_weights, class_weights_as_tensor)
    tables = _tables(labels.count, class_ids, class_nodeids, class_treeids, weights, given)
    return Ensemble(
        tables,
        labels.count,
        scores.check_transform(given["post_transform"]),
        base=_base(given),
        labels=labels,
        binary=labels.count == 2 and len(set(class_ids)) == 1,
        positive=bool((weights >= 0).all()),
    )


def _regressor(
    vocabulary: Vocabulary,
    *,
    target_ids: _Ints = (),
    target_nodeids: _Ints = (),
    target_treeids: _Ints = (),
    target_weights: _Floats = (),
    target_weights_as_tensor: Tensor | None = None,
    n_targets: int = 1,
    aggregate_function: str = "SUM",
    **given: Any,
) -> Ensemble:
    weights = _values(target_weights, target_weights_as_tensor)
    tables = _tables(n_targets, target_ids, target_nodeids, target_treeids, weights, given)
    transform = scores.check_transform(given["post_transform"])
    base = _base(given)
    fits = base is not None and len(base) == n_targets
    return Ensemble(tables, n_targets, transform, aggregate_function, base if fits else None)


def _base(given: dict[str, Any]) -> Tensor | None:
    found = _values(given["base_values"], given["base_values_as_tensor"])
    return found if len(found) else None


_NODES = {
    "base_values": (),
    "base_values_as_tensor": None,
    "nodes_falsenodeids": (),
    "nodes_featureids": (),
    "nodes_hitrates": (),
    "nodes_hitrates_as_tensor": None,
    "nodes_missing_value_tracks_true": (),
    "nodes_modes": (),
    "nodes_nodeids": (),
    "nodes_treeids": (),
    "nodes_truenodeids": (),
    "nodes_values": (),
    "nodes_values_as_tensor": None,
    "post_transform": "NONE",
}


def _input(x: Tensor) -> Tensor:
    x = scores.rows(x)
    return x if x.dtype is torch.float64 else scores.as_floats(x)


def _aggregate(ensemble: Ensemble, x: Tensor) -> Tensor:
    found, _said = ensemble.trees.total(x, ensemble.aggregate)
    return found if ensemble.base is None else found + ensemble.base.to(x.dtype)


@op("TreeEnsembleRegressor", domain=DOMAIN, prepare=_regressor, prepared=_NODES)
def tree_ensemble_regressor(x: Tensor, *, prepared: Ensemble) -> Tensor:
    x = _input(x)
    return scores.transform(_aggregate(prepared, x), prepared.transform).to(torch.float32)


@op("TreeEnsembleClassifier", domain=DOMAIN, prepare=_classifier, prepared=_NODES)
def tree_ensemble_classifier(x: Tensor, *, prepared: Ensemble) -> Any:
    x = _input(x)
    found, said = prepared.trees.total(x)
    base = None if prepared.base is None else prepared.base.to(x.dtype)
    labels = prepared.labels
    assert labels is not None
    if prepared.count <= 2:
        position, found = _of_two(prepared, found, said, base)
    else:
        if base is not None:
            found, said = found + base, None
        counted = found if said is None else torch.where(said, found, float("-inf"))
        position = torch.argmax(counted, 1)
        found = scores.transform(found, prepared.transform)
    return labels.of(position), found.to(torch.float32)


def _of_two(
    ensemble: Ensemble, found: Tensor, said: Tensor | None, base: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Positions of labels, and scores, of one or two classes. If no leaf that a row
    reaches names the second class, the score of class 0 decides, and the other class gets the rest."""
    count = 0 if base is None else len(base)
    first = found[:, 0]
    if ensemble.count == 1:
        score = first if base is None else first + base[0]
        return torch.zeros_like(score, dtype=torch.int64), scores.transform(
            score.unsqueeze(1), ensemble.transform
        )
    second = found[:, 1]
    has_second = torch.ones_like(second, dtype=torch.bool) if said is None else said[:, 1]
    if base is not None and count == 2:
        joint = base[1] + first
        first, second = (
            torch.where(has_second, -joint, first + base[0]),
            torch.where(has_second, joint, second + base[1]),
        )
    elif base is not None and count == 1:
        first = first + base[0]
    decides = torch.where(has_second, second, first)
    limit = 0.5 if ensemble.binary and ensemble.positive else 0.0
    both = scores.transform(torch.stack([first, second], 1), ensemble.transform)
    if count < 2:
        if ensemble.transform == "PROBIT":
            raise OnnxError("a classifier of two classes with the transform PROBIT is not supported")
        alone = scores.two_columns(first, ensemble.transform, ensemble.binary and ensemble.positive)
        both = torch.where(has_second.unsqueeze(1), both, alone)
    return (decides > limit).to(torch.int64), both


# -- version 5: one operator, leaves apart from nodes -------------------------------------------------------------


def _ensemble(
    vocabulary: Vocabulary,
    *,
    aggregate_function: int = 1,
    leaf_targetids: _Ints,
    leaf_weights: Tensor,
    membership_values: Tensor | None = None,
    n_targets: int,
    nodes_falseleafs: _Ints,
    nodes_falsenodeids: _Ints,
    nodes_featureids: _Ints,
    nodes_hitrates: Tensor | None = None,
    nodes_missing_value_tracks_true: _Ints = (),
    nodes_modes: Tensor,
    nodes_splits: Tensor,
    nodes_trueleafs: _Ints,
    nodes_truenodeids: _Ints,
    post_transform: int = 0,
    tree_roots: _Ints,
) -> Ensemble:
    count, leaves = len(nodes_featureids), len(leaf_targetids)
    modes = [int(mode) for mode in nodes_modes.reshape(-1).tolist()]
    if not all(0 <= mode < len(trees.MODES) for mode in modes) or not 0 <= post_transform < 5:
        raise OnnxError("a mode or transform of a tree ensemble is unknown", fix="the model is invalid")

    def child(numbers: _Ints, is_leaf: _Ints) -> list[int]:
        found = zip(numbers, is_leaf, strict=True)
        return [number + count if leaf and number >= 0 else number for number, leaf in found]

    # A tree that is a leaf alone is written as a node whose children are the same leaf.
    tables = trees.build(
        features=[*nodes_featureids, *[0] * leaves],
        thresholds=torch.cat([nodes_splits.reshape(-1), torch.zeros(leaves, dtype=nodes_splits.dtype)]),
        mode=[*modes, *[trees.LEAF] * leaves],
        true=[*child(nodes_truenodeids, nodes_trueleafs), *[0] * leaves],
        false=[*child(nodes_falsenodeids, nodes_falseleafs), *[0] * leaves],
        roots=tree_roots,
        missing=nodes_missing_value_tracks_true,
        members=_members(modes, membership_values, leaves),
        leaf=range(count, count + leaves),
        targets=leaf_targetids,
        weights=leaf_weights.reshape(-1),
        count=n_targets,
    )
    names = ("AVERAGE", "SUM", "MIN", "MAX")
    order = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
    if not 0 <= aggregate_function < len(names):
        raise OnnxError(f"aggregate_function {aggregate_function} is unknown", fix="the model is invalid")
    return Ensemble(tables, n_targets, order[post_transform], names[aggregate_function])


def _members(modes: list[int], values: Tensor | None, leaves: int) -> Tensor | None:
    """Sets of the nodes that test for membership, in their order; NaN ends each."""
    if 6 not in modes:
        return None
    groups: list[list[float]] = [[]]
    for value in [] if values is None else values.reshape(-1).tolist():
        if np.isnan(value):
            groups.append([])
        else:
            groups[-1].append(value)
    found = iter(groups)
    sets = [next(found, []) if mode == 6 else [] for mode in modes] + [[]] * leaves
    most = max(1, *(len(group) for group in sets))
    padded = [[*group, *[float("nan")] * (most - len(group))] for group in sets]
    assert values is not None or most == 1
    return torch.tensor(padded, dtype=torch.float64)


@op("TreeEnsemble", since=5, domain=DOMAIN, prepare=_ensemble)
def tree_ensemble(x: Tensor, *, prepared: Ensemble) -> Tensor:
    x = scores.rows(x)
    narrow = x.dtype
    if narrow not in (torch.float32, torch.float64):
        x = x.float()
    return scores.transform(_aggregate(prepared, x), prepared.transform).to(narrow)
