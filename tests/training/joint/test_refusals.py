"""What joint traces leave to graph splits, with a reason, and what they leave behind: nothing."""

import copy
import gc

import pytest
import torch
from torch import nn

from tests.support import run_fresh
from tests.support.joint_traces import fast_calls, joint, joint_calls, notes, same_gradients


def test_calls_without_python_are_as_the_first_ones():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model.double()  # the first bias has no effect: its gradient is rounding alone
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(6, 4).double()
    served = []
    steps = ["plain"] * 4 + [
        "history",
        "history",
        "frozen",
        "plain",
        "other size",
        "other data",
        "plain",
        "no grad",
    ]
    for step in steps:
        for run, owner in ((compiled, model), (eager, eager)):
            owner[0].weight.requires_grad_(step != "frozen")
            owner.found = out = None  # with it go autograd's nodes, which remember sizes
            if step == "other data":  # a weight of other sizes in the same parameter
                gc.collect()  # what a trace leaves to the collector may hold nodes, too
                owner[3].weight.data = torch.ones(3, 8).double()
                owner[3].bias.data = torch.ones(3).double()
                owner[3].weight.grad = owner[3].bias.grad = None
            w = torch.ones(4, dtype=torch.float64, requires_grad=True)
            given = torch.cat([x, x]) if step == "other size" else x * w if step == "history" else x
            with torch.set_grad_enabled(step != "no grad"):
                out = run(given)
            if step != "no grad":
                out.pow(2).sum().backward()
            owner.found = (out, w.grad, [p.grad for p in owner.parameters()])
        torch.testing.assert_close(model.found, eager.found)
        assert model.found[0].requires_grad is eager.found[0].requires_grad
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
        served.append(fast_calls(compiled))
    assert served[3] > 0, "the second calls and later ones need no Python"


def test_running_statistics_and_second_derivatives():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Softplus(), nn.Flatten(), nn.Linear(27, 2)
    )
    model.double()  # the bias before the norm has no effect: its gradient is rounding alone
    eager = copy.deepcopy(model)
    compiled = joint(model)
    for step in range(3):
        x = torch.randn(4 + step, 2, 5, 5).double()
        for run, owner in ((compiled, model), (eager, eager)):
            y = x.clone().requires_grad_()
            (g,) = torch.autograd.grad(run(y).pow(2).sum(), y, create_graph=True)
            g.pow(2).sum().backward()
            owner.found = y.grad
        torch.testing.assert_close(model.found, eager.found)
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
        for p, q in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
    assert joint_calls(compiled) == 3


# -- what goes by graph splits, with a reason --------------------------------------------------------------------------


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 5 * g * ctx.x


def _hooked(x):
    y = x * 2
    y.register_hook(lambda g: 7 * g)
    return y.sin()


def _written(x):
    with torch.no_grad():
        x.add_(1)
    return x * x


def _checkpointed(x):
    return torch.utils.checkpoint.checkpoint(lambda t: t.sin().cos(), x, use_reentrant=True) * x


def _computes_gradients(x):
    with torch.enable_grad():
        y = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((y**3).sum(), y)
    return g * x


REFUSED = {
    "a custom Function": (lambda x: Double.apply(x).sin(), "custom autograd Function"),
    "nothing but views of an input": (lambda x: (x, x.view(-1)), "is an input or a view of one"),
    "a hook on a value": (_hooked, "register_hook"),
    "checkpoint": (_checkpointed, "get_rng_state"),
    "no gradient": (lambda x: x.argmax() + 1, "no result needs a gradient"),
    "what autograd knows of an argument": (lambda x: x * 2 if x.is_leaf else x * 3, "is_leaf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name):
    function, reason = REFUSED[name]
    compiled = joint(function)
    found = []
    for run in (compiled, function):
        torch.manual_seed(0)
        x = torch.randn(3, 4, requires_grad=True)
        outs = run(x)
        outs = outs if isinstance(outs, tuple) else (outs,)
        live = [out for out in outs if out.requires_grad]
        if live:
            sum(out.sum() for out in live).backward()
        found.append((outs, x.grad))
    torch.testing.assert_close(found[0], found[1])
    assert not joint_calls(compiled)
    assert reason in notes(compiled), notes(compiled)


def test_written_arguments_equal_eager():
    compiled = joint(_written)
    found = []
    for run in (compiled, _written):
        w = torch.randn(3, generator=torch.Generator().manual_seed(0), requires_grad=True)
        x = w * 1
        run(x).sum().backward()
        found.append((x.detach(), w.grad))
    torch.testing.assert_close(found[0], found[1])


def test_gradients_computed_inside():
    compiled = joint(_computes_gradients)
    x = torch.randn(4, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)


def test_a_wrong_call_does_not_forbid_a_right_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    compiled = joint(model)
    with pytest.raises(Exception, match=r"shapes cannot be multiplied|must match|mat1"):
        compiled(torch.randn(3, 5))
    x = torch.randn(3, 4)
    compiled(x).sum().backward()
    torch.testing.assert_close(model.weight.grad, x.sum(0).expand(2, 4))
    assert joint_calls(compiled) == 1


def test_nothing_is_left_in_the_model():
    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.last = None

        def forward(self, x):
            self.last = self.lin(x)
            return self.last.sin()

    torch.manual_seed(0)
    model = Keeps()
    eager = copy.deepcopy(model)
    compiled = joint(model)
    x = torch.randn(2, 3)
    for _ in range(3):
        compiled(x).sum().backward()
        eager(x).sum().backward()
        assert type(model.last) is torch.Tensor
        torch.testing.assert_close(model.last, eager.last)
    same_gradients(model, eager)
    assert all(type(p.grad) is torch.Tensor for p in model.parameters())


def test_an_arguments_gradient_that_the_forward_reads_is_the_present_one():
    def function(x):
        return x.sin() * (1.0 if x.grad is None else x.grad.sum())

    compiled = joint(function)
    x = torch.randn(2, 3, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    for step in range(4):
        results = []
        for run, given in ((compiled, x), (function, y)):
            out = run(given)
            out.sum().backward()
            results.append((out, given.grad))
            if step == 2:
                given.grad = None
        torch.testing.assert_close(*results, msg=lambda text, step=step: f"step {step}: {text}")
    assert not joint_calls(compiled)
    assert "may use grad" in notes(compiled)


@pytest.fixture
def one_process():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("reached", ["itself", "in a closure", "as a global"])
def test_distributed_modules_that_are_called_in_a_function_are_left_to_graph_splits(one_process, reached):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    wrapped = nn.parallel.DistributedDataParallel(copy.deepcopy(plain))
    reduced = []

    def hook(state, bucket):
        reduced.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer() * 2)  # seen in the gradients only if the hook runs
        return future

    wrapped.register_comm_hook(None, hook)
    functions = {
        "itself": wrapped,
        "in a closure": lambda x: wrapped(x),
        "as a global": eval("lambda x: wrapped(x)", {"wrapped": wrapped}),
    }
    compiled = joint(functions[reached])
    for calls in (1, 2):
        x = torch.randn(3, 4, requires_grad=True)
        wrapped.zero_grad()
        plain.zero_grad()
        compiled(x).sum().backward()
        plain(x).sum().backward()
        assert len(reduced) == calls
        for own, expected in zip(wrapped.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(own.grad, expected.grad * 2)
    if reached == "itself":  # its model is traced, not it
        assert joint_calls(compiled) == 2
    else:
        assert not joint_calls(compiled)
        assert "DistributedDataParallel" in notes(compiled)


# -- what a first call costs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        ("cases.mlp()", (4, 12)),
        ("cases.Cnn()", (4, 192)),
        ("cases.Lstm()", (4, 24)),
        ("nn.LSTM(4, 8, batch_first=True)", (2, 3, 4)),
        ("lambda x: nn.functional.l1_loss(x, x.sin().sum(0, keepdim=True))", (5, 3)),
        ("cases.every_loss", (5, 3)),
        ("lambda x: torch.broadcast_tensors(x, x[:1].sin())[1]", (5, 3)),
        ("lambda x: x.clone().masked_fill_(x > 1, 0.5).index_put_([x < 0], torch.tensor(0.0))", (5, 3)),
    ],
)
def test_a_first_training_call_loads_neither_dynamo_nor_sympy(made, sizes):
    code = f"""
        import sys, torch, staticrt
        from torch import nn
        from torch.utils._pytree import tree_leaves
        from tests.support import training_cases as cases
        model = staticrt.compile({made}, joint_trace=True)
        tree_leaves(model(torch.randn({sizes}, requires_grad=True)))[0].sum().backward()
        assert not model.explain().notes, model.explain()
        print([m for m in ("sympy", "torch._dynamo", "torch._functorch.aot_autograd") if m in sys.modules])
    """
    done = run_fresh(code)
    assert done.stdout.split() == ["[]"]
