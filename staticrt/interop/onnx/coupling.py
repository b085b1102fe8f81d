"""Class probabilities from pairwise probabilities: a custom operator, which the runtime calls directly."""

from __future__ import annotations

import torch

from staticrt.interop.onnx.numbers import Tensor


@torch.library.custom_op("staticrt::couple_pairs", mutates_args=())
def couple(chance: Tensor, pairs: Tensor, count: int) -> Tensor:
    """Wu, Lin & Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", second approach,
    stopped where libsvm stops.

    Args:
        chance: [rows, pairs], that a row is of the first class of a pair, if it is of one of them.
        pairs: int64 [pairs, 2].

    Returns:
        [rows, count].
    """
    rows = chance.shape[0]
    first, second = pairs[:, 0], pairs[:, 1]
    wins = chance.new_zeros([rows, count, count])
    wins[:, first, second] = chance
    wins[:, second, first] = 1 - chance
    losses = wins.transpose(1, 2)
    q = -losses * wins
    q.diagonal(dim1=1, dim2=2).copy_((losses * losses).sum(2))
    p = chance.new_full([rows, count], 1 / count)
    open_ = torch.ones(rows, dtype=torch.bool)
    for _ in range(100):
        qp = torch.einsum("nij,nj->ni", q, p)
        pqp = (p * qp).sum(1)
        open_ = open_ & ~((qp - pqp.unsqueeze(1)).abs().amax(1) < 0.005 / count)
        if not open_.any():
            break
        new = p.clone()
        for i in range(count):
            own = q[:, i, i]
            step = (pqp - qp[:, i]) / own
            new[:, i] += step
            scale = 1 + step
            pqp = (pqp + step * (step * own + 2 * qp[:, i])) / scale / scale
            qp = (qp + step.unsqueeze(1) * q[:, i]) / scale.unsqueeze(1)
            new = new / scale.unsqueeze(1)
        p = torch.where(open_.unsqueeze(1), new, p)
    return p


@couple.register_fake
def _(chance: Tensor, pairs: Tensor, count: int) -> Tensor:
    return chance.new_empty([chance.shape[0], count])
