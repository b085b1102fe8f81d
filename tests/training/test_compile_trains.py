"""`staticrt.compile` of what needs gradients: compiled, and equal to eager."""

import copy

import pytest
import torch
from torch import nn

import staticrt
from staticrt.errors import TraceError

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


def _net():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))


def _train(run, model, steps=6, sizes=(5,)):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(steps):
        torch.manual_seed(step)
        x, y = torch.randn(sizes[step % len(sizes)], 8), torch.randn(sizes[step % len(sizes)], 3)
        loss = (run(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_mode():
    mine, theirs = (net := _net()), copy.deepcopy(net)
    compiled = staticrt.compile(mine)
    assert _train(compiled, mine, sizes=(5, 9)) == pytest.approx(
        _train(theirs, theirs, sizes=(5, 9)), rel=1e-4
    )
    for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    explanation = compiled.explain()
    assert not explanation.eager
    assert {report.route for report in explanation.traces} == {"training"}
    assert {kind for report in explanation.traces for kind, _count in report.kinds} == {
        "forward",
        "backward",
    }
    assert sum(report.calls for report in explanation.traces) == 6
    assert "training" in str(explanation)


def test_train_and_eval_in_turn():
    mine, theirs = (net := _net()), copy.deepcopy(net)
    compiled = staticrt.compile(mine)
    for _round in range(2):
        compiled.train()
        theirs.train()
        assert _train(compiled, mine, 3) == pytest.approx(_train(theirs, theirs, 3), rel=1e-4)
        compiled.eval()
        theirs.eval()
        with torch.no_grad():
            x = torch.randn(4, 8)
            torch.testing.assert_close(compiled(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_function_over_a_model_that_it_closes_over():
    net = nn.Linear(4, 1)
    compiled = staticrt.compile(lambda x: net(x).square().sum())
    for call in range(3):
        x = torch.randn(2 + call, 4)
        got = torch.autograd.grad(compiled(x), list(net.parameters()))
        want = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
        torch.testing.assert_close(got, want)


def test_inputs_that_need_gradients():
    compiled = staticrt.compile(lambda x, y: (x * y).sin())
    for call in range(4):
        x, y = torch.randn(3 + call, requires_grad=True), torch.randn(3 + call)
        (first,) = torch.autograd.grad(compiled(x, y).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(first, y * (x * y).cos())
        torch.testing.assert_close(second, -y * y * (x * y).sin())


def test_python_between_compiled_parts():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.seen = []

        def forward(self, x):
            y = self.first(x).tanh()
            self.seen.append(float(y.sum()))
            return self.second(y)

    mine, theirs = (model := Model()), copy.deepcopy(model)
    compiled = staticrt.compile(mine)
    for _call in range(5):
        x = torch.randn(2, 4)
        compiled(x).sum().backward()
        theirs(x).sum().backward()
    assert mine.seen == pytest.approx(theirs.seen)
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    explanation = compiled.explain()
    assert "graph break" in [each.what for each in explanation.eager]


def test_hooks_of_the_module():
    mine, theirs = (net := nn.Linear(3, 3)), copy.deepcopy(net)
    for net in (mine, theirs):
        net.register_forward_hook(lambda _m, _args, out: out * 2)
        net.register_full_backward_hook(
            lambda _m, grads, _outs: tuple(None if g is None else g * 3 for g in grads)
        )
        net.weight.register_hook(lambda grad: grad + 1)
    compiled = staticrt.compile(mine)
    for run in (compiled, theirs):
        x = torch.ones(2, 3, requires_grad=True)
        run(x * 1).sum().backward()
    torch.testing.assert_close(mine.weight.grad, theirs.weight.grad)


def test_option_off():
    net = nn.Linear(3, 3)
    compiled = staticrt.compile(net, training=False)
    compiled(torch.ones(1, 3)).sum().backward()
    (report,) = compiled.explain().eager
    assert report.reason == "the call needs gradients"


def test_whole_or_not_at_all():
    def function(x):
        torch._dynamo.graph_break()
        return x * 2

    with pytest.raises(TraceError):
        staticrt.compile(function, fullgraph=True, joint_trace=False)(torch.ones(2, requires_grad=True))


def test_what_the_model_raises():
    def function(x):
        if x.shape[0] > 3:
            raise ValueError("too long")
        return x * 2

    compiled = staticrt.compile(function)
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    with pytest.raises(ValueError, match="too long"):
        compiled(torch.ones(5, requires_grad=True))
    compiled(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LSTM(4, 6, 2, batch_first=True),
        lambda: nn.LSTM(4, 6, bidirectional=True),
        lambda: nn.LSTM(4, 6, proj_size=3),
        lambda: nn.GRU(4, 6, 2),
    ],
    ids=["lstm", "both-directions", "projected", "gru"],
)
def test_recurrent_layers_train_on_data_that_needs_no_gradients(make, graphs):
    """torch's layer of an LSTM makes the workspace of its backward only while gradients are on."""
    mine, theirs = (net := make()), copy.deepcopy(net)
    run = staticrt.compile(mine, graphs=graphs)
    for step in range(4):
        x = torch.randn(3, 5, 4)
        for model, call in ((mine, run), (theirs, theirs)):
            model.train(step != 2)
            model.zero_grad()
            call(x)[0].square().sum().backward()
        for p, q in zip(mine.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert not run.explain().eager


class _Tagged(torch.Tensor):
    """A class of tensors without behaviour of its own."""


@pytest.mark.parametrize(
    "argument",
    [
        lambda x: x.to_sparse(),
        lambda x: torch.complex(x, x).conj(),
        lambda x: torch.complex(x, x).imag,
        lambda x: x.numpy(),
        lambda x: [x, {"other": x}],
        lambda x: x.as_subclass(_Tagged),
        lambda x: torch.nn.Parameter(x.double(), requires_grad=False),
    ],
    ids=["sparse", "conjugate", "imaginary part", "numpy", "containers", "subclass", "another dtype"],
)
def test_arguments_of_all_kinds(argument):
    weight = nn.Parameter(torch.randn(3, 3))

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x, *, scale=1):
            if isinstance(x, list):
                x = x[0] + x[1]["other"]
            x = torch.as_tensor(x)
            return torch.mm(x, self.weight.to(x.dtype)).abs() * scale

    model = Product()
    compiled = staticrt.compile(model)
    for scale in (1, 1, 2):
        results = []
        for run in (compiled, model):
            weight.grad = None
            out = run(argument(torch.eye(3) + 1), scale=scale)
            out.sum().backward()
            results.append((out.detach(), weight.grad))
        torch.testing.assert_close(*results)
        assert type(results[0][0]) is type(results[1][0])
