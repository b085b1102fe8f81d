"""Batch norm of a transposed tensor, whose layout eager's result does not have."""

import pytest
import torch
from torch import nn

from staticrt.training import optim
from tests.support.against_eager import equal_eager
from tests.support.compilers import each_compiler


class Series(nn.Module):
    """Steps of a series, normalised by channel, between linear layers."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.norm(x.transpose(1, 2)).transpose(1, 2)
        y = self.linear(torch.relu(y))
        return y.view(*y.shape[:2], 2, 3)


class Planes(nn.Module):
    """The same for images whose channels come last but one."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm2d(6), nn.Linear(6, 6)

    def forward(self, x):
        y = self.norm(x.unflatten(1, (2, -1)).permute(0, 3, 2, 1)).permute(0, 3, 2, 1)
        return self.linear(y)


@pytest.mark.parametrize("executor", ["auto", "reference"])
@pytest.mark.parametrize("kind", [Series, Planes])
@each_compiler
def test_batch_norm_of_a_transposed_tensor(compiler, kind, executor):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = kind()
    compiled = compiler(model, executor=executor)
    for shape in ((2, 4, 6), (2, 4, 6), (5, 8, 6), (1, 4, 6)):
        given = torch.randn(shape)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        results = []
        for run in (compiled, model):
            model.load_state_dict(buffers, strict=False)
            model.zero_grad()
            x = given.clone().requires_grad_()
            out = run(x)
            (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum().backward()
            grads = [p.grad.clone() for p in model.parameters()]
            results.append([out.detach(), x.grad, *grads, *(b.clone() for b in model.buffers())])
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        assert results[0][0].stride() == results[1][0].stride()


@pytest.mark.parametrize("kind", [Series, Planes])
def test_whole_steps_are_traced(kind):
    def train(compile):
        model = kind()
        optimizer = optim.SGD(model.parameters(), lr=0.1)

        @compile
        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return [step(torch.randn(2, 4, 6)) for _ in range(4)], model.state_dict()

    explanation = equal_eager(train).explain()
    assert len(explanation.traces) == 1
    assert not explanation.eager
