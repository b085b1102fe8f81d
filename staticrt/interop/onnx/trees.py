"""Ensembles of decision trees as tables, which `staticrt::tree_ensemble` (csrc/kernels/trees/tree_walk.h) walks down."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

import staticrt.native  # noqa: F401  the operator
from staticrt.errors import OnnxError
from staticrt.interop.onnx.numbers import Tensor
from staticrt.interop.onnx.scores import check_features

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEAF = -1
_AGGREGATES = {"SUM": 0, "AVERAGE": 0, "MIN": 1, "MAX": 2}


@dataclasses.dataclass(eq=False)
class Trees:
    """Nodes of all trees, one numbering.

    Args:
        nodes: int32 [nodes, 7], the columns of csrc/kernels/trees/tree_walk.h: feature, the children when the test holds
            and when not, mode (an index into `MODES`, or `LEAF`), whether NaN passes, and of a leaf which of the
            weights are its own: the first, and how many.
        thresholds: [nodes].
        members: [nodes, most], NaN where there are fewer: what a test for membership compares with.
        roots: int32 [trees].
        targets, weights: int32 and floats [weights]: a leaf adds a weight to a target.
        count: targets.
        sure: every row has a value for each target.
        width: features that are read.
    """

    nodes: Tensor
    thresholds: Tensor
    members: Tensor | None
    roots: Tensor
    targets: Tensor
    weights: Tensor
    count: int
    sure: bool
    width: int

    def total(self, x: Tensor, aggregate: str = "SUM") -> tuple[Tensor, Tensor | None]:
        """Aggregate the weights of the leaves that each row of x [rows, features] reaches: [rows, targets].

        Returns:
            Sums, averages, least or largest weights over trees, 0 where no leaf has a weight; and where one has, or
            None: everywhere.
        """
        check_features(x, self.width)
        totals, said = torch.ops.staticrt.tree_ensemble(
            x.detach(),
            self.nodes,
            self.thresholds.to(x.dtype),
            None if self.members is None else self.members.to(x.dtype),
            self.roots,
            self.targets,
            self.weights.to(x.dtype),
            self.count,
            _AGGREGATES[aggregate],
            not self.sure,
        )
        if aggregate == "AVERAGE":
            totals = totals / len(self.roots)
        return totals, None if self.sure else said


def build(
    *,
    features: Sequence[int],
    thresholds: Tensor,
    mode: Sequence[int],
    true: Sequence[int],
    false: Sequence[int],
    roots: Sequence[int],
    missing: Sequence[int],
    members: Tensor | None,
    leaf: Sequence[int],
    targets: Sequence[int],
    weights: Tensor,
    count: int,
) -> Trees:
    """Tables of an ensemble, checked.

    Args:
        mode: per node an index into `MODES`, or `LEAF`.
        true, false: per node the number of the child; not read of leaves.
        leaf, targets, weights: a leaf adds a weight to a target.
        count: targets.

    Raises:
        OnnxError: an index out of range, or a tree with a cycle.
    """
    total = len(mode)
    kinds = np.asarray(mode, dtype=np.int64)
    inner = kinds != LEAF
    own = np.arange(total)
    children = np.stack(
        [np.where(inner, np.asarray(true, np.int64), own), np.where(inner, np.asarray(false, np.int64), own)],
        1,
    )
    rows = np.asarray(leaf, dtype=np.int64)
    columns = np.asarray(targets, dtype=np.int64)
    wide = np.where(inner, np.asarray(features, np.int64), 0)
    _within(children, total, "a child")
    _within(np.asarray(roots), total, "a root")
    _within(rows, total, "the leaf of a weight")
    _within(columns, count, "a target or class of a weight")
    _within(wide, 2**31, "a feature")
    if not (len(rows) == len(columns) == len(weights)) or not len(thresholds) == total:
        raise OnnxError("the attributes of a tree ensemble differ in length", fix="the model is invalid")
    said = np.zeros([total, count], dtype=bool)
    said[rows, columns] = True
    lost = np.zeros(total, dtype=bool)
    lost[: len(missing)] = np.asarray(missing, dtype=bool)[:total]
    # A leaf's weights side by side, in the order in which they are listed.
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=total)
    table = np.stack([wide, *children.T, kinds, lost & inner, np.cumsum(counts) - counts, counts], 1)
    return Trees(
        nodes=torch.from_numpy(table.astype(np.int32)),
        thresholds=thresholds,
        members=members,
        roots=torch.tensor(list(roots), dtype=torch.int32),
        targets=torch.from_numpy(columns[order].astype(np.int32)),
        weights=weights[torch.from_numpy(order)],
        count=count,
        sure=_is_sure(children, inner, roots, said),
        width=int(wide[inner].max()) + 1 if inner.any() else 0,
    )


def _within(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]], limit: int, what: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= limit)]
    if len(wrong.reshape(-1)):
        raise OnnxError(
            f"{what} of a tree ensemble is number {int(wrong.reshape(-1)[0])}, there are {limit}",
            fix="the model is invalid; export it again",
        )


def _is_sure(
    children: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    inner: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    roots: Sequence[int],
    said: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> bool:
    """Whether every target gets a weight, whatever leaves are reached."""
    sure = np.zeros(said.shape[1], dtype=bool)
    for root in roots:
        level, seen = np.array([root]), 0
        always = np.ones(said.shape[1], dtype=bool)
        while len(level):
            always &= said[level[~inner[level]]].all(0)
            seen += len(level)
            # A walk over more nodes than exist has a cycle.
            if seen > len(inner):
                raise OnnxError(
                    f"the tree with root {int(root)} has a cycle",
                    fix="the model is invalid; export it again",
                )
            level = children[level[inner[level]]].reshape(-1)
        sure |= always
    return bool(sure.all())
