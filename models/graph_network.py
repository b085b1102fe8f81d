"""A message-passing graph network: gathers along edges, scatters into nodes.

Messages after Gilmer et al., arXiv:1704.01212; their mean over a node's edges, as in GraphSAGE,
arXiv:1706.02216.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MessageLayer(nn.Module):
    """Each edge sends a gated message; each node takes their mean and updates itself."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * dim, dim)
        self.gate = nn.Linear(2 * dim, 1)
        self.update = nn.Linear(2 * dim, dim)

    def forward(self, nodes: Tensor, source: Tensor, target: Tensor) -> Tensor:
        ends = torch.cat([nodes.index_select(0, source), nodes.index_select(0, target)], 1)
        sent = self.message(ends).relu() * torch.sigmoid(self.gate(ends))
        total = torch.zeros_like(nodes).index_add(0, target, sent)
        ones = torch.ones_like(target, dtype=nodes.dtype)
        degree = torch.zeros_like(nodes[:, 0]).scatter_add(0, target, ones)
        mean = total / degree.clamp(min=1.0).unsqueeze(1)
        change: Tensor = self.update(torch.cat([nodes, mean], 1)).relu()
        return nodes + change


class GraphNetwork(nn.Module):
    """Class scores of every node.

    forward: nodes float32 [nodes, features], edges int64 [2, edges] (source, target)
    -> float32 [nodes, classes].
    """

    def __init__(self, features: int = 16, dim: int = 32, layers: int = 3, classes: int = 7) -> None:
        super().__init__()
        self.embed = nn.Linear(features, dim)
        self.layers = nn.ModuleList(MessageLayer(dim) for _ in range(layers))
        self.head = nn.Linear(dim, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges[0], edges[1]
        x = self.embed(nodes)
        for layer in self.layers:
            x = layer(x, source, target)
        out: Tensor = self.head(x)
        return out
