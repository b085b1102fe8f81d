"""Branches that data decides in calls that need gradients: each branch has a joint trace, up to four."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import staticrt


class Branches(nn.Module):
    """Applies its layer as often as `count` says, with dropout in between."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, count):
        for _ in range(4):
            if bool(count > 0):
                x = nn.functional.dropout(torch.tanh(self.layer(x)), 0.25)
            count = count - 1
        return x


class Sign(nn.Module):
    """Calls `positive` where the sum of `x` is positive, else `negative`; both get the layer's result."""

    def __init__(self, positive, negative):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.positive, self.negative = positive, negative

    def forward(self, x):
        h = self.layer(x)
        return self.positive(h) if bool(x.sum() > 0) else self.negative(h)


class Warm(nn.Module):
    """Behaves otherwise once its buffer has counted two calls."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) * (0.5 if bool(self.calls <= 2) else 2.0)


def trained(model, run, batches):
    """Results, gradients and buffers of one backward per batch."""
    told = []
    for number, batch in enumerate(batches):
        torch.manual_seed(number)
        model.zero_grad()
        result = run(*batch)
        if result.requires_grad:
            result.square().sum().backward()
        told.append((result.detach(), result.requires_grad))
        told.append([p.grad if p.grad is None else p.grad.clone() for p in model.parameters()])
        told.append([each.clone() for each in model.buffers()])
        told.append(torch.get_rng_state())
    return told


def equal_eager(model, batches):
    """Compare with eager, in float64; returns the explanation."""
    model = model.double()
    own = copy.deepcopy(model)
    batches = [[each.double() if each.is_floating_point() else each for each in batch] for batch in batches]
    compiled = staticrt.compile(own)
    torch.testing.assert_close(trained(own, compiled, batches), trained(model, model, batches))
    return compiled.explain()


def signed(*signs):
    return [(sign * torch.rand(3, 4),) for sign in signs]


def test_each_branch_has_a_trace():
    told = equal_eager(Sign(torch.sin, torch.exp), signed(1, 1, -1, 1, -1, -1))
    assert not told.eager
    assert [trace.route for trace in told.traces] == ["training", "training"]
    # Two calls tried the other one first, in C++ and then in Python.
    assert sorted(trace.calls for trace in told.traces) == [4, 6]


@pytest.mark.parametrize("requires_grad", [True, False])
def test_known_branches_need_no_python(requires_grad):
    model = Sign(torch.sin, torch.exp).requires_grad_(requires_grad)
    compiled = staticrt.compile(copy.deepcopy(model))
    before = 0
    for step, (x,) in enumerate(signed(*[1, -1] * 6)):
        if step == 8:
            before = compiled.__inspectable__().fast_calls
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.__inspectable__().fast_calls == before + 4


def test_branches_keep_their_traces_for_other_sizes():
    batches = [(sign * torch.rand(rows, 4),) for rows in (3, 5, 6, 2) for sign in (1, -1)]
    told = equal_eager(Sign(torch.sin, torch.exp), batches)
    assert not told.eager
    assert len(told.traces) == 4


@pytest.mark.parametrize("fifth", [False, True])
def test_a_fifth_branch_ends_the_traces_of_branches(fifth):
    counts = (1, 2, 3, 4, 2, 4, *([0] if fifth else []), 1, 3)
    told = equal_eager(Branches(), [(torch.rand(3, 4), torch.tensor(count)) for count in counts])
    assert ("not traced with its backward: a boolean that data decides" in str(told)) == fifth
    assert sum("joint trace" in str(trace) for trace in told.traces) == (0 if fifth else 4)


def test_invalid_arguments_of_a_distribution_raise_as_in_eager():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, action):
            return torch.distributions.Categorical(logits=self.layer(x)).log_prob(action)

    model = Policy().double()
    actions = torch.tensor([0, 2, 1])
    told = equal_eager(model, [(torch.rand(3, 4), actions) for _ in range(3)])
    assert not told.eager
    assert len(told.traces) == 1
    compiled = staticrt.compile(model)
    for _ in range(2):
        compiled(torch.rand(3, 4).double(), actions).sum().backward()
        with pytest.raises(ValueError, match="within the support"):
            compiled(torch.rand(3, 4).double(), actions + 1)
    compiled(torch.rand(3, 4).double(), actions).sum().backward()


def test_a_branch_may_read_what_the_model_counts():
    told = equal_eager(Warm(), signed(1, 1, 1, 1))
    assert not told.eager
    assert len(told.traces) == 2


def test_data_may_decide_whether_a_result_needs_a_gradient():
    for signs in ((1, -1, 1, -1), (-1, 1, -1, 1)):
        equal_eager(Sign(torch.sin, torch.Tensor.detach), signed(*signs))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _reads_saved(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * x.cos() if (x.sum() > 0).item() else gradient


def _reads_gradient(ctx, gradient):
    (x,) = ctx.saved_tensors
    return gradient * x.cos() if (gradient.sum() > 0).item() else gradient


@pytest.mark.parametrize("backward", [_reads_saved, _reads_gradient])
def test_a_backward_that_reads_data_is_not_traced(backward):
    """No check before the forward tells what a backward would find."""
    with torch.library._scoped_library("staticrt_decisions", "FRAGMENT") as library:
        library.define("branches(Tensor x) -> Tensor")
        library.impl("branches", torch.sin, "CPU")
        torch.library.register_fake("staticrt_decisions::branches", torch.empty_like, lib=library)
        torch.library.register_autograd(
            "staticrt_decisions::branches",
            backward,
            setup_context=_save,
            lib=library,
        )
        model = Sign(torch.ops.staticrt_decisions.branches, torch.sin)
        told = equal_eager(model, signed(1, 1, -1, 1, -1))
        assert "data decides" in str(told)


def test_second_derivatives_follow_the_branch_of_their_call():
    model = Sign(torch.sin, torch.exp)
    compiled = staticrt.compile(model)
    for (x,) in signed(1, -1, 1, -1):
        found = []
        for run in (compiled, model):
            leaf = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(run(leaf).sum(), leaf, create_graph=True)
            found.append(torch.autograd.grad(gradient.square().sum(), (leaf, model.layer.weight)))
        torch.testing.assert_close(*found)


def test_a_checkpointed_part_may_have_branches():
    def part(h):
        return torch.exp(h.sin()) if bool(h.detach().sum() > 0) else torch.cos(h.exp())

    def parts(h):
        return checkpoint(part, h, use_reentrant=False)

    equal_eager(Sign(parts, parts), signed(1, -1, 1, -1))


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(4), nn.BatchNorm1d(4, momentum=None), nn.LazyBatchNorm1d()])
def test_a_decision_about_normalized_values_updates_statistics_once(norm):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(4, 4), norm

        def forward(self, x):
            h = self.norm(self.layer(x))
            return h.sin() if bool(h[0, 0] > 0) else h.exp()

    model = Normalized()
    model(torch.rand(3, 4))
    equal_eager(model, [(torch.randn(3, 4),) for _ in range(6)])


def test_in_place_writes_before_a_branch():
    def positive(h):
        h = h.clone()
        h[0] += 1
        return h.mul_(2) if bool(h.sum() > 5) else h.exp_()

    equal_eager(Sign(positive, positive), [(torch.randn(3, 4) * 3,) for _ in range(6)])


def test_numbers_that_data_decides_in_forward_and_backward():
    def scaled(h):
        scale = h.detach().abs().max().item()
        return h / scale if scale > 0.5 else h * scale

    equal_eager(Sign(scaled, scaled), [(torch.randn(3, 4) * s,) for s in (0.1, 3, 0.01, 2)])


def test_a_step_of_an_optimizer_between_calls():
    model = Sign(torch.sin, torch.exp)
    eager = copy.deepcopy(model)
    compiled = staticrt.compile(model)
    pairs = [
        (run, torch.optim.AdamW(own.parameters(), lr=0.1)) for run, own in ((compiled, model), (eager, eager))
    ]
    for number in range(8):
        torch.manual_seed(number)
        x = torch.randn(3 + number // 4, 4)
        for run, optimizer in pairs:
            optimizer.zero_grad()
            run(x).square().sum().backward()
            optimizer.step()
        torch.testing.assert_close(model.state_dict(), eager.state_dict())
