"""Models for the tests of reports; their line numbers matter to nobody."""

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(64, 48)
        self.norm = torch.nn.LayerNorm(48)
        self.second = torch.nn.Linear(48, 8)

    def forward(self, x):
        y = torch.nn.functional.gelu(self.first(x)) * 2 + 1
        return self.second(self.norm(y)).softmax(-1)


class Loop(torch.nn.Module):
    def forward(self, x):
        def go_on(i, y):
            return (i < 3).all()

        def body(i, y):
            return i + 1, torch.tanh(y * 2)

        return torch._higher_order_ops.while_loop(go_on, body, (torch.zeros(1), x))[1]


class Prints(torch.nn.Module):
    """What no graph replays: it is cut there."""

    def forward(self, x):
        y = x * 2 + 1
        print("called", end="")
        return torch.relu(y) - 1


class Subclass(torch.Tensor):
    """Has its own torch function, so calls with it run eagerly."""
