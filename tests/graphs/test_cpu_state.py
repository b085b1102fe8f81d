"""What CPU graphs write, find elsewhere, keep, and draw."""

import pytest
import torch
from torch import nn

from tests.support.graph_harness import Captured, check


def test_in_place_operators_write_the_tensor_of_the_replay():
    def f(a, b):
        a.add_(1).mul_(b)
        b[1:].zero_()
        return a.sum()

    a, b = torch.randn(5), torch.randn(5)
    a2, b2 = a.clone(), b.clone()
    captured = Captured(f, a, b)
    assert torch.equal(captured.outputs[0], f(a2, b2))
    assert torch.equal(a, a2)
    assert torch.equal(b, b2)
    assert captured.graph.written_inputs == [0, 1]
    c, d = torch.randn(5), torch.randn(5)
    c2, d2 = c.clone(), d.clone()
    version = c._version
    assert torch.equal(captured(c, d)[0], f(c2, d2))
    assert torch.equal(c, c2)
    assert torch.equal(d, d2)
    assert torch.equal(a, a2)  # the capture's inputs are nobody's any more
    assert c._version > version


def test_a_replay_into_a_saved_tensor_is_noticed_by_autograd():
    w = torch.randn(3, requires_grad=True)
    x = torch.randn(3)
    captured = Captured(lambda a: a.mul_(2), x)
    loss = (w * x).sum()
    captured.graph.replay([x])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_tensors_found_elsewhere_are_used_where_they_are():
    scale, counter = torch.tensor(3.0), torch.zeros(())

    def f(a):
        counter.add_(1)
        return a * scale

    x = torch.randn(4)
    captured = Captured(f, x)
    assert counter == 1
    scale.fill_(5)
    version = counter._version
    assert torch.equal(captured(x)[0], x * 5)
    assert counter == 2
    assert counter._version > version


def test_numbers_and_lists_become_constants():
    def f(a):
        bias = torch.tensor([1.0, 2.0, 3.0])
        mask = torch.arange(3) > 0
        filled = torch.zeros(3)
        filled[1:] += a[1:]
        made = torch.tensor([5.0, 6.0, 7.0])
        made.add_(a)
        return a * 2 + bias, torch.where(mask, a, -1.0), filled, made, torch.tensor([7, 8]), a.new_ones(3)

    check(f, lambda: (torch.randn(3),))


def test_constants_survive_other_graphs_in_the_pool():
    x = torch.randn(3)
    captured = Captured(lambda a: (a + torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0])), x)
    with captured.pool.route():
        junk = [torch.full((n,), -1.0) for n in (2, 3, 100, 1000)]
    captured.outputs[1].fill_(9)
    got = captured(x)
    assert torch.equal(got[0], x + torch.tensor([1.0, 2.0, 3.0]))
    assert torch.equal(got[1], torch.tensor([4.0, 5.0]))
    assert all((t == -1).all() for t in junk)


def test_random_numbers_go_on_as_in_eager():
    generator = torch.Generator()

    def f(a):
        return (
            nn.functional.dropout(a, 0.5, training=True),
            torch.rand(3),
            torch.randn_like(a),
            torch.randint(10, (4,)),
            torch.empty(3).uniform_(),
            torch.bernoulli(torch.full((3,), 0.5)),
            torch.randperm(5),
            torch.rand(2, generator=generator),
            torch.multinomial(torch.ones(4), 2),
        )

    x = torch.ones(6)
    torch.manual_seed(3)
    generator.manual_seed(4)
    want = [f(x) for _ in range(4)]
    after = torch.rand(1)
    torch.manual_seed(3)
    generator.manual_seed(4)
    captured = Captured(f, x)
    got = [tuple(t.clone() for t in captured.outputs)] + [tuple(captured(x)) for _ in range(3)]
    assert torch.equal(torch.rand(1), after)
    for a, b in zip(got, want, strict=True):
        assert [torch.equal(s, t) for s, t in zip(a, b, strict=True)] == [True] * len(b)


def test_batch_norm_updates_its_statistics_once_per_call():
    torch.manual_seed(0)
    norm, reference = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    captured = Captured(norm, torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))
    reference(torch.randn(5, 4, generator=torch.Generator().manual_seed(1)))
    for i in range(3):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(i + 2))
        torch.testing.assert_close(captured(x)[0], reference(x).detach())
    torch.testing.assert_close(norm.running_mean, reference.running_mean)
    torch.testing.assert_close(norm.running_var, reference.running_var)
    assert norm.num_batches_tracked == reference.num_batches_tracked == 4


def test_operators_replay_in_the_gradient_mode_of_the_capture():
    """As oneDNN's LSTM, which keeps what a backward needs only where gradients are on."""
    with torch.library._scoped_library("staticrt_tests", "FRAGMENT") as library:
        library.define("by_gradient_mode(Tensor x) -> Tensor")
        library.impl("by_gradient_mode", lambda x: x + 1 if torch.is_grad_enabled() else x - 1, "CPU")
        operator = torch.ops.staticrt_tests.by_gradient_mode

        def f(x):
            with torch.enable_grad():
                y = operator(x)
            with torch.no_grad():
                return operator(y) + operator(x)

        for mode in (torch.no_grad, torch.enable_grad):
            captured = Captured(f, torch.ones(3))
            with mode():
                assert captured(torch.zeros(3))[0].tolist() == [-1.0] * 3
                assert torch.is_grad_enabled() == (mode is torch.enable_grad)
