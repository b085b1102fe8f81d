"""Calls that need gradients and that eager runs, since neither a joint trace nor Dynamo would do as eager does."""

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

import staticrt
import staticrt.training.optim
from tests.support.compilers import each_compiler
from tests.support.joint_traces import joint_calls


class Both(torch.autograd.Function):
    """Asks for gradients as they are: None where no result was used."""

    @staticmethod
    def forward(x, y, n):
        return x * y, x + n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y, ctx.n = inputs
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, g, h):
        x, y = ctx.saved_tensors
        gradient = None if g is None else g * y
        if h is not None:
            gradient = h * ctx.n if gradient is None else gradient + h
        return gradient, None if g is None else g * x, None


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x  # wrong on purpose: it must be this one that is differentiated


class Once(Square):
    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


def _first(x, y):
    return Both.apply(x, y, 4)[0].sin()


def _second(x, y):
    return Both.apply(x, y, 4)[1]


def _all(x, y):
    return Both.apply(x, y, 4)


def _among_views(x, y):
    return Both.apply(x, y, 4)[1], x.view(-1)  # of which a joint trace makes no results


def _found(run, calls=3):
    found = []
    for call in range(calls):
        torch.manual_seed(call)
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        outs = run(x, y)
        sum(out.sum() for out in (outs if isinstance(outs, tuple) else (outs,))).backward()
        found.append((outs, x.grad, y.grad))
    return found


@pytest.mark.parametrize("function", [_first, _second, _all, _among_views])
def test_gradients_that_stay_none_in_a_custom_function(function):
    compiled = staticrt.compile(function)
    got, want = _found(compiled), _found(function)
    torch.testing.assert_close(got, want)
    assert [[g is None for g in call[1:]] for call in got] == [[g is None for g in call[1:]] for call in want]


def _twice(function):
    torch.manual_seed(0)
    x = torch.randn(3, requires_grad=True)
    try:
        (slope,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        slope.pow(2).sum().backward()
    except RuntimeError as error:
        return str(error)
    return slope.detach(), x.grad


@pytest.mark.parametrize("cls", [Square, Once])
def test_second_derivatives_of_custom_functions(cls):
    for function in (cls.apply, lambda x: cls.apply(x).sin(), lambda x: cls.apply(x.sin()) * x):
        got, want = _twice(staticrt.compile(lambda x, function=function: function(x))), _twice(function)
        assert isinstance(got, str) == isinstance(want, str)
        if isinstance(want, str):
            assert got == want
        else:
            torch.testing.assert_close(got, want)


def test_dynamos_records_of_custom_functions_are_not_differentiated_twice():
    """Dynamo loses what the gradient depends on by saved tensors: no answer is better than a wrong one."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: Square.apply(x.sin()) * x, backend="staticrt")
    assert "cannot differentiate" in _twice(compiled)
    assert "custom autograd Function" in _twice(compiled)
    x = torch.randn(3, requires_grad=True)
    compiled(x).sum().backward()
    s = x.detach().sin()
    torch.testing.assert_close(x.grad, s * s + 3 * s * x.detach().cos() * x.detach())


def test_anomaly_mode_names_the_operator():
    compiled = staticrt.compile(torch.sqrt)
    x = torch.zeros(2, requires_grad=True)
    for anomaly in (False, True, False):
        with torch.autograd.set_detect_anomaly(anomaly):
            out = (compiled(x) * 0).sum()
            if anomaly:
                with (
                    pytest.warns(UserWarning, match="Error detected in SqrtBackward0"),
                    pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan"),
                ):
                    out.backward()
            else:
                out.backward()
    assert joint_calls(compiled) == 2
    assert any("anomaly mode" in item.reason for item in compiled.explain().eager)


def test_a_wrong_call_raises_as_in_eager_and_leaves_dynamo_out():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    compiled = staticrt.compile(model)
    for wrong in (torch.randn(3, 5), torch.randn(4), torch.randn(3, 5), torch.randn(3, 4).double()):
        with pytest.raises(Exception) as want:  # noqa: PT011 - eager's own
            model(wrong)
        with pytest.raises(type(want.value)) as got:
            compiled(wrong)
        assert str(got.value) == str(want.value)
        compiled(torch.randn(3, 4)).sum().backward()
    assert joint_calls(compiled) >= 4  # a call that raises when it runs counts
    assert compiled._executor._splits.regions == []


def test_state_that_the_first_call_makes_costs_no_second_compiler():
    class Decides(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.kind = nn.Linear(4, 2), None

        def forward(self, x):
            if self.kind is None:
                self.kind = "regression"
            return self.lin(x)

    torch.manual_seed(0)
    model = Decides()
    compiled = staticrt.compile(model)
    x = torch.randn(3, 4)
    for _call in range(4):
        compiled(x).sum().backward()
    torch.testing.assert_close(model.lin.weight.grad, 4 * x.sum(0).expand(2, 4))
    assert model.kind == "regression"
    assert joint_calls(compiled) == 3
    assert compiled._executor._splits.regions == []


def test_what_only_fake_tensors_refuse_is_left_to_graph_splits_in_the_end():
    def function(x):
        if type(x) is not torch.Tensor:
            raise ValueError("no plain tensor")
        return x.sin()

    compiled = staticrt.compile(function)
    for _call in range(5):
        x = torch.randn(3, requires_grad=True)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


@each_compiler
def test_a_first_call_that_aotautograd_watches(compiler):
    """Its check of custom operators' aliases hands on a number where remainder's out variant takes a tensor."""

    def function(x, i):
        return x.gather(1, i[:, None].expand(-1, 2) % 3), x.view(-1)

    torch._dynamo.reset()
    compiled = compiler(function)
    for _call in range(2):
        x = torch.randn(4, 3, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        i = torch.tensor([1, 5])
        got, want = compiled(x, i), function(y, i)
        torch.testing.assert_close(got, want)
        (got[0].sum() + got[1].pow(2).sum()).backward()
        (want[0].sum() + want[1].pow(2).sum()).backward()
        torch.testing.assert_close(x.grad, y.grad)


def broadcast_by_data(rows, counted):
    """The sum is broadcast where data counts to one row."""
    n = torch.bincount(counted)
    return (1 - n[: n.shape[0] // 2])[:, None] + rows


COUNTED = ([0, 2, 1, 0], [0, 3, 1, 0], [0, 1, 3, 0], [0, 1, 2, 0])  # 1, 2, 2 and 1 rows


@pytest.mark.parametrize("first", [0, 1])
def test_data_that_decides_whether_a_sum_is_broadcast(first):
    compiled = staticrt.compile(broadcast_by_data)
    for counted in COUNTED[first:]:
        gradients = []
        for run in (compiled, broadcast_by_data):
            rows = torch.ones(2, 3, requires_grad=True)
            result = run(rows, torch.tensor(counted))
            result.square().sum().backward()
            gradients.append((result.detach(), rows.grad))
        torch.testing.assert_close(*gradients)
    (eager,) = compiled.explain().eager
    assert eager.reason == "data took another branch than in the trace"
    assert eager.calls == 2 - first


@pytest.mark.parametrize("first", [0, 1])
def test_data_that_decides_whether_a_sum_in_a_step_is_broadcast(first):
    weights = [torch.ones(2, 3, requires_grad=True) for _ in range(2)]
    steps = []
    for weight in weights:
        optimizer = staticrt.training.optim.SGD([weight], lr=0.1, momentum=0.9)

        def step(counted, weight=weight, optimizer=optimizer):
            loss = broadcast_by_data(weight, counted).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        steps.append(step)
    compiled = staticrt.compile_step(steps[0])
    for counted in COUNTED[first:]:
        torch.testing.assert_close(compiled(torch.tensor(counted)), steps[1](torch.tensor(counted)))
        torch.testing.assert_close(*weights)
    assert compiled.explain().traces


def test_data_that_decides_after_a_step_wrote_its_weights():
    layer = nn.Linear(3, 3)
    optimizer = staticrt.training.optim.SGD(layer.parameters(), lr=0.01)

    def step(x, counted):
        nn.functional.dropout(layer(x)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return broadcast_by_data(nn.functional.dropout(x), counted).sum()

    compiled = staticrt.compile_step(step)
    with pytest.warns(UserWarning, match="a branch that data decides, after a write"):
        compiled(torch.ones(2, 3), torch.tensor(COUNTED[0]))


def test_rows_of_one_mask_are_served_by_the_trace():
    layer = nn.Linear(3, 3)
    compiled = staticrt.compile(lambda x, y, mask: (layer(x)[mask] * y[mask]).sum())
    for mask in ([1, 0, 1, 1], [0, 0, 1, 0], [0, 0, 0, 0]):
        x, y, mask = torch.randn(4, 3), torch.randn(4, 3), torch.tensor(mask).bool()
        layer.zero_grad()
        compiled(x, y, mask).backward()
        ours = layer.weight.grad
        layer.zero_grad()
        (layer(x)[mask] * y[mask]).sum().backward()
        torch.testing.assert_close(ours, layer.weight.grad)
    assert not compiled.explain().eager
    assert [trace.calls for trace in compiled.explain().traces] == [3]


@pytest.mark.parametrize("way", ["compile", "step"])
def test_a_transform_of_torch_func_in_the_model_is_named(way):
    layer = nn.Linear(3, 3)

    class Jacobian(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return torch.func.jacrev(lambda t: self.layer(t).sin())(x)

    model = Jacobian()

    def step(run, x):
        layer.zero_grad()
        run(x).square().sum().backward()
        return layer.weight.grad.clone()

    x = torch.randn(3)
    want = step(model, x)
    run = staticrt.compile(model) if way == "compile" else staticrt.compile_step(lambda x: step(model, x))
    for _ in range(2):
        torch.testing.assert_close(step(run, x) if way == "compile" else run(x), want)
    told = str(run.explain())
    assert "the model calls a transform of torch.func, which is not recorded with gradients" in told
    assert "INTERNAL ASSERT" not in told
