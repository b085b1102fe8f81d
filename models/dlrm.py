"""DLRM: dense features and many embedding bags that meet in pairwise dot products.

After Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
Systems", arXiv:1906.00091.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

DENSE_FEATURES = 13


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Click probability from dense features and one bag of category indices per table.

    forward: dense float32 [batch, 13], indices int64 [tables, all_items], offsets int64 [tables, batch]
    (where each sample's bag begins in `indices`) -> float32 [batch, 1].
    """

    def __init__(self, tables: int = 26, rows: int = 1000, dim: int = 32) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, dim, mode="sum") for _ in range(tables))
        self.bottom = _mlp([DENSE_FEATURES, 128, 64, dim])
        pairs = torch.tril_indices(tables + 1, tables + 1, offset=-1)
        self.register_buffer("pair_row", pairs[0], persistent=False)
        self.register_buffer("pair_column", pairs[1], persistent=False)
        self.top = nn.Sequential(_mlp([dim + pairs.shape[1], 128, 64]), nn.Linear(64, 1))

    def forward(self, dense: Tensor, indices: Tensor, offsets: Tensor) -> Tensor:
        x = self.bottom(dense)
        pooled = [bag(indices[table], offsets[table]) for table, bag in enumerate(self.bags)]
        features = torch.stack([x, *pooled], 1)
        dots = torch.bmm(features, features.transpose(1, 2))
        pairs = dots[:, self.pair_row, self.pair_column]  # type: ignore[index]
        return torch.sigmoid(self.top(torch.cat([x, pairs], 1)))
