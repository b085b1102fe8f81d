"""Wide & Deep: normalised wide features beside a dot product of embeddings.

After Cheng et al., "Wide & Deep Learning for Recommender Systems", arXiv:1606.07792.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class WideDeep(nn.Module):
    """Probability of a click from wide features and two embeddings.

    forward: ad float32 [batch, 1, dim], user float32 [batch, 1, dim], wide float32 [batch, features]
    -> float32 [batch, 1].
    """

    def __init__(self, features: int = 50) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(1, features))
        self.scale = nn.Parameter(torch.rand(1, features) + 0.5)
        self.head = nn.Linear(features + 1, 1)

    def forward(self, ad: Tensor, user: Tensor, wide: Tensor) -> Tensor:
        normalised = ((wide - self.mean) * self.scale).clamp(0.0, 10.0)
        affinity = torch.bmm(ad, user.transpose(1, 2)).flatten(1)
        return torch.sigmoid(self.head(torch.cat([affinity, normalised], 1)))
