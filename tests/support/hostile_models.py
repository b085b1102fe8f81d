"""Small models whose archives mutants are made of: one for each family of operators with sizes of its own."""

import torch
from torch import nn
from torch.nn import functional as F


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.up = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def forward(self, x):
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 2)
        y = F.interpolate(self.up(y), scale_factor=2.0, mode="bilinear")
        return F.pad(F.avg_pool2d(y, 2), (1, 2, 1, 2), mode="reflect").mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 5), nn.GRU(5, 3, batch_first=True)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        return self.gru(y)[0], h + c


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(10, 8), nn.LayerNorm(8), nn.Linear(8, 6)
        self.project = nn.Linear(8, 24)

    def forward(self, tokens):
        x = self.norm(self.embed(tokens))
        q, k, v = (part.reshape(*x.shape[:2], 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        return self.out(F.gelu(y) + x).log_softmax(-1)


class Sizes(nn.Module):
    """Views, repeats, ranges, gathers, and arithmetic on sizes."""

    def forward(self, x):
        n = x.shape[0]
        places = torch.arange(n * 2).remainder(n)
        y = x[places].reshape(n, -1).repeat(1, 2)[:, ::2]
        top, at = y.topk(2, dim=1)
        grid = torch.zeros(n, y.shape[1] + 1).scatter(1, at, top)
        return torch.cat([grid, y.cumsum(1), y.unfold(1, 2, 1).sum(-1)], 1), y.expand(3, *y.shape).sum(
            0
        ).tril()


class Branches(nn.Module):
    """Control flow and writes in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x):
        y = torch.cond(x.sum() > 0, lambda y: y + 1, lambda y: y * 2, (x,))
        z = y.clone()
        z[:, 1:3] += 1
        z.mul_(2)
        return z.split(2, dim=1)[0] @ z[:2], self.count + z.sum(0)


MODELS = {
    "convolutions": (Convolutions, (torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8),)),
    "recurrent": (Recurrent, (torch.linspace(-1, 1, 24).reshape(3, 2, 4),)),
    "attention": (Attention, (torch.arange(10).reshape(2, 5),)),
    "sizes": (Sizes, (torch.linspace(-1, 1, 24).reshape(4, 6),)),
    "branches": (Branches, (torch.linspace(-1, 1, 16).reshape(4, 4),)),
}
