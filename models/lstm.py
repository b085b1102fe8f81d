"""Recurrent networks: a cell unrolled by hand, and a tagger over `nn.LSTM`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class UnrolledLstm(nn.Module):
    """One LSTM cell applied `steps` times: hundreds of tiny operators in one long chain.

    forward: x float32 [batch, steps, width] -> (hidden float32 [batch, width], cell float32 [batch, width]).
    """

    def __init__(self, width: int = 64, steps: int = 32) -> None:
        super().__init__()
        self.width = width
        self.steps = steps
        self.cell = nn.LSTMCell(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.zeros(x.shape[0], self.width, dtype=x.dtype, device=x.device)
        cell = torch.zeros(x.shape[0], self.width, dtype=x.dtype, device=x.device)
        for step in range(self.steps):
            hidden, cell = self.cell(x[:, step], (hidden, cell))
        return hidden, cell


class LstmTagger(nn.Module):
    """A tag for every token, from a bidirectional two-layer LSTM.

    forward: tokens int64 [batch, seq] -> log-probabilities float32 [batch, seq, tags].
    """

    def __init__(self, vocabulary: int = 1000, dim: int = 64, width: int = 128, tags: int = 20) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _last = self.lstm(self.words(tokens))
        return torch.log_softmax(self.head(states), -1)
