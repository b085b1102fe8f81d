"""First, second and third derivatives of twenty small networks through both entry points, equal to eager's."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.compilers import each_compiler
from tests.support.training_cases import Cnn, Lstm, mlp


class _Function(nn.Module):
    """A function of the input and a parameter [4, 4]."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(4, 4)), function

    def forward(self, x):
        return self.function(x, self.weight)


class _Gru(nn.Module):
    """A cell run over the columns of the input."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(1, 5)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], 5)
        for column in x.split(1, 1):
            h = self.cell(column, h)
        return h


def _attention(x, w):
    q, k, v = x @ w, x @ w.t(), x.tanh()
    return F.softmax(q @ k.transpose(-1, -2) / 2, -1) @ v


def _residual():
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 4))


MODELS = {
    "linear": lambda: nn.Linear(4, 3),
    "tanh": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)),
    "gelu and layer norm": _residual,
    "silu and group norm": lambda: nn.Sequential(
        nn.Linear(4, 8), nn.Unflatten(1, (4, 2)), nn.GroupNorm(2, 4), nn.SiLU()
    ),
    "dropout": mlp,
    "softplus": lambda: nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 3), nn.Softplus(2)),
    "sigmoid, log": lambda: nn.Sequential(nn.Linear(4, 5), nn.LogSigmoid()),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 5), nn.Softmax(-1), nn.Linear(5, 5), nn.LogSoftmax(-1)),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()),
    "convolutions": Cnn,
    "transposed convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 2, 2), nn.Tanh(), nn.ConvTranspose1d(2, 1, 3), nn.Tanh()
    ),
    "pools": lambda: nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Conv1d(2, 3, 1), nn.AvgPool1d(2), nn.ELU()),
    "lstm cell": Lstm,
    "gru cell": _Gru,
    "embedding": lambda: nn.Sequential(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(20, 3), nn.Tanh()),
    "attention": lambda: _Function(_attention),
    "bilinear": lambda: _Function(lambda x, w: torch.einsum("bi,ij,bj->b", x, w, x.sin())),
    "norms": lambda: _Function(lambda x, w: (x @ w).norm(dim=1) * w.exp().sum().rsqrt()),
    "views": lambda: _Function(lambda x, w: torch.cat([(x @ w)[:, ::2], (w.t()[:1] * x)[:, 1:]], 1).sin()),
    "determinant": lambda: _Function(lambda x, w: (x @ w).logsumexp(1) + torch.linalg.det(w).tanh()),
}
INPUTS = {
    "dropout": (3, 12),
    "convolutions": (3, 3 * 64),
    "lstm cell": (3, 24),
}


def _derivatives(run, model, x):
    """Gradients by the parameters and the input of orders one to three, each of a mix of those before."""
    torch.manual_seed(1)
    leaves = [*model.parameters(), *([x] if x.is_floating_point() else [])]
    value, found = run(x).square().sum(), []
    for order in range(3):
        grads = torch.autograd.grad(value, leaves, create_graph=order < 2, materialize_grads=True)
        found.append([grad.detach() for grad in grads])
        value = sum((grad * grad.detach().cos()).sum() for grad in grads)
    return found


@pytest.mark.parametrize("name", MODELS)
def test_orders_one_to_three(compiler, name):
    model = MODELS[name]().double()
    theirs = copy.deepcopy(model)
    compiled = compiler(model)
    for rows in (3, 3, 5):
        if name == "embedding":
            x = torch.randint(0, 11, (rows, 5))
        else:
            sizes = INPUTS.get(name, (3, 4))
            x = torch.randn(rows, *sizes[1:], dtype=torch.double, requires_grad=True)
        got, want = _derivatives(compiled, model, x), _derivatives(theirs, theirs, x)
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(model.state_dict(), theirs.state_dict())


def _detached(x):
    return x.sin().detach().mul_(x) * x * x


def _detached_base(x):
    y = x.sin()
    y.detach().mul_(2)
    return y * x


def _data(x):
    y = x.sin()
    y.data[1:].mul_(x.detach()[1:])
    return y * y.cos() * x


def _without_gradients(x):
    y = x.sin()
    with torch.no_grad():
        y.mul_(3)
    return y * x


HIDDEN_WRITES = (_detached, _detached_base, _data, _without_gradients)


@each_compiler
@pytest.mark.parametrize("function", HIDDEN_WRITES)
def test_writes_that_autograd_does_not_see(function, compiler):
    """The value changes, the history does not: no derivative may follow the write."""
    torch._dynamo.reset()
    compiled = compiler(function)
    for size in (3, 3, 4):
        found = []
        for run in (compiled, function):
            x = torch.linspace(0.3, 1, size, dtype=torch.double).requires_grad_()
            value = run(x)
            (first,) = torch.autograd.grad(value.sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sin().sum(), x)
            (alone,) = torch.autograd.grad(run(x).sum(), x)
            found.append((value, first, second, alone))
        torch.testing.assert_close(*found)
