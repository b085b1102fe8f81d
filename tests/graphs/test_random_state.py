"""Random numbers through checkpoints: a forward run again in the backward draws what the first run drew."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt.graphs import GraphContext

ORDERS = ["f0 f1 b0 b1", "f0 f1 b1 b0", "f0 b0 f1 b1", "f1 f0 b0 b1", "f1 f0 b1 b0", "f1 b1 f0 b0"]


class Checkpointed(nn.Module):
    """Dropout before, inside and after a part that is computed again in the backward."""

    def __init__(self, draws):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.draws = draws

    def part(self, x):
        for _ in range(self.draws):
            x = nn.functional.dropout(self.first(x).tanh(), 0.4)
        return x

    def forward(self, x):
        x = nn.functional.dropout(x, 0.2)
        x = checkpoint(self.part, x, use_reentrant=False)
        return nn.functional.dropout(self.last(x), 0.3)


def entries(module, context):
    options = {"graphs": context}
    return {
        "compile": lambda: staticrt.compile(module, **options),
        "dynamo": lambda: torch.compile(module, backend="staticrt", options=options),
        "wrap": lambda: context.wrap(module),
    }


def run(functions, parameters, order, retain=False):
    """Outputs and gradients of the calls in this order; a draw of eager's lies between."""
    torch.manual_seed(3)
    inputs = [torch.randn(4, 8, requires_grad=True) for _ in functions]
    outputs, seen = {}, []
    for word in order.split():
        which = int(word[1])
        if word[0] == "f":
            outputs[which] = functions[which](inputs[which])
        else:
            for again in range(1 + retain):
                outputs[which].square().sum().backward(retain_graph=retain and again == 0)
        seen.append(torch.rand(2))
    seen += [outputs[k].detach() for k in sorted(outputs)] + [x.grad for x in inputs]
    return seen + [p.grad.clone() for p in parameters]


def compare(entry, draws, order, retain=False):
    torch._dynamo.reset()
    modules = [Checkpointed(number) for number in draws]
    twins = copy.deepcopy(modules)
    with GraphContext("cpu") as context:
        functions = [entries(module, context)[entry]() for module in modules]
        for _ in range(3):  # captured, then replayed
            for module in (*modules, *twins):
                module.zero_grad()
            got = run(functions, [p for m in modules for p in m.parameters()], order, retain)
            want = run(twins, [p for m in twins for p in m.parameters()], order, retain)
            for a, b in zip(got, want, strict=True):
                torch.testing.assert_close(a, b)
        assert context.explain().replays > 0
        del functions


@pytest.mark.parametrize("entry", ["compile", "dynamo", "wrap"])
def test_simple(entry):
    compare(entry, [1], "f0 b0")


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_two_uneven_parts(order):
    compare("dynamo", [1, 3], order)


def test_a_graph_that_is_retained():
    compare("dynamo", [2], "f0 b0", retain=True)
