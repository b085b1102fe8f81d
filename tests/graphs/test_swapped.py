"""Parameters and buffers that are swapped and swapped back: captures for each place, and none again.

Numbers of captures: upstream's `run_static_input_param_test` and its relatives. Backwards are captured as well.
"""

import pytest
import torch
from torch import nn

import staticrt
from staticrt.graphs import GraphContext
from tests.support.graph_harness import Trained, device, empty


def scaled(tree):
    """w * x with gradients of both."""

    def forward(args):
        w, x = empty(args)
        return [w * x, w, x]

    def backward(args):
        w, x, gradient = empty(args)
        return [gradient * x, gradient * w]

    return Trained(tree, forward, backward, static_inputs=(0,))


def leaf(value):
    return torch.full((4,), value, requires_grad=True)


def step(f, w, x, expected):
    """One forward and backward; nothing is held afterwards."""
    w.grad = None
    out = f(w, x)
    assert torch.equal(out.detach(), torch.full((4,), expected))
    out.sum().backward()
    gradient, w.grad = w.grad, None
    assert torch.equal(gradient, torch.full((4,), expected / w[0].item()))


def test_a_parameter_in_training(tree):
    f, (a, b) = scaled(tree), (leaf(2.0), leaf(3.0))
    for w in (a, a, a, b, b, b, a, b, a):
        step(f, w, torch.full((4,), 5.0), 5.0 * w[0].item())
    assert tree.captures == 4


def test_a_parameter_of_the_second_part(tree):
    first, f = tree.boxed(lambda args: [empty(args)[0] + 1], name="first"), scaled(tree)
    a, b = leaf(2.0), leaf(3.0)
    for w in (a, a, a, b, b, b, a, b, a):
        with tree.step():
            (y,) = first([torch.full((4,), 4.0)])
            step(f, w, y, 5.0 * w[0].item())
            del y
    assert tree.captures == 5


def test_a_parameter_of_the_first_part(tree):
    f, last = scaled(tree), tree.boxed(lambda args: [empty(args)[0] + 1], name="last")
    a, b = leaf(2.0), leaf(3.0)
    for w in (a, a, a, b, b, b, a, b, a):
        with tree.step():
            out = f(w, torch.full((4,), 5.0))
            (more,) = last([out.detach()])
            assert torch.equal(more, torch.full((4,), 5.0 * w[0].item() + 1))
            del more
            out.sum().backward()
            del out
            w.grad = None
    assert tree.captures == 6


class Own(nn.Module):
    def __init__(self, parameter):
        super().__init__()
        self.linear, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        value = torch.rand(3)
        if parameter:
            self.own = nn.Parameter(value)
        else:
            self.register_buffer("own", value)

    def forward(self, x):
        return self.norm(self.linear(x)) * self.own


def swap(owner, name, value):
    if isinstance(getattr(owner, name), nn.Parameter):
        value = nn.Parameter(value)
    setattr(owner, name, value)


PLACES = {
    "a Linear's weight": (lambda m: (m.linear, "weight"), True),
    "a BatchNorm's buffer": (lambda m: (m.norm, "running_mean"), True),
    "an own parameter": (lambda m: (m, "own"), True),
    "an own buffer": (lambda m: (m, "own"), False),
}


@pytest.mark.parametrize("kind", ["cpu", "cpu_copy"])
@pytest.mark.parametrize("entry", ["compile", "wrap"])
@pytest.mark.parametrize("place", PLACES)
def test_a_tensor_of_a_module_swapped_and_back(place, entry, kind):
    """Where inputs are read in place: forward and backward for each of the two places, 4; on the CPU one of each, 2.

    `wrap` is asked without gradients, and has static inputs everywhere: 2.
    """
    torch._dynamo.reset()
    where, parameter = PLACES[place]
    model, twin = Own(parameter).eval(), Own(parameter).eval()
    twin.load_state_dict(model.state_dict())
    owner, name = where(model)
    twin_owner, _name = where(twin)
    values = [getattr(owner, name).detach().clone(), torch.rand_like(getattr(owner, name))]
    tensors = [nn.Parameter(v) if isinstance(getattr(owner, name), nn.Parameter) else v for v in values]
    with GraphContext("cpu", backend=device(kind)) as context:
        f = staticrt.compile(model, graphs=context) if entry == "compile" else context.wrap(model)
        for which in (0, 0, 1, 1, 0, 1, 0):
            setattr(owner, name, tensors[which])
            swap(twin_owner, name, values[which].clone())
            x = torch.randn(4, 3)
            with torch.set_grad_enabled(entry == "compile"):
                got, want = f(x), twin(x)
                torch.testing.assert_close(got, want)
            if entry == "compile":
                model.zero_grad()
                twin.zero_grad()
                got.sum().backward()
                want.sum().backward()
                for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                    torch.testing.assert_close(p.grad, q.grad)
        static = kind == "cpu_copy" and isinstance(tensors[0], nn.Parameter)
        assert context.explain().captures == (4 if entry == "compile" and static else 2)
        assert context.explain().skips == ()
        del f


def test_inputs_named_static_are_neither_copied_nor_captured_again(tree):
    f = tree.wrap(lambda x, table: x * table, static_inputs=("table",))
    table = torch.rand(4)
    for number in range(6):
        table.fill_(number)  # other values, the same place
        x = torch.rand(4)
        assert torch.equal(f(x, table), x * number)
    assert tree.captures == 1
    assert tree.node.copies.indices == (0,)
    assert tree.skips() == 0


@pytest.mark.parametrize("entry", ["compile", "dynamo"])
def test_training_copies_neither_parameters_nor_statistics(entry):
    """On devices that read at fixed places: what a module owns stays where it is, and writes of it are captured."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, twin = Own(True), Own(True)
    twin.load_state_dict(model.state_dict())
    with GraphContext("cpu", backend=device("cpu_copy")) as context:
        f = (
            staticrt.compile(model, graphs=context)
            if entry == "compile"
            else torch.compile(model, backend="staticrt", options={"graphs": context})
        )
        for number in range(8):
            if number == 5:
                for m in (model, twin):
                    m.linear.weight.data = torch.full((3, 3), 0.5)
                    m.norm.running_mean = torch.ones(3)
            x = torch.randn(4, 3)
            got, want = f(x), twin(x)
            torch.testing.assert_close(got, want)
            for m, out in ((model, got), (twin, want)):
                m.zero_grad()
                out.square().sum().backward()
            del got, out
            for p, q in zip(model.parameters(), twin.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
            for p, q in zip(model.buffers(), twin.buffers(), strict=True):
                torch.testing.assert_close(p, q)
            if number == 4:
                report = context.explain()
                forward = report.nodes[0]
                assert report.skips == ()
                assert (report.captures, forward.replays) == (2, 2)
                assert forward.copied_bytes == 3 * x.nbytes
        report = context.explain()
        assert report.skips == ()
        assert report.captures == 4
        del f
