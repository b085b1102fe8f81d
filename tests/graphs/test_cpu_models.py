"""CPU graphs of whole networks, inference and training, equal eager."""

import copy

import pytest
import torch
from torch import nn

from tests.support.graph_harness import Captured, check


class TransformerBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.embed = nn.Embedding(50, 32)
        self.head = nn.Linear(32, 50)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4)
        )

    def forward(self, x):
        return self.net(x).softmax(-1)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.net(x).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


MODELS = {
    "transformer": (TransformerBlock, lambda: (torch.randint(50, (2, 7)),)),
    "mlp": (Mlp, lambda: (torch.randn(4, 16),)),
    "cnn": (Cnn, lambda: (torch.randn(2, 3, 8, 8),)),
    "lstm": (Lstm, lambda: (torch.randn(2, 5, 8),)),
}


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("name", MODELS)
def test_inference_equals_eager(name, guard):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model = make_model().eval()
    with guard():
        captured = check(model, make_inputs)
    assert captured.graph.num_kernels > 0
    assert not captured.outputs[0].is_inference() or guard is torch.inference_mode


def training_step(model):
    """loss and gradients, as tensors the caller gets"""
    parameters = list(model.parameters())

    def step(*inputs):
        out = model(*inputs)
        loss = (out.float() ** 2).mean()
        return (loss.detach(), *torch.autograd.grad(loss, parameters))

    return step


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_eager(name):
    torch.manual_seed(0)
    make_model, make_inputs = MODELS[name]
    model = make_model()
    reference = copy.deepcopy(model)
    step, eager = training_step(model), training_step(reference)
    inputs = make_inputs()
    want = eager(*inputs)
    captured = Captured(step, *inputs)
    torch.testing.assert_close(captured.outputs, want)
    for _ in range(3):
        inputs = make_inputs()
        torch.testing.assert_close(tuple(captured(*inputs)), eager(*inputs))
    # Buffers, such as BatchNorm's statistics, are updated by replays as by eager.
    torch.testing.assert_close(dict(model.named_buffers()), dict(reference.named_buffers()))


def test_a_whole_training_step_with_an_optimizer():
    torch.manual_seed(0)
    model = Mlp()
    reference = copy.deepcopy(model)

    def make_step(net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            optimizer.zero_grad(set_to_none=False)
            loss = ((net(x) - 0.5) ** 2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    step, eager = make_step(model), make_step(reference)
    x = torch.randn(4, 16)
    for f in (step, eager):
        f(x)  # makes gradients and momentum buffers
    captured = Captured(step, x)
    want = eager(x)
    torch.testing.assert_close(captured.outputs[0], want)
    for _ in range(4):
        x = torch.randn(4, 16)
        torch.testing.assert_close(captured(x)[0], eager(x))
    torch.testing.assert_close(dict(model.named_parameters()), dict(reference.named_parameters()))


def test_replays_are_bitwise_equal_on_the_captured_input():
    torch.manual_seed(2)
    model, x = TransformerBlock().eval(), torch.randint(50, (2, 7))
    with torch.no_grad():
        want = model(x)
        captured = Captured(model, x)
        assert torch.equal(captured(x)[0], want)


def test_autocast_is_replayed_as_captured():
    model, x = Mlp(), torch.randn(4, 16)

    def f(a):
        with torch.autocast("cpu", torch.bfloat16):
            return model.net(a)

    with torch.no_grad():
        want = f(x)
        captured = Captured(f, x)
        got = captured(x)[0]
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)
