"""Results that are computed from other results of the same call, as a loss beside its logits.

Gradients, hooks, `retain_grad()` and `autograd.grad` of the ones see what comes through the others, as in eager.
"""

import copy
import itertools

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import staticrt
from staticrt.executor import joint_calls
from tests.support.threads import in_threads


class Chain(torch.nn.Module):
    """Results of `compute`, which calls two linear layers."""

    def __init__(self, compute):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.compute = compute

    def forward(self, x):
        return self.compute(self, x)


def loss_and_logits(m, x):
    logits = m.second(torch.relu(m.first(x)))
    return {"loss": F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)), "logits": logits}


def hidden_states(m, x):
    states = [x * 2]
    for layer in (m.first, m.second, m.first, m.second):
        states.append(torch.tanh(layer(states[-1])))
    return *states, states[-1].square().mean()


def around_the_other(m, x):
    """The loss reads what the other result is computed from, too."""
    h = m.first(x).sin()
    logits = m.second(h)
    return logits, (logits * h).sum() + h.pow(3).mean()


def read_often(m, x):
    h = m.first(x)
    return h, (h * 3).sum() + h.exp().mean() * h.sin().sum() - h.relu().sum()


def two_pairs(m, x):
    a, c = m.first(x).sin(), m.second(x).cos()
    return a, a.square().sum(), c, c.pow(3)


def as_it_is(m, x):
    h = x + m.first.bias
    return h, h + m.second.bias, (h + m.second.bias).sum()


def views(m, x):
    h = m.first(x).sin()
    return h.t(), h.view(-1)[2:], h.square().sum()


def detached(m, x):
    h = m.first(x).sin()
    return h, m.second(h.detach()).sum(), h.detach()


def written(m, x):
    h = m.first(x).sin()
    loss = h.sum() * 3
    h.mul_(2)
    return h, loss, h.sum()


def in_training_mode(m, x):
    h = F.dropout(m.norm(m.first(x)), 0.3)
    return h, F.dropout(m.second(h), 0.3).square().mean()


def checkpointed(m, x):
    h = checkpoint(lambda v: m.first(v).sin().exp(), x, use_reentrant=False)
    return h, checkpoint(lambda v: m.second(v).cos() * v, h, use_reentrant=False).mean()


def complex_numbers(m, x):
    z = torch.complex(m.first(x), m.second(x))
    return z, (z * z.conj()).real.sum(), torch.view_as_real(z * 1j).sin()


def maximum(m, x):
    value, index = m.first(x).max(dim=1)
    return value, index, value.square().sum(), m.second(x).max()


def images(m, x):
    h = F.conv2d(
        x.view(1, len(x), 2, 3).expand(2, -1, -1, -1),
        m.first.weight[:, :1, None, None].expand(-1, len(x), -1, -1),
    )
    return h.contiguous(memory_format=torch.channels_last), h.square().mean()


CHAINS = [
    loss_and_logits, hidden_states, around_the_other, read_often, two_pairs, as_it_is, views, detached, written,
    in_training_mode, checkpointed, complex_numbers, maximum, images,
]  # fmt: skip


def differentiable(results):
    values = results.values() if isinstance(results, dict) else results
    return [value for value in values if value.requires_grad]


def seeds(results):
    torch.manual_seed(2)
    return [torch.randn_like(value) for value in results]


def last(results, model, x):
    results[-1].backward(seeds(results)[-1])
    return []


def first(results, model, x):
    results[0].backward(seeds(results)[0])
    return []


def all_of_them(results, model, x):
    torch.autograd.backward(results, seeds(results))
    return []


def watched(results):
    """The gradients that the hooks of each result see from now on."""
    seen = [[] for _value in results]
    for value, gradients in zip(results, seen, strict=True):
        value.register_hook(lambda g, gradients=gradients: None if g is None else gradients.append(g.clone()))
        value.retain_grad()
    return seen


def hooks(results, model, x):
    seen = watched(results)
    torch.autograd.backward(results, seeds(results))
    return [*itertools.chain(*seen), str(list(map(len, seen))), *(value.grad for value in results)]


def hooks_of_the_last(results, model, x):
    seen = watched(results)
    results[-1].abs().sum().backward()
    return [*itertools.chain(*seen), str(list(map(len, seen))), *(value.grad for value in results)]


def changing_hooks(results, model, x):
    for value in results:
        value.register_hook(lambda gradient: gradient.cos() if not gradient.is_complex() else gradient * 1j)
    torch.autograd.backward(results, seeds(results))
    return []


def of_results(results, model, x):
    return torch.autograd.grad(results[-1], results[:-1], seeds(results)[-1], allow_unused=True)


def of_one_parameter_and_a_result(results, model, x):
    wanted = [model.second.bias, results[0]]
    return torch.autograd.grad(results, wanted, seeds(results), allow_unused=True)


def to_chosen_leaves(results, model, x):
    results[0].retain_grad()
    torch.autograd.backward(results, seeds(results), inputs=[model.first.bias])
    return [results[0].grad]


def one_after_the_other(results, model, x):
    for value, seed in zip(results, seeds(results), strict=True):
        value.backward(seed, retain_graph=True)
    return []


def twice_without_keeping(results, model, x):
    found = []
    for value, seed in zip(reversed(results), reversed(seeds(results)), strict=True):
        try:
            value.backward(seed)
        except RuntimeError as error:
            found.append(str(error))
    return found


def penalty(results, model, x):
    gradients = torch.autograd.grad(
        results, [x, *results], seeds(results), create_graph=True, allow_unused=True
    )
    total = sum(g.abs().square().sum() for g in gradients if g is not None and g.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    return list(gradients)


def third_derivatives(results, model, x):
    value = results[-1]
    for _ in range(3):
        value = value.abs().square().sum() if value.is_complex() else value.square().sum()
        (value,) = torch.autograd.grad(value, x, create_graph=True, allow_unused=True)
        if value is None:
            break
    return [value]


def many_at_once(results, model, x):
    batched = [torch.stack([seed, 2 * seed, seed.sin()]) for seed in seeds(results)]
    return torch.autograd.grad(
        results, [x, *results[:1]], batched, is_grads_batched=True, allow_unused=True, retain_graph=True
    )


def written_afterwards(results, model, x):
    with torch.no_grad():
        results[0].mul_(3)
    try:
        results[-1].backward(seeds(results)[-1])
    except RuntimeError as error:
        return [str(error).split(":")[0]]
    return []


def expanded(results, model, x):
    sum(value.abs().sum() for value in results).backward()
    return []


SCENARIOS = [
    last, first, all_of_them, hooks, hooks_of_the_last, changing_hooks, of_results, of_one_parameter_and_a_result,
    to_chosen_leaves, one_after_the_other, twice_without_keeping, penalty, third_derivatives, many_at_once,
    written_afterwards, expanded,
]  # fmt: skip


def outcome(call, model, scenario, rows):
    """What a scenario sees of a call, and the gradients that it leaves."""
    torch.manual_seed(rows)
    x = torch.randn(rows, 6, dtype=torch.double, requires_grad=True)
    results = differentiable(call(x))
    found = scenario(results, model, x)
    leaves = [x, *model.parameters()]
    gradients = [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    model.zero_grad()
    return [*results, *found, *gradients]


def compare(fast, ours, theirs, scenario, rows):
    got, expected = outcome(fast, ours, scenario, rows), outcome(theirs, theirs, scenario, rows)
    where = f"{scenario.__name__}, {rows} rows"
    for found, wanted in itertools.zip_longest(got, expected):
        if isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor):
            torch.testing.assert_close(found, wanted, msg=lambda text: f"{where}: {text}")
        else:
            assert found == wanted, where


@pytest.mark.parametrize("compute", CHAINS, ids=lambda f: f.__name__)
def test_gradients_of_results_that_others_are_computed_from(compute):
    torch.manual_seed(0)
    ours = Chain(compute).double()
    theirs = copy.deepcopy(ours)
    fast = staticrt.compile(ours, fullgraph=True)
    for scenario in SCENARIOS:
        for rows in (4, 5, 4):
            compare(fast, ours, theirs, scenario, rows)
    assert "joint trace" in str(fast.explain()), fast.explain()


@pytest.mark.parametrize("compute", CHAINS, ids=lambda f: f.__name__)
def test_cut_after_every_gradient_too(compute, monkeypatch):
    """As under `DistributedDataParallel` with small buckets."""
    monkeypatch.setattr(joint_calls, "bucket_limits", lambda: (1,))
    test_gradients_of_results_that_others_are_computed_from(compute)


def test_each_result_in_a_row_has_a_node_of_its_own():
    fast = staticrt.compile(Chain(hidden_states), fullgraph=True)
    results = fast(torch.randn(4, 6))
    assert len({value.grad_fn for value in results if value.requires_grad}) == 5
    fast = staticrt.compile(Chain(detached), fullgraph=True)
    fast(torch.randn(4, 6))
    assert "segments" not in str(fast.explain())  # neither is computed from the other


def test_a_hook_of_a_result_without_gradient_is_not_called():
    """The two results have no node in common in eager."""
    fast = staticrt.compile(Chain(lambda m, x: (m.first(x).sin(), m.second(x).cos())), fullgraph=True)
    one, other = fast(torch.randn(4, 6))
    seen = []
    one.register_hook(lambda gradient: seen.append("one"))
    other.register_hook(lambda gradient: seen.append("other"))
    other.sum().backward()
    assert seen == ["other"]


def test_a_kept_graph_runs_in_threads():
    fast = staticrt.compile(Chain(hidden_states).double(), fullgraph=True)
    x = torch.randn(4, 6, dtype=torch.double, requires_grad=True)
    *states, loss = fast(x)
    (expected,) = torch.autograd.grad(loss, x, retain_graph=True)

    def work(_number):
        for create_graph in (False, True, False):
            found = torch.autograd.grad(loss, [x, *states[1:]], retain_graph=True, create_graph=create_graph)
            torch.testing.assert_close(found[0], expected)

    in_threads(work, range(4))


def test_results_and_their_graph_are_freed():
    fast = staticrt.compile(Chain(hidden_states), fullgraph=True)
    for use in (
        lambda loss, x: loss.backward(),
        lambda loss, x: torch.autograd.grad(loss, x, create_graph=True),
    ):
        x = torch.randn(4, 6, requires_grad=True)
        *states, loss = fast(x)
        storages = [StorageWeakRef(value.untyped_storage()) for value in (*states, loss)]
        use(loss, x)
        del states, loss, x
        assert all(each.expired() for each in storages)
