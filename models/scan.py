"""Selective state spaces: the Mamba block, step by step and in parallel form.

After Gu & Dao, arXiv:2312.00752 (the recurrence, as a loop over a fixed number of steps) and Dao & Gu,
arXiv:2405.21060 (state space duality: the same recurrence with one decay per channel as a masked product,
for any length).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class MambaBlock(nn.Module):
    """Projection, causal depthwise convolution, selective scan, gate, projection.

    forward: x float32 [batch, seq, dim] -> float32 [batch, seq, dim]. With `steps` the recurrence is a loop
    and seq must equal it; without, the parallel form takes any seq.
    """

    def __init__(self, dim: int = 32, states: int = 8, steps: int | None = None) -> None:
        super().__init__()
        self.steps = steps
        inner = 2 * dim
        self.inner = inner
        self.states = states
        self.project_in = nn.Linear(dim, 2 * inner, bias=False)
        self.convolution = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.select = nn.Linear(inner, inner + 2 * states, bias=False)
        self.step_bias = nn.Parameter(torch.rand(inner) - 4.0)
        decays = torch.ones(inner) if steps is None else torch.arange(1.0, states + 1).repeat(inner, 1)
        self.log_decay = nn.Parameter(decays.log())
        self.skip = nn.Parameter(torch.ones(inner))
        self.project_out = nn.Linear(inner, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        signal, gate = self.project_in(x).chunk(2, -1)
        signal = self.convolution(signal.transpose(1, 2))[:, :, : x.shape[1]]
        signal = F.silu(signal).transpose(1, 2)
        step, write, read = self.select(signal).split([self.inner, self.states, self.states], -1)
        step = F.softplus(step + self.step_bias)
        decay = -torch.exp(self.log_decay)
        scan = self.scan_parallel if self.steps is None else self.scan_steps
        y = scan(step, decay, step * signal, write, read) + signal * self.skip
        out: Tensor = self.project_out(y * F.silu(gate))
        return out

    def scan_steps(self, step: Tensor, decay: Tensor, drive: Tensor, write: Tensor, read: Tensor) -> Tensor:
        """h[t] = exp(step[t] * decay) * h[t-1] + drive[t] (x) write[t]; y[t] = h[t] . read[t]."""
        assert self.steps is not None
        kept = torch.exp(step.unsqueeze(-1) * decay)
        driven = drive.unsqueeze(-1) * write.unsqueeze(2)
        state = torch.zeros_like(driven[:, 0])
        outputs = []
        for t in range(self.steps):
            state = kept[:, t] * state + driven[:, t]
            outputs.append((state * read[:, t].unsqueeze(1)).sum(-1))
        return torch.stack(outputs, 1)

    def scan_parallel(
        self, step: Tensor, decay: Tensor, drive: Tensor, write: Tensor, read: Tensor
    ) -> Tensor:
        """y[t] = sum over s <= t of exp(sum of decay after s up to t) * (read[t] . write[s]) * drive[s]."""
        total = torch.cumsum(step * decay, 1).transpose(1, 2)  # [batch, inner, seq]
        span = total.unsqueeze(-1) - total.unsqueeze(-2)  # [batch, inner, t, s]
        time = torch.arange(step.shape[1], device=step.device)
        past = time.unsqueeze(1) >= time.unsqueeze(0)
        kept = torch.exp(span.masked_fill(~past, float("-inf")))
        affinity = torch.bmm(read, write.transpose(1, 2)).unsqueeze(1)  # [batch, 1, t, s]
        return torch.einsum("bits,bsi->bti", kept * affinity, drive)


class Mamba(nn.Module):
    """Residual Mamba blocks with a norm before each.

    forward: x float32 [batch, seq, dim] -> float32 [batch, seq, dim].
    """

    def __init__(self, dim: int = 32, layers: int = 2, steps: int | None = None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(layers))
        self.blocks = nn.ModuleList(MambaBlock(dim, steps=steps) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return x
