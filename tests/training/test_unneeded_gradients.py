"""Gradients that a backward does not ask for are not computed; the others are eager's."""

import pytest
import torch

import staticrt.training


def _backward_nodes():
    """Nodes of each backward plan that has run, by its key."""
    (region,) = staticrt.training.debug_state()[-1:]
    graph = next(g for g in region["graphs"] if g["role"] == "backward")
    return {key: plan["nodes"] for key, plan in graph["plans"].items() if plan["calls"]}


def function(x, w, b):
    return torch.tanh(x @ w + b)


def _leaves():
    torch.manual_seed(0)
    return [torch.randn(size, requires_grad=True) for size in ((5, 4), (4, 3), (3,))]


SUBSETS = [(0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2)]


@pytest.mark.parametrize("wanted", SUBSETS)
@pytest.mark.parametrize("sizes", [(5, 5, 5), (5, 7, 9)])  # the latter become symbols
def test_any_subset_of_gradients(compiler, wanted, sizes):
    compiled = compiler(function)
    for rows in sizes:
        arguments = [torch.randn(rows, 4, requires_grad=True), *_leaves()[1:]]
        got, want = (
            torch.autograd.grad(run(*arguments).square().sum(), [arguments[i] for i in wanted])
            for run in (compiled, function)
        )
        torch.testing.assert_close(got, want)


def test_nothing_is_computed_for_what_nobody_asks():
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="staticrt", options={"backward_node": "aot"})
    arguments = _leaves()
    torch.autograd.grad(compiled(*arguments).sum(), arguments)
    torch.autograd.grad(compiled(*arguments).sum(), arguments[2])
    torch.autograd.grad(compiled(*arguments).sum(), arguments[:1])
    nodes = _backward_nodes()
    assert set(nodes) == {(), (-1, -2), (-2, -3)}
    assert nodes[-1, -2] < nodes[()]  # no product
    assert nodes[-2, -3] < nodes[()]  # one, and no sum


def test_backward_with_inputs_leaves_other_gradients_alone(compiler):
    compiled = compiler(function)
    x, w, b = _leaves()
    compiled(x, w, b).sum().backward(inputs=[w])
    assert x.grad is None
    assert b.grad is None
    kept = w.grad.clone()
    compiled(x, w, b).sum().backward()
    torch.testing.assert_close(w.grad, 2 * kept)
    y, v, c = _leaves()
    function(y, v, c).sum().backward()
    for got, want in ((x, y), (b, c)):
        torch.testing.assert_close(got.grad, want.grad)


def test_of_several_results_one_is_differentiated_by_one_input(compiler):
    def two(x, w):
        return x.sin() * w, (x @ w).exp()

    compiled = compiler(two)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    for index in (0, 1):
        for inputs in ([x], [w], [x, w]):
            got, want = (torch.autograd.grad(run(x, w)[index].sum(), inputs) for run in (compiled, two))
            torch.testing.assert_close(got, want)


def test_a_written_buffer_and_a_view_beside_parameters(compiler):
    """AOTAutograd's function takes other inputs than the region; pruning must not mix them up."""

    def writes(x, w, buffer):
        buffer.add_(1)
        y = x.t() * w
        return y, y[0], x.view(-1)

    compiled = compiler(writes)
    for _call in range(2):
        x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
        for inputs in ([x], [w], [w, x]):
            got, want = (
                torch.autograd.grad(
                    sum((i + 1) * out.square().sum() for i, out in enumerate(run(x, w, torch.zeros(2)))),
                    inputs,
                )
                for run in (compiled, writes)
            )
            torch.testing.assert_close(got, want)
