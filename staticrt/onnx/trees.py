"""Ensembles of decision trees as tables, and all rows and trees walking down at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from staticrt.errors import OnnxError
from staticrt.onnx.numbers import Tensor
from staticrt.onnx.scores import check_features

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEAF = -1


@dataclasses.dataclass(eq=False)
class Trees:
    """Nodes of all trees, one numbering.

    Args:
        features: int64 [nodes], 0 for leaves.
        thresholds: [nodes].
        children: int64 [2 * nodes]: at 2n where node n leads if its test fails, at 2n + 1 if it holds. Leaves lead
            to themselves, so that rows which arrived early stay where they are.
        roots: int64 [trees].
        depth: of the deepest tree.
        modes: the tests that occur, as numbers into `MODES`; `mode` says which per node where there are several.
        missing: bool [nodes], whether NaN passes the test; None: nowhere.
        members: [nodes, most], NaN where there are fewer: what a test for membership compares with.
        weights: [nodes, targets], 0 where a leaf says nothing of a target.
        said: bool [nodes, targets], whether it does; None: every row has a value for each target.
    """

    features: Tensor
    thresholds: Tensor
    children: Tensor
    roots: Tensor
    depth: int
    modes: tuple[int, ...]
    mode: Tensor | None
    missing: Tensor | None
    members: Tensor | None
    weights: Tensor
    said: Tensor | None
    width: int

    def leaves(self, x: Tensor) -> Tensor:
        """The leaf that each row of x [rows, features] reaches in each tree: int64 [rows, trees]."""
        check_features(x, self.width)
        node = self.roots.expand(x.shape[0], len(self.roots))
        thresholds = self.thresholds.to(x.dtype)
        for _ in range(self.depth):
            value = torch.gather(x, 1, self.features[node])
            holds = self._test(value, thresholds, node)
            if self.missing is not None:
                holds = holds | (torch.isnan(value) & self.missing[node])
            node = self.children[node * 2 + holds]
        return node

    def _test(self, value: Tensor, thresholds: Tensor, node: Tensor) -> Tensor:
        limit = thresholds[node]
        found = self._compare(self.modes[0], value, limit, node)
        if self.mode is not None:
            mode = self.mode[node]
            for other in self.modes[1:]:
                found = torch.where(mode == other, self._compare(other, value, limit, node), found)
        return found

    def _compare(self, mode: int, value: Tensor, limit: Tensor, node: Tensor) -> Tensor:
        if mode == 6:
            assert self.members is not None
            return (value.unsqueeze(-1) == self.members.to(value.dtype)[node]).any(-1)
        return _TESTS[mode](value, limit)

    def total(self, leaves: Tensor, dtype: torch.dtype) -> Tensor:
        """The sum over trees of the leaves' weights: [rows, targets]."""
        return torch.nn.functional.embedding_bag(leaves, self.weights.to(dtype), mode="sum")

    def any_said(self, leaves: Tensor) -> Tensor | None:
        """Per row and target whether a leaf says something of it; None: always."""
        if self.said is None:
            return None
        return torch.nn.functional.embedding_bag(leaves, self.said.to(torch.float32), mode="sum") > 0

    def extreme(self, leaves: Tensor, dtype: torch.dtype, largest: bool) -> Tensor:
        """The largest or smallest weight over trees; 0 where none says anything."""
        found = self.weights.to(dtype)[leaves]
        worst = float("-inf") if largest else float("inf")
        if self.said is not None:
            found = torch.where(self.said[leaves], found, worst)
        best = found.amax(1) if largest else found.amin(1)
        return best if self.said is None else torch.where(best == worst, 0.0, best)


_TESTS = (torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne)


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
        true, false: per node the number of the child; of leaves not read.
        leaf, targets, weights: a leaf adds a weight to a target.
        count: targets.

    Raises:
        OnnxError: a number that names nothing, or a tree that never ends.
    """
    total = len(mode)
    kinds = np.asarray(mode, dtype=np.int64)
    inner = kinds != LEAF
    own = np.arange(total)
    children = np.stack(
        [np.where(inner, np.asarray(false, np.int64), own), np.where(inner, np.asarray(true, np.int64), own)],
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
    table = torch.zeros([total, count], dtype=weights.dtype)
    table.index_put_((torch.from_numpy(rows), torch.from_numpy(columns)), weights, accumulate=True)
    said = np.zeros([total, count], dtype=bool)
    said[rows, columns] = True
    depth, everywhere = _walk(children, inner, roots, said)
    modes = tuple(int(m) for m in np.unique(kinds[inner]))
    lost = np.zeros(total, dtype=bool)
    lost[: len(missing)] = np.asarray(missing, dtype=bool)[:total]
    lost &= inner
    return Trees(
        features=torch.from_numpy(wide),
        thresholds=thresholds,
        children=torch.from_numpy(children.reshape(-1).copy()),
        roots=torch.tensor(list(roots), dtype=torch.int64),
        depth=depth,
        modes=modes,
        mode=torch.from_numpy(kinds.copy()) if len(modes) > 1 else None,
        missing=torch.from_numpy(lost) if lost.any() else None,
        members=members,
        weights=table,
        said=None if everywhere else torch.from_numpy(said),
        width=int(wide[inner].max()) + 1 if inner.any() else 0,
    )


def _within(numbers: np.ndarray[tuple[int, ...], np.dtype[np.int64]], limit: int, what: str) -> None:
    wrong = numbers[(numbers < 0) | (numbers >= limit)]
    if len(wrong.reshape(-1)):
        raise OnnxError(
            f"{what} of a tree ensemble is number {int(wrong.reshape(-1)[0])}, there are {limit}",
            fix="the model is invalid; export it again",
        )


def _walk(
    children: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    inner: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
    roots: Sequence[int],
    said: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> tuple[int, bool]:
    """How many tests lead to the deepest leaf, and whether each target is spoken of whatever leaves are reached."""
    deepest, sure = 0, np.zeros(said.shape[1], dtype=bool)
    for root in roots:
        level, depth, seen = np.array([root]), 0, 0
        always = np.ones(said.shape[1], dtype=bool)
        while len(level):
            always &= said[level[~inner[level]]].all(0)
            seen += len(level)
            # A tree has no more nodes than there are; a walk that meets more goes in circles.
            if seen > len(inner):
                raise OnnxError(
                    f"the tree with root {int(root)} goes in circles",
                    fix="the model is invalid; export it again",
                )
            level = children[level[inner[level]]].reshape(-1)
            depth += len(level) > 0
        deepest = max(deepest, depth)
        sure |= always
    return deepest, bool(sure.all())
