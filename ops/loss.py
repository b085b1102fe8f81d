"""Losses and their backward ops."""

from __future__ import annotations

from staticrt.ops.facts import Cost
from staticrt.ops.registry import register_ops

register_ops(
    "loss",
    """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss
    ctc_loss _ctc_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss
    multi_margin_loss multilabel_margin_loss multilabel_margin_loss_forward nll_loss nll_loss2d
    nll_loss2d_forward nll_loss_forward nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss
    triplet_margin_loss binary_cross_entropy_backward huber_loss_backward mse_loss_backward
    multi_margin_loss_backward multilabel_margin_loss_backward nll_loss_backward nll_loss2d_backward
    smooth_l1_loss_backward soft_margin_loss_backward _ctc_loss_backward
    """,
    cost=Cost.REDUCTION,
)
