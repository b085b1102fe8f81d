"""A GPT-style decoder: prefill of a prompt, and one decode step with a key-value cache.

After Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2): layer norm before each
block, learned positions, output weights tied to the embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from staticrt.models.attention import Block


class Gpt(nn.Module):
    """The decoder's weights; `GptPrefill` and `GptDecode` are the two ways to call it.

    forward: tokens int64 [batch, seq]; keys and values float32 [layers, batch, heads, past, head_dim] or
    None -> (logits of the last token float32 [batch, vocabulary], keys, values with the new tokens at the end).
    """

    def __init__(
        self, dim: int = 256, heads: int = 8, layers: int = 6, vocabulary: int = 1000, longest: int = 256
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, dim)
        self.positions = nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, 4 * dim, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocabulary, bias=False)
        nn.init.normal_(self.words.weight, std=0.02)
        self.head.weight = self.words.weight

    def forward(
        self, tokens: Tensor, keys: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        begin = 0 if keys is None else keys.shape[3]
        positions = torch.arange(begin, begin + tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(positions)
        new_keys, new_values = [], []
        for index, block in enumerate(self.blocks):
            past = None if keys is None or values is None else (keys[index], values[index])
            x, (key, value) = block(x, None, past)
            new_keys.append(key)
            new_values.append(value)
        logits = self.head(self.norm(x[:, -1]))
        return logits, torch.stack(new_keys), torch.stack(new_values)


class GptPrefill(nn.Module):
    """A whole prompt at once.

    forward: tokens int64 [batch, seq] -> as Gpt.
    """

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out: tuple[Tensor, Tensor, Tensor] = self.gpt(tokens)
        return out


class GptDecode(nn.Module):
    """One more token after those in the cache.

    forward: token int64 [batch, 1], keys and values float32 [layers, batch, heads, past, head_dim]
    -> as Gpt, caches one longer.
    """

    def __init__(self, gpt: Gpt) -> None:
        super().__init__()
        self.gpt = gpt

    def forward(self, token: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out: tuple[Tensor, Tensor, Tensor] = self.gpt(token, keys, values)
        return out
